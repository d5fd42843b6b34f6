// One draft worker for several coordinators (--share), as processes: each job writes the text of plain
// decoding with drafts of the shared worker, whatever happens to the other jobs.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "pool.h"

namespace outrider::testing {
namespace {

constexpr int kFewTokens = 40;

class SharedWorker : public Pool {
 protected:
  // A job that waits for a draft worker. `endpoint`: its address; any free port by default.
  struct Job {
    std::string endpoint, report;
    std::unique_ptr<BackgroundProcess> process;

    nlohmann::json metrics() const { return nlohmann::json::parse(read_file(report))["metrics"]; }
  };

  Job start(const std::string& name, int max_tokens, Arguments more = {},
            const std::string& endpoint = "tcp://127.0.0.1:*", const std::string& target = {}) {
    Job job{.endpoint = {}, .report = dir_ / (name + ".json"), .process = {}};
    more.insert(more.end(),
                {"--listen", endpoint, "--report", job.report, "--wait-for-draft-workers", "1", "-g", "3"});
    Arguments arguments = this->job(more, max_tokens);
    if (!target.empty()) *(std::find(arguments.begin(), arguments.end(), "--model") + 1) = target;
    job.process = std::make_unique<BackgroundProcess>(dir_, name, arguments);
    EXPECT_TRUE(job.process->says("draft-worker --connect ")) << job.process->err();
    const std::string said = job.process->err();
    const size_t at = said.find("--connect ") + 10;
    job.endpoint = said.substr(at, said.find(' ', at) - at);
    return job;
  }
  Job start_long(const std::string& name, const std::string& endpoint = "tcp://127.0.0.1:*") {
    return start(name, kLongJobTokens, {"--emulate-link", "delay=5ms,links=target"}, endpoint);
  }

  BackgroundProcess shared(const std::string& name, const std::vector<std::string>& endpoints,
                           const Arguments& more = {"--draft-model", demo_draft()}) {
    Arguments arguments{outrider_path(), "draft-worker", "--share", "--threads", "1"};
    for (const std::string& endpoint : endpoints) arguments.insert(arguments.end(), {"--connect", endpoint});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return BackgroundProcess(dir_, name, arguments);
  }

  // The job ended well, wrote what plain decoding writes, and had drafts.
  static void expect_plain(const Job& job, int max_tokens) {
    ASSERT_EQ(job.process->wait(), 0) << job.process->err();
    EXPECT_EQ(job.process->out(), plain(max_tokens));
    const auto metrics = job.metrics();
    EXPECT_EQ(metrics["requests"]["finished"]["error"], 0);
    EXPECT_GT(metrics["rounds"]["accepted_tokens"], 100) << metrics["rounds"];
  }

