// A target rank that dies or hangs: the job ends with an error, and everything written before is the target's
// text.
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "mpirun.h"
#include "tests/support/background_process.h"

namespace outrider::testing {
namespace {

using namespace std::chrono_literals;

constexpr const char* kPrompt = "Once upon a time";

class MpirunFaults : public Mpirun {
 protected:
  // Ranks: coordinator, draft worker, two of the target, whose steps take 20 ms.
  BackgroundProcess& start(const Arguments& what) {
    Arguments arguments{"env",
                        "OMPI_ALLOW_RUN_AS_ROOT=1",
                        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                        "mpirun",
                        "--oversubscribe",
                        "-n",
                        "4",
                        outrider_path(),
                        "generate",
                        "--model",
                        demo_target(),
                        "--draft-model",
                        demo_draft(),
                        "--layout",
                        "coordinator=1,draft=1,target=2",
                        "--emulate-link",
                        "delay=10ms,links=target",
                        "--threads",
                        "1",
                        "--quiet"};
    arguments.insert(arguments.end(), what.begin(), what.end());
    return job_.emplace(dir_, "job", arguments);
  }

  // 0: it is not there.
  pid_t process_of_rank(int rank) const {
    const std::string variable = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank) + std::string(1, '\0');
    for (const pid_t pid : job_->descendants("generate"))
      if (read_file("/proc/" + std::to_string(pid) + "/environ").find(variable) != std::string::npos)
        return pid;
    return 0;
  }

  template <class Condition>
  static bool until(const Condition& holds, std::chrono::seconds limit = 60s) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience * limit;
    while (!holds() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(5ms);
    return holds();
  }

  // The last target rank gets the signal; the job ends with an error, and leaves no process.
  void expect_loud_end_after(int signal, std::chrono::seconds limit) {
    const pid_t victim = process_of_rank(3);
    ASSERT_GT(victim, 0);
    ASSERT_FALSE(job_->ended()) << "the job was too short for its fault";
    ASSERT_EQ(kill(victim, signal), 0);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_GT(job_->wait(limit), 0) << job_->err();  // -1: it hangs
    const auto took = std::chrono::steady_clock::now() - start;
    std::printf("  ended after %.1f s\n", std::chrono::duration<double>(took).count());
    EXPECT_NE(job_->err(), "");
    EXPECT_TRUE(until([&] { return kill(victim, 0) != 0; })) << "rank 3 is still there";
  }

  // A text that is streamed, and breaks off.
  void expect_prefix_after(int signal, std::chrono::seconds limit) {
    const Arguments prompt{"--prompt", kPrompt, "--max-tokens", "400", "--ignore-eos"};
    Arguments alone = prompt;
    alone.push_back("--quiet");
    const std::string whole = generate(alone).out;
    start(prompt);
    ASSERT_TRUE(until([&] { return !job_->out().empty(); })) << job_->err();
    ASSERT_NO_FATAL_FAILURE(expect_loud_end_after(signal, limit));
    std::string text = job_->out();
    if (text.ends_with('\n')) text.pop_back();  // the end of a line, also of one that broke off
    EXPECT_FALSE(text.empty());
    EXPECT_LT(text.size(), whole.size());
    EXPECT_EQ(text, whole.substr(0, text.size()));
  }

