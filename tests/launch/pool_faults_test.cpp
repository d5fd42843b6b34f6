// Draft workers as processes behind networks that fail, and rules whose text depends on the drafter.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "pool.h"
#include "relay.h"

namespace outrider::testing {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

// How long partitions and stopped processes last. OUTRIDER_TEST_OUTAGE=SECONDS makes it longer, and the jobs
// with it.
milliseconds outage() {
  const char* seconds = std::getenv("OUTRIDER_TEST_OUTAGE");
  return seconds ? milliseconds(std::atoi(seconds) * 1000) : 1500ms;
}

class PoolFaults : public Pool {
 protected:
  // Every message takes a while, so that the job outlives its fault on any machine.
  static std::string slow_link() {
    return "delay=" + std::to_string(4 + outage().count() * 4 / 1000) + "ms,links=all";
  }

  void start_traced_job(const std::string& link) {
    start_job({"--wait-for-draft-workers", "1", "-g", "3", "--max-num-seqs", std::to_string(kRequests),
               "--emulate-link", link, "--trace", dir_ / "trace.json"});
  }

  // The longest time without a round that had a draft, of any sequence.
  milliseconds longest_pause_in_drafting() const {
    std::vector<double> at_us;
    const auto trace = nlohmann::json::parse(read_file(dir_ / "trace.json"));
    for (const auto& span : trace["traceEvents"])
      if (span["name"] == "verify" && span["args"]["drafted"] > 0) at_us.push_back(span["ts"]);
    std::sort(at_us.begin(), at_us.end());
    double longest = 0;
    for (size_t i = 1; i < at_us.size(); ++i) longest = std::max(longest, at_us[i] - at_us[i - 1]);
    return milliseconds(static_cast<int64_t>(longest / 1000));
  }

  // The one worker was missed, at a deadline or because its queue was full by then, and is given work again.
  void expect_return(BackgroundProcess& worker) {
    EXPECT_EQ(worker.wait(), 0) << worker.err();
    const auto report = metrics();
    EXPECT_GE(report["drafts"]["deadlines_missed"].get<int>() + report["cluster"]["sends_failed"].get<int>(),
              1);
    const milliseconds pause = longest_pause_in_drafting();
    EXPECT_GE(pause, outage() / 2);  // else there was no outage, or no drafting after it
    std::printf("  an outage of %lld ms, drafting again %lld ms after it\n",
                static_cast<long long>(outage().count()), static_cast<long long>((pause - outage()).count()));
    print_drafters(report);
  }