  static bool joined(BackgroundProcess& worker, const Job& job) {
    return worker.says(fmt::format("({}): model 'draft' drafts for", job.endpoint));
  }
};

TEST_F(SharedWorker, DraftsForTwoJobsAtOnce) {
  const Job first = start("first", kFewTokens), second = start("second", kFewTokens);
  BackgroundProcess worker = shared("worker", {first.endpoint, second.endpoint});
  EXPECT_TRUE(joined(worker, first) && joined(worker, second)) << worker.err();
  expect_plain(first, kFewTokens);
  expect_plain(second, kFewTokens);
  EXPECT_EQ(worker.wait(), 0) << worker.err();
  for (const Job* job : {&first, &second}) {
    EXPECT_EQ(job->metrics()["cluster"]["workers_joined"], 1);
    EXPECT_EQ(job->metrics()["cluster"]["workers_lost"], 0);
    EXPECT_EQ(job->metrics()["drafts"]["dropped"]["bad_ids"], 0);
    EXPECT_NE(worker.err().find(fmt::format("({}): the job has ended", job->endpoint)), std::string::npos)
        << worker.err();
    // A draft may be under way when the job ends.
    const std::string err = worker.err(), count = fmt::format("({}): ", job->endpoint);
    const size_t at = err.rfind(count);
    int tokens = 0, drafts = 0;
    ASSERT_NE(at, std::string::npos) << err;
    EXPECT_EQ(std::sscanf(err.c_str() + at + count.size(), "%d tokens in %d drafts", &tokens, &drafts), 2)
        << err;
    EXPECT_GE(drafts, job->metrics()["drafts"]["received"]);
    EXPECT_GE(tokens, job->metrics()["rounds"]["accepted_tokens"]);
  }
}

// A killed coordinator costs the others nothing, and the next one at its address gets the worker back.
TEST_F(SharedWorker, AKilledJobDoesNotConcernTheOther) {
  const Job killed = start_long("killed"), other = start_long("other");
  BackgroundProcess worker =
      shared("worker", {killed.endpoint, other.endpoint}, {"--draft-model", demo_draft(), "--stay"});
  ASSERT_TRUE(joined(worker, killed) && joined(worker, other)) << worker.err();
  killed.process->signal(SIGKILL);
  EXPECT_TRUE(worker.says(fmt::format("loss: draft worker"))) << worker.err();
  ASSERT_FALSE(other.process->ended()) << "the job was too short for its fault";
  const Job next = start("next", kFewTokens, {}, killed.endpoint);
  EXPECT_EQ(next.endpoint, killed.endpoint);
  expect_plain(next, kFewTokens);
  expect_plain(other, kLongJobTokens);
  EXPECT_EQ(other.metrics()["cluster"]["workers_joined"], 1) << "its session was not disturbed";
  EXPECT_EQ(other.metrics()["cluster"]["workers_lost"], 0);
  worker.signal(SIGTERM);
  EXPECT_EQ(worker.wait(), 0) << worker.err();
}

// A coordinator whose target has another vocabulary refuses its own session, by name, and no other.
TEST_F(SharedWorker, ARefusalConcernsOneSession) {
  const auto target = dir_.copy(demo_target(), "foreign");
  auto tokenizer = nlohmann::json::parse(read_file(target / "tokenizer.json"));
  auto& vocab = tokenizer["model"]["vocab"];
  const auto last = std::prev(vocab.end()), before = std::prev(last);
  std::swap(last.value(), before.value());
  write_file(target / "tokenizer.json", tokenizer.dump());
  const Job foreign = start("foreign_job", 200, {}, "tcp://127.0.0.1:*", target);
  const Job own = start("own", kFewTokens);
  BackgroundProcess worker = shared("worker", {foreign.endpoint, own.endpoint});
  EXPECT_TRUE(worker.says(fmt::format("({}): the coordinator refused this drafter", foreign.endpoint)))
      << worker.err();
  EXPECT_TRUE(joined(worker, own)) << worker.err();
  expect_plain(own, kFewTokens);
  EXPECT_EQ(worker.wait(), 2) << "one was refused";
  EXPECT_NE(worker.err().find("vocabulary"), std::string::npos) << worker.err();
}

// Drafters without a model are shared, too; and with --stay a session outlives its jobs.
TEST_F(SharedWorker, DrafterWithoutModelStays) {
  const Job first = start("first", kFewTokens), second = start("second", kFewTokens);
  BackgroundProcess worker =
      shared("worker", {first.endpoint, second.endpoint}, {"--drafter", "suffix", "--stay"});
  EXPECT_EQ(first.process->wait(), 0) << first.process->err();
  const Job next = start("next", kFewTokens, {}, first.endpoint);
  for (const Job* job : {&first, &second, &next}) {
    EXPECT_EQ(job->process->wait(), 0) << job->process->err();
    EXPECT_EQ(job->process->out(), plain(kFewTokens));
    EXPECT_EQ(job->metrics()["cluster"]["workers_joined"], 1);
  }
  worker.signal(SIGTERM);
  EXPECT_EQ(worker.wait(), 0) << worker.err();
}

// The target is larger than a session's memory without weights, and drafts for itself.
TEST_F(SharedWorker, WeightsAreLoadedOnce) {
  const auto peak_with = [&](size_t jobs) {
    std::vector<Job> started;
    std::vector<std::string> endpoints;
    for (size_t i = 0; i < jobs; ++i) {
      started.push_back(start(fmt::format("job{}of{}", i, jobs), 20));
      endpoints.push_back(started.back().endpoint);
    }
    BackgroundProcess worker =
        shared(fmt::format("worker{}", jobs), endpoints, {"--draft-model", demo_target()});
    for (const Job& job : started)
      EXPECT_TRUE(worker.says(fmt::format("({}): model 'target' drafts for", job.endpoint))) << worker.err();
    const size_t peak = worker.peak_memory();
    for (const Job& job : started) EXPECT_EQ(job.process->wait(), 0) << job.process->err();
    EXPECT_EQ(worker.wait(), 0) << worker.err();
    return peak;
  };
  const size_t one = peak_with(1), three = peak_with(3);
  std::printf("  peak memory: %zu MB with one coordinator, %zu MB with three\n", one >> 20, three >> 20);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what was freed
  EXPECT_LT(three, one + (size_t{16} << 20)) << "the weights take 17 MB";
#endif
}

// Flags with two possible meanings are refused, with the flags to write instead.
TEST_F(SharedWorker, FlagsSayWhatTheyMean) {
  const std::string a = "tcp://10.0.0.1:7000", b = "tcp://10.0.0.2:7000";
  struct Case {
    Arguments flags, says;
  };
  const std::vector<Case> cases{
      {{"--connect", a, "--connect", b}, {"needs --share", "--connect " + a + "," + b, "standby"}},
      {{"--share", "--connect", a + "," + b}, {"standby", "--share --connect " + a + " --connect " + b}},
      {{"--share", "--connect", a, "--connect", a}, {a + " is there twice"}},
      {{"--share", "--connect", a, "--connect", b + "," + a}, {a + " is there twice"}},
      {{"--connect", a + ",10.0.0.2:7000"}, {"--connect", "10.0.0.2:7000", "tcp://HOST:PORT"}},
      {{"--connect", a + ","}, {"--connect", "tcp://HOST:PORT"}},
      {{"--connect", a + ",tcp://10.0.0.2:70000"}, {"--connect", "port"}},
      {{"--connect", ""}, {"--connect", "tcp://HOST:PORT"}},
      {{"--connect", a, "--share-weights", "1"}, {"--share-weights", "--share"}},
      {{"--share", "--connect", a, "--connect", b, "--share-weights", "1,2,3"}, {"3 numbers for 2"}},
      {{"--share", "--connect", a, "--connect", b, "--share-weights", "1,0"}, {"--share-weights", "above 0"}},
      {{"--share", "--connect", a, "--connect", b, "--share-weights", "1,nan"}, {"--share-weights"}},
      {{"--share", "--connect", a, "--connect", b, "--max-num-seqs", "1"}, {"--max-num-seqs 1", "2 coord"}},
      {{"--share", "--connect", a, "--drafter", "eagle3", "--model", demo_target()}, {"--share", "eagle3"}},
      {{"--share", "--connect", a, "--draft-tensor-parallel-size", "2"}, {"--draft-tensor-parallel-size"}},
      {{"--share"}, {"--connect is missing"}},
  };
  for (const Case& c : cases) {
    Arguments arguments{"draft-worker", "--draft-model", demo_draft()};
    arguments.insert(arguments.end(), c.flags.begin(), c.flags.end());
    const Outcome run = outrider_program(arguments);
    EXPECT_EQ(run.code, 2) << run.describe();
    for (const std::string& part : c.says)
      EXPECT_NE(run.err.find(part), std::string::npos) << part << "\n" << run.describe();
  }
  const std::string config =
      dir_.write("worker.toml",
                 fmt::format("connect = [\"{}\", \"{}\"]\nshare = true\nshare-weights = [1, 2, 3]\n", a, b));
  const Outcome run = outrider_program({"draft-worker", "--config", config, "--drafter", "ngram"});
  EXPECT_NE(run.err.find("3 numbers for 2"), std::string::npos) << run.describe();
  const Outcome by_variables = outrider_program({"draft-worker", "--drafter", "ngram"},
                                                {.env = {{"OUTRIDER_CONNECT", a + " " + b},
                                                         {"OUTRIDER_SHARE", "true"},
                                                         {"OUTRIDER_SHARE_WEIGHTS", "1,2,3"}}});
  EXPECT_NE(by_variables.err.find("3 numbers for 2"), std::string::npos) << by_variables.describe();
}

}  // namespace
}  // namespace outrider::testing