  TemporaryDirectory dir_;
  std::optional<BackgroundProcess> job_;
};

TEST_F(MpirunFaults, AKilledTargetRankBreaksTheTextOff) { expect_prefix_after(SIGKILL, 15s); }

// The deadline of a step is a minute.
TEST_F(MpirunFaults, AStoppedTargetRankEndsTheJobAtTheStepDeadline) {
  expect_prefix_after(SIGSTOP, 90s);
  EXPECT_NE(job_->err().find("did not answer step"), std::string::npos) << job_->err();
}

TEST_F(MpirunFaults, AKilledTargetRankLeavesWholeResultsOnly) {
  std::string requests;
  for (int i = 0; i < 64; ++i)
    requests += std::string("{\"prompt\": \"") + kPrompt +
                "\", \"temperature\": 1, \"seed\": " + std::to_string(i) + "}\n";
  const std::string output = dir_ / "out.jsonl";
  const Arguments prompts{"--prompts", dir_.write("in.jsonl", requests), "--max-tokens", "40",
                          "--ignore-eos"};
  Arguments alone = prompts;
  alone.push_back("--quiet");
  std::istringstream expected(generate(alone).out);
  std::set<std::string> plain;
  for (std::string line; std::getline(expected, line);) plain.insert(line);
  ASSERT_EQ(plain.size(), 64u);

  Arguments written = prompts;
  written.insert(written.end(), {"--output", output});
  start(written);
  std::string partial;
  ASSERT_TRUE(until([&] {
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path()))
      if (entry.path().extension() == ".partial") partial = entry.path();
    return !partial.empty() && !read_file(partial).empty();
  })) << job_->err();
  ASSERT_NO_FATAL_FAILURE(expect_loud_end_after(SIGKILL, 15s));
  EXPECT_FALSE(std::filesystem::exists(output)) << "as if it were whole";
  std::istringstream kept(read_file(partial));
  size_t results = 0;
  for (std::string line; std::getline(kept, line); ++results) EXPECT_TRUE(plain.contains(line)) << line;
  EXPECT_GT(results, 0u);
  EXPECT_LT(results, 64u);
}

// One of two target groups hangs, and exits when its ranks have waited a minute for each other. Its requests
// continue in the other group with the same texts, and the job ends well.
TEST_F(MpirunFaults, AHungTargetGroupIsDoneWithoutAtTheStepDeadline) {
  std::string requests;
  for (int i = 0; i < 24; ++i)
    requests += std::string("{\"prompt\": \"") + kPrompt +
                "\", \"temperature\": 1, \"seed\": " + std::to_string(i) + "}\n";
  const Arguments prompts{
      "--prompts", dir_.write("in.jsonl", requests), "--max-tokens", "120", "--ignore-eos", "--max-num-seqs",
      "2"};
  Arguments alone = prompts;
  alone.push_back("--quiet");
  const std::string expected = generate(alone).out;
  Arguments arguments{"env",
                      "OMPI_ALLOW_RUN_AS_ROOT=1",
                      "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                      "mpirun",
                      "--oversubscribe",
                      "-n",
                      "5",
                      outrider_path(),
                      "generate",
                      "--model",
                      demo_target(),
                      "--layout",
                      "coordinator=1,target=2x2",
                      "--emulate-link",
                      "delay=10ms,links=target",
                      "--threads",
                      "1",
                      "--quiet",
                      "--report",
                      dir_ / "report.json"};
  arguments.insert(arguments.end(), prompts.begin(), prompts.end());
  job_.emplace(dir_, "groups", arguments);
  ASSERT_TRUE(until([&] { return !job_->out().empty(); })) << job_->err();
  const pid_t victim = process_of_rank(4);
  ASSERT_GT(victim, 0);
  ASSERT_EQ(kill(victim, SIGSTOP), 0);
  EXPECT_TRUE(until([&] { return job_->err().find("go on in the other groups") != std::string::npos; }, 100s))
      << job_->err();
  ASSERT_EQ(kill(victim, SIGCONT), 0);
  EXPECT_EQ(job_->wait(400s), 0) << job_->err();  // ranks of MPI wait actively, which other tests slow down
  EXPECT_EQ(job_->out(), expected);
  const auto metrics = nlohmann::json::parse(read_file(dir_ / "report.json"))["metrics"];
  EXPECT_GT(metrics["target"]["failovers"], 0);
  EXPECT_EQ(metrics["groups"][0]["lost"].get<int>() + metrics["groups"][1]["lost"].get<int>(), 1);
}

}  // namespace
}  // namespace outrider::testing