  // Whatever was drafted: every text is whole.
  void expect_whole_texts(const std::string& lines, int tokens = kTokens) {
    int count = 0;
    for (size_t at = 0; at < lines.size(); at = lines.find('\n', at) + 1, ++count) {
      const auto line = nlohmann::json::parse(lines.substr(at, lines.find('\n', at) - at));  // valid UTF-8
      EXPECT_EQ(line["finish_reason"], "length");
      EXPECT_EQ(line["token_ids"].size(), tokens);
      EXPECT_FALSE(line["text"].get<std::string>().empty());
    }
    EXPECT_EQ(count, kRequests);
  }
};

TEST_F(PoolFaults, APartitionHeals) {
  // By then prompts have been read, for which drafts are waited for longer.
  const int64_t from = 1400 + outage().count() / 10, to = from + outage().count();
  start_traced_job(slow_link() + ",partition=" + std::to_string(from) + "ms.." + std::to_string(to) + "ms");
  BackgroundProcess far = worker("far");
  expect_plain_text(plain());
  expect_return(far);
}

TEST_F(PoolFaults, AStoppedWorkerComesBack) {
  start_traced_job(slow_link());
  BackgroundProcess stopped = worker("stopped");
  ASSERT_TRUE(stopped.says("drafts for")) << stopped.err();
  std::this_thread::sleep_for(1500ms);
  stopped.signal(SIGSTOP);
  std::this_thread::sleep_for(outage());
  ASSERT_FALSE(job_->ended()) << "the job was too short for its fault";
  stopped.signal(SIGCONT);
  expect_plain_text(plain());
  expect_return(stopped);
  const auto dropped = metrics()["drafts"]["dropped"];
  std::printf("  dropped %s\n", dropped.dump().c_str());
  EXPECT_GE(dropped["stale_round"].get<int>() + dropped["stale_epoch"].get<int>() +
                dropped["unknown_sequence"].get<int>(),
            1)
      << "what it drafted for rounds that were over";
}

// A partition as the kernel sees it: connections break, and cannot be made.
TEST_F(PoolFaults, ABrokenConnectionIsMadeAnew) {
  start_traced_job(slow_link());
  Relay wire(endpoint_);
  endpoint_ = wire.endpoint();
  BackgroundProcess far = worker("far");
  ASSERT_TRUE(far.says("drafts for")) << far.err();
  std::this_thread::sleep_for(1500ms);
  wire.cut();
  std::this_thread::sleep_for(outage());
  ASSERT_FALSE(job_->ended()) << "the job was too short for its fault";
  EXPECT_EQ(wire.broken(), 1);
  const int attempts = wire.turned_away();
  EXPECT_GE(attempts, 1);
  EXPECT_LE(attempts, 4 + 6 * outage() / 1s) << "more than a few a second";
  wire.mend();
  expect_plain_text(plain());
  EXPECT_EQ(far.wait(), 0) << far.err();
  const auto report = metrics();
  EXPECT_EQ(report["cluster"]["workers_lost"], 1);
  EXPECT_EQ(report["cluster"]["workers_joined"], 2) << "as somebody new";
  const milliseconds pause = longest_pause_in_drafting();
  EXPECT_GE(pause, outage() / 2);  // else there was no outage, or no drafting after it
  std::printf("  cut for %lld ms, %d attempts, drafting again %lld ms after it\n",
              static_cast<long long>(outage().count()), attempts,
              static_cast<long long>((pause - outage()).count()));
  print_drafters(report);
}

TEST_F(PoolFaults, ThreeTenthsOfAllMessagesLost) {
  constexpr int kFewTokens = 60;  // each loss is waited for
  start_job({"--wait-for-draft-workers", "2", "-g", "3", "--emulate-link", "loss=0.3,seed=3"}, kFewTokens);
  BackgroundProcess first = worker("first"), second = worker("second", {"--drafter", "ngram"});
  expect_plain_text(plain(kFewTokens));
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  EXPECT_GT(metrics()["drafts"]["used"], 0);
  print_drafters(metrics());
}

// Token and block verification: the text is a function of seed, drafter and draft lengths as long as no
// drafter dies.
class PoolRules : public PoolFaults, public ::testing::WithParamInterface<const char*> {};

TEST_P(PoolRules, WorkersThatStayDraftAsOneInTheJobWould) {
  constexpr int kFewTokens = 60;
  const Arguments rule{"--rule", GetParam(), "-g", "3"};
  Arguments alone = job({"--draft-model", demo_draft()}, kFewTokens);
  alone.insert(alone.end(), rule.begin(), rule.end());
  alone.erase(alone.begin());
  const Outcome one = outrider_program(alone);
  ASSERT_TRUE(one.succeeded()) << one.describe();
  expect_whole_texts(one.out, kFewTokens);
  EXPECT_NE(one.out, plain(kFewTokens));
  Arguments pool{"--wait-for-draft-workers", "2"};
  pool.insert(pool.end(), rule.begin(), rule.end());
  start_job(pool, kFewTokens);
  BackgroundProcess first = worker("first"), second = worker("second");
  ASSERT_EQ(job_->wait(), 0) << job_->err();
  EXPECT_EQ(job_->out(), one.out);
  EXPECT_EQ(metrics()["cluster"]["workers_lost"], 0);
}

TEST_P(PoolRules, EveryTextIsWholeWhoeverComesAndGoes) {
  start_long_job({"--wait-for-draft-workers", "3", "--rule", GetParam(), "-g", "3"});
  BackgroundProcess polite = worker("polite"), killed = worker("killed"), stopped = worker("stopped");
  ASSERT_TRUE(polite.says("drafts for") && killed.says("drafts for") && stopped.says("drafts for"));
  std::this_thread::sleep_for(100ms);
  stopped.signal(SIGSTOP);
  killed.signal(SIGKILL);
  polite.signal(SIGTERM);
  BackgroundProcess successor = worker("successor"), ngram = worker("ngram", {"--drafter", "ngram"});
  EXPECT_TRUE(successor.says("drafts for")) << successor.err();
  std::this_thread::sleep_for(300ms);
  ASSERT_FALSE(job_->ended()) << "the job was too short for its faults";
  stopped.signal(SIGCONT);
  ASSERT_EQ(job_->wait(), 0) << job_->err();
  expect_whole_texts(job_->out(), kLongJobTokens);
  EXPECT_EQ(successor.wait(), 0) << successor.err();
  EXPECT_EQ(stopped.wait(), 0) << stopped.err();
  EXPECT_EQ(metrics()["requests"]["finished"]["error"], 0);
  EXPECT_GE(metrics()["cluster"]["workers_lost"], 1);
  EXPECT_GT(metrics()["rounds"]["accepted_tokens"], 100);  // busy machines miss deadlines
  print_drafters(metrics());
}

INSTANTIATE_TEST_SUITE_P(Rules, PoolRules, ::testing::Values("token", "block"),
                         [](const auto& rule) { return std::string(rule.param); });

}  // namespace
}  // namespace outrider::testing
