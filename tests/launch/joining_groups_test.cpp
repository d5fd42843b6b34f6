// Target groups that are programs of their own (--listen-targets). They are killed and restarted, and the
// texts stay the same.
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "mpirun.h"
#include "tests/support/background_process.h"

namespace outrider::testing {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr int kTexts = 16;

class JoiningGroups : public ::testing::Test {
 protected:
  Arguments what(int max_tokens) {
    std::string lines;
    for (int i = 0; i < kTexts; ++i) {
      std::string prompt = "Once upon a time";
      for (int n = 0; n < i % 5; ++n) prompt += " there was a little dog and";
      lines += json{{"prompt", prompt}, {"seed", i}}.dump() + "\n";
    }
    return {"--model",
            demo_target(),
            "--prompts",
            dir_.write("in.jsonl", lines),
            "--temperature",
            "0.8",
            "--max-tokens",
            std::to_string(max_tokens),
            "--ignore-eos",
            "--threads",
            "1",
            "--max-num-seqs",
            "4",
            "--quiet"};
  }

  // Steps take 10 ms, so that faults come in the middle.
  void start(const Arguments& more, int max_tokens = 60) {
    Arguments all{outrider_path(), "generate",           "--listen-targets", "tcp://127.0.0.1:*",
                  "--report",      dir_ / "report.json", "--emulate-link",   "delay=5ms,links=target"};
    for (const Arguments& part : {what(max_tokens), more}) all.insert(all.end(), part.begin(), part.end());
    job_.emplace(dir_, "job", all);
    ASSERT_TRUE(job_->says("target-group --connect ")) << job_->err();
    const std::string said = job_->err();
    const size_t at = said.find("--connect ") + 10;
    endpoint_ = said.substr(at, said.find(' ', at) - at);
  }

  Arguments group_arguments(const Arguments& more = {}) const {
    Arguments all{outrider_path(), "target-group", "--retry-for", "10", "--connect", endpoint_,
                  "--model",       demo_target(),  "--threads", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  BackgroundProcess group(const std::string& name) { return {dir_, name, group_arguments()}; }

  bool writes_texts() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience * 30s;
    while (job_->out().empty() && !job_->ended() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(5ms);
    return !job_->out().empty();
  }

  void expect_plain_texts(int max_tokens = 60) {
    ASSERT_EQ(job_->wait(), 0) << job_->err();
    Arguments plain = what(max_tokens);
    plain.insert(plain.begin(), "generate");
    EXPECT_EQ(job_->out(), outrider_program(plain).out);
  }
  json metrics() const { return json::parse(read_file(dir_ / "report.json"))["metrics"]; }

  TemporaryDirectory dir_;
  std::string endpoint_;
  std::optional<BackgroundProcess> job_;
};

// Two target groups serve: an mpirun of two ranks and a single process. Killing one rank ends the mpirun
// group, and a new group joins in its place. Then the single process is killed, and the new group serves the
// remaining requests.
TEST_F(JoiningGroups, AKilledOneLosesNoRequestAndOneThatComesServesOn) {
  const bool has_mpi =
      run_program({"mpirun", "--version"}).code == 0 &&
      outrider_program({"doctor"}).out.find("MPI                    yes") != std::string::npos;
  start({"--data-parallel-size", "2", "--wait-for-target-groups", "2", "--drafter", "ngram", "-g", "3"});
  auto first = group("first");
  Arguments ranks{"env",    "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                  "mpirun", "--oversubscribe",          "-n",
                  "2"};
  if (!has_mpi) ranks.clear();
  const Arguments one = group_arguments(has_mpi ? Arguments{} : Arguments{"--tensor-parallel-size", "2"});
  ranks.insert(ranks.end(), one.begin(), one.end());
  BackgroundProcess second(dir_, "second", ranks);
  ASSERT_TRUE(writes_texts()) << job_->err() << second.err();
  if (has_mpi) {
    const auto processes = second.descendants("target-group");
    ASSERT_EQ(processes.size(), 2u);
    ASSERT_EQ(kill(processes.back(), SIGKILL), 0);
  } else {
    second.signal(SIGKILL);
  }
  EXPECT_TRUE(job_->says("go on in the other groups")) << job_->err();
  auto third = group("third");
  ASSERT_TRUE(third.says("serves ")) << third.err() << job_->err();
  first.signal(SIGKILL);
  ASSERT_NO_FATAL_FAILURE(expect_plain_texts());
  EXPECT_EQ(third.wait(), 0) << third.err();
  const json groups = metrics()["groups"];
  EXPECT_EQ(groups[0]["joined"].get<int>() + groups[1]["joined"].get<int>(), 3);
  EXPECT_EQ(groups[0]["lost"].get<int>() + groups[1]["lost"].get<int>(), 2);
  EXPECT_GT(metrics()["target"]["failovers"], 0);
}

// With the only one its requests wait for the next. That one is stopped for longer than its coordinator has
// patience, and comes back by itself.
TEST_F(JoiningGroups, RequestsWaitForTheOnlyOne) {
  start({});
  auto first = group("first");
  ASSERT_TRUE(writes_texts()) << job_->err();
  first.signal(SIGKILL);
  EXPECT_TRUE(job_->says("wait up to 60 s for another one")) << job_->err();
  auto second = group("second");
  expect_plain_texts();
  EXPECT_EQ(second.wait(), 0) << second.err();
}

TEST_F(JoiningGroups, WithoutAnotherOneRequestsEndWithAnError) {
  start({"--target-timeout", "1"});
  auto first = group("first");
  ASSERT_TRUE(writes_texts()) << job_->err();
  first.signal(SIGKILL);
  EXPECT_GT(job_->wait(), 0);
  EXPECT_NE(job_->err().find("no other one joined within 1000 ms (--target-timeout)"), std::string::npos)
      << job_->err();
}

// One that is asked to leave says goodbye; of two with another model or kind of numbers none is let in.
TEST_F(JoiningGroups, LeavesPolitelyAndIsRefusedInWords) {
  start({"--data-parallel-size", "2"});
  auto first = group("first");
  ASSERT_TRUE(writes_texts()) << job_->err();
  BackgroundProcess other(dir_, "other", group_arguments({"--kv-dtype", "bf16"}));
  EXPECT_EQ(other.wait(), 2);
  EXPECT_NE(other.err().find("is not the one that this run was started with"), std::string::npos)
      << other.err();
  BackgroundProcess worker(dir_, "worker",
                           {outrider_path(), "draft-worker", "--connect", endpoint_, "--drafter", "ngram"});
  EXPECT_EQ(worker.wait(), 2);
  EXPECT_NE(worker.err().find("target groups join here"), std::string::npos) << worker.err();
  auto second = group("second");
  ASSERT_TRUE(second.says("serves ")) << second.err();
  first.signal(SIGTERM);
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_TRUE(job_->says("the target group left")) << job_->err();
  expect_plain_texts();
}

}  // namespace
}  // namespace outrider::testing
