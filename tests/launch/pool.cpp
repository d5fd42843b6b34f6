#include "pool.h"

#include <algorithm>
#include <cstdio>
#include <map>

namespace outrider::testing {

namespace {

constexpr const char* kLongSteps = "delay=5ms,links=target";

}  // namespace

std::string Pool::prompts(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    std::string prompt = "Once upon a time";
    for (int n = 0; n < i % 5; ++n) prompt += " there was a little dog and";
    lines += nlohmann::json{{"prompt", prompt}, {"seed", i}}.dump() + "\n";
  }
  return lines;
}

Arguments Pool::job(const Arguments& more, int max_tokens) const {
  Arguments arguments{outrider_path(),
                      "generate",
                      "--model",
                      demo_target(),
                      "--prompts",
                      prompts_,
                      "--quiet",
                      "--max-tokens",
                      std::to_string(max_tokens),
                      "--temperature",
                      "0.8",
                      "--ignore-eos",
                      "--threads",
                      "1"};
  // Few together: as many steps of half the work.
  if (std::find(more.begin(), more.end(), "--max-num-seqs") == more.end())
    arguments.insert(arguments.end(), {"--max-num-seqs", "4"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

BackgroundProcess& Pool::start_job(const Arguments& more, int max_tokens) {
  Arguments arguments{"--listen", "tcp://127.0.0.1:*", "--report", dir_ / "report.json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  job_.emplace(dir_, "job", job(arguments, max_tokens));
  EXPECT_TRUE(job_->says("draft-worker --connect ")) << job_->err();
  const std::string said = job_->err();
  const size_t at = said.find("--connect ") + 10;
  endpoint_ = said.substr(at, said.find(' ', at) - at);
  return *job_;
}

BackgroundProcess& Pool::start_long_job(const Arguments& more, int max_tokens) {
  Arguments arguments{"--emulate-link", kLongSteps};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return start_job(arguments, max_tokens);
}

Arguments Pool::worker_arguments(const Arguments& more) const {
  Arguments arguments{outrider_path(), "draft-worker", "--connect", endpoint_, "--threads", "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

BackgroundProcess Pool::worker(const std::string& name, const Arguments& more) {
  return BackgroundProcess(dir_, name, worker_arguments(more));
}

void Pool::expect_plain_text(const std::string& plain) {
  ASSERT_EQ(job_->wait(), 0) << job_->err();
  EXPECT_EQ(job_->out(), plain);
  EXPECT_EQ(metrics()["requests"]["finished"]["error"], 0);
}

const std::string& Pool::plain(int max_tokens) {
  static std::map<int, std::string> texts;
  std::string& text = texts[max_tokens];
  if (!text.empty()) return text;
  const TemporaryDirectory dir;
  const Outcome run =
      generate({"--prompts", dir.write("in.jsonl", prompts(kRequests)), "--quiet", "--max-tokens",
                std::to_string(max_tokens), "--temperature", "0.8", "--ignore-eos"});
  EXPECT_TRUE(run.succeeded()) << run.describe();
  return text = run.out;
}

void Pool::expect_speed_of_plain() const {
  static const double plain = [&] {
    const TemporaryDirectory dir;
    Arguments arguments = job({"--emulate-link", kLongSteps, "--report", dir / "report.json"}, 60);
    arguments.erase(arguments.begin());
    const Outcome run = outrider_program(arguments);
    EXPECT_TRUE(run.succeeded()) << run.describe();
    return nlohmann::json::parse(read_file(dir / "report.json"))["metrics"]["tokens_per_second"]
        .get<double>();
  }();
  const double speed = metrics()["tokens_per_second"];
  std::printf("  %.0f tokens/s, plain decoding %.0f\n", speed, plain);
  EXPECT_GT(speed, plain / 3);
}

void print_drafters(const nlohmann::json& metrics) {
  for (const auto& drafter : metrics["drafters"]) std::printf("  %s\n", drafter.dump().c_str());
  std::printf("  cluster %s\n  wire: malformed %s, refused peers %s\n", metrics["cluster"].dump().c_str(),
              metrics["wire"]["malformed_frames"].dump().c_str(),
              metrics["wire"]["refused_peers"].dump().c_str());
}

}  // namespace outrider::testing
