// A draft model over several ranks: as threads, under mpirun and in workers that join. Drafts equal those of
// one rank token for token, so texts (under p/q rules too) and counts of accepted drafts are the same.
// Killing a rank ends its draft worker and changes no text.
#include <algorithm>
#include <csignal>
#include <thread>

#include "mpirun.h"
#include "pool.h"

namespace outrider::testing {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class DraftRanks : public Pool {
 protected:
  Arguments stories() const {
    return {"--prompts",
            dir_.write("in.jsonl", prompts(6)),
            "--max-tokens",
            "40",
            "--ignore-eos",
            "--max-num-seqs",
            "3",
            "--threads",
            "1",
            "--quiet",
            "--draft-model",
            demo_draft()};
  }
  struct Story {
    std::string text;
    json rounds;
    int late = 0;  // drafts that were not waited for
  };
  Story read(const Outcome& run) {
    EXPECT_TRUE(run.succeeded()) << run.describe();
    if (!run.succeeded()) return {run.out};
    const json all = metrics();
    return {run.out, all["rounds"], all["drafts"]["deadlines_missed"]};
  }
  Story tell(const Arguments& how, const Arguments& ranks) {
    return read(generate(stories() + how + ranks + Arguments{"--report", dir_ / "report.json"}));
  }
  // Counts alone; times differ. On a machine that is busy with others a draft may come late, and its round
  // has none.
  static void expect_same(const Story& expected, const Story& actual, const std::string& what) {
    EXPECT_EQ(expected.text, actual.text) << what;
    if (actual.late > 0) std::printf("  %s: %d drafts were late\n", what.c_str(), actual.late);
    if (expected.late + actual.late > 0) return;
    for (const char* count : {"drafted_tokens", "accepted_tokens", "emitted_tokens"})
      EXPECT_EQ(expected.rounds[count], actual.rounds[count]) << what << ": " << count;
    EXPECT_GT(actual.rounds["accepted_tokens"], 10) << what;
  }
  Outcome under_mpirun(int ranks, const Arguments& how) {
    return run_program(Arguments{"mpirun", "--oversubscribe", "-n", std::to_string(ranks), outrider_path(),
                                 "generate", "--model", demo_target()} +
                           stories() + how + Arguments{"--report", dir_ / "report.json"},
                       {.env = kRoot});
  }
  static bool has_mpirun() {
    static const bool has =
        run_program({"mpirun", "--version"}).code == 0 &&
        outrider_program({"doctor"}).out.find("MPI                    yes") != std::string::npos;
    if (!has) std::fprintf(stderr, "\n*** SKIPPED: no mpirun in PATH, or a build without MPI. ***\n");
    return has;
  }
  // Containers and CI run as root, which Open MPI allows only when told twice.
  inline static const std::map<std::string, std::string> kRoot{{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                                               {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};
};

// With fixed lengths nothing hangs on measured times: under every rule the drafts of any number of ranks are
// the same, and q has the same bits.
TEST_F(DraftRanks, DraftsAreThoseOfOneRankUnderEveryRule) {
  for (const Arguments& rule :
       {Arguments{"--temperature", "0"}, Arguments{"--temperature", "0.8"},
        Arguments{"--temperature", "0.8", "--rule", "token"},
        Arguments{"--temperature", "0.8", "--rule", "block", "--q-format", "dense"},
        Arguments{"--temperature", "0.8", "--rule", "token", "--q-format", "hidden"}}) {
    const Arguments how = rule + Arguments{"-g", "4"};
    const Story one = tell(how, {});
    for (const char* ranks : {"2", "4"})
      for (const char* target : {"1", "2"}) {
        if (ranks == std::string("4") && target == std::string("2")) continue;
        expect_same(one, tell(how, {"--draft-tensor-parallel-size", ranks, "--tp", target}),
                    rule.back() + " over " + ranks + " and " + target + " ranks");
      }
  }
}

// Drafting ahead, trees and drafts found in the text depend on clock and arrival order. The other ranks
// follow the leader's decisions.
TEST_F(DraftRanks, EveryWayOfDraftingWritesThePlainText) {
  const std::string plain = generate({"--prompts", dir_.write("in.jsonl", prompts(6)), "--max-tokens", "40",
                                      "--ignore-eos", "--quiet", "--temperature", "0.8"})
                                .out;
  for (const Arguments& way :
       {Arguments{"--pipeline", "ahead", "-g", "3"}, Arguments{"--pipeline", "fanout", "-g", "3"},
        Arguments{"--pipeline", "auto"}, Arguments{"--speculative-tree", "best-first:8", "-g", "4"},
        Arguments{"--speculative-tree", "[[0],[1],[0,0]]"}, Arguments{"--drafter", "model+suffix"},
        Arguments{"--draft-drafter", "suffix", "-g", "5"},
        Arguments{"--num-draft-workers", "2", "--draft-threads", "2"},
        Arguments{"--unload-drafter", "0.001"}}) {
    const Story two = tell(way + Arguments{"--temperature", "0.8"}, {"--draft-tensor-parallel-size", "2"});
    EXPECT_EQ(two.text, plain) << way.at(1);
  }
}

TEST_F(DraftRanks, SampledTreesAreThoseOfOneRank) {
  const Arguments how{"--temperature", "0.8", "--rule", "swor", "--speculative-tree", "[[0],[1],[0,0]]"};
  expect_same(tell(how, {}), tell(how, {"--draft-tensor-parallel-size", "2"}), "swor");
}

TEST_F(DraftRanks, UnderMpirunTheyAreProcesses) {
  if (!has_mpirun()) GTEST_SKIP();
  const Arguments how{"--temperature", "0.8", "-g", "4"};
  const Story one = tell(how, {});
  expect_same(one, read(under_mpirun(4, how + Arguments{"--layout", "coordinator=1,draft=1x2,target=1"})),
              "1x2");
  expect_same(one, read(under_mpirun(5, how + Arguments{"--draft-tensor-parallel-size", "2"})),
              "by the flag");
  const Story two = read(under_mpirun(6, how + Arguments{"--layout", "coordinator=1,draft=2x2,target=1"}));
  EXPECT_EQ(one.text, two.text);
  const Outcome refused =
      under_mpirun(4, {"--layout", "coordinator=1,draft=2,target=1", "--draft-tensor-parallel-size", "2"});
  EXPECT_EQ(refused.code, 2) << refused.describe();
  EXPECT_NE(refused.err.find("say draft=1x2"), std::string::npos) << refused.describe();
}

TEST_F(DraftRanks, AWorkerThatJoinsMayHaveSeveral) {
  start_long_job({});
  BackgroundProcess two = worker("two", {"--draft-model", demo_draft(), "--draft-tensor-parallel-size", "2"});
  ASSERT_TRUE(two.says("drafts for")) << two.err();
  expect_plain_text(plain(kLongJobTokens));
  EXPECT_EQ(two.wait(), 0) << two.err();
  EXPECT_GT(metrics()["rounds"]["accepted_tokens"], 100);
}

// Whichever of its processes is killed: the worker is gone as a whole, and the job goes on without it, or
// with the next one.
TEST_F(DraftRanks, AKilledRankEndsItsWorkerAndNoText) {
  if (!has_mpirun()) GTEST_SKIP();
  for (const auto& [name, value] : kRoot) setenv(name.c_str(), value.c_str(), 1);
  const auto start = [&](const std::string& name) {
    return BackgroundProcess(dir_, name,
                             Arguments{"mpirun", "--oversubscribe", "-n", "2"} +
                                 worker_arguments({"--draft-model", demo_draft()}));
  };
  // Outlasts two starts of mpirun. Drafts begin at once, whatever a policy thinks of strangers.
  start_job({"--emulate-link", "delay=15ms,links=target", "-g", "4"}, kLongJobTokens);
  for (const size_t rank : {1u, 0u}) {
    BackgroundProcess workers = start("rank" + std::to_string(rank));
    ASSERT_TRUE(workers.says("drafts for")) << workers.err();
    std::this_thread::sleep_for(500ms);  // it drafts
    auto pids = workers.descendants("draft-worker");
    ASSERT_EQ(pids.size(), 2u);
    std::ranges::sort(pids);
    kill(pids[rank], SIGKILL);
    EXPECT_NE(workers.wait(), 0);
    EXPECT_FALSE(job_->ended()) << "the job was too short";
  }
  expect_plain_text(plain(kLongJobTokens));
  EXPECT_GT(metrics()["rounds"]["accepted_tokens"], 20);
}

}  // namespace
}  // namespace outrider::testing
