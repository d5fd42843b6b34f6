#include "coordinator/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// The worked example of the published definition: K = 4, accepted 4, 2, 0.
TEST(RoundSums, AcceptanceIsPerTestedTokenAndUtilisationPerDrafted) {
  RoundSums sums;
  for (const int32_t accepted : {4, 2, 0}) sums.add_round(4, accepted, accepted + 1, false);
  EXPECT_DOUBLE_EQ(sums.tokens_per_pass(), 3.0);
  EXPECT_DOUBLE_EQ(sums.acceptance(), 0.75);
  EXPECT_DOUBLE_EQ(sums.utilisation(), 0.5);
  EXPECT_EQ(sums.rollbacks, 2);
  EXPECT_EQ(sums.rolled_back_tokens, 6);
}

TEST(RoundSums, PlainRoundsCountForPassesButNotForBlockEfficiency) {
  RoundSums sums;
  sums.add_round(0, 0, 1, true);
  sums.add_round(0, 0, 1, false);
  sums.add_round(3, 3, 4, false);
  EXPECT_DOUBLE_EQ(sums.tokens_per_pass(), 2.0);
  EXPECT_DOUBLE_EQ(sums.block_efficiency(), 4.0);
  EXPECT_EQ(sums.g0_rounds, 2);
  EXPECT_EQ(sums.first_rounds, 1);
  EXPECT_EQ(sums.gamma_histogram, (std::vector<int64_t>{2, 0, 0, 1}));
  EXPECT_EQ(sums.accepted_histogram, (std::vector<int64_t>{2, 0, 0, 1}));
}

// Position i is tested only where all before it were accepted.
TEST(RoundSums, PositionAcceptance) {
  RoundSums sums;
  sums.add_round(3, 3, 4, false);
  sums.add_round(3, 1, 2, false);
  sums.add_round(1, 0, 1, false);
  EXPECT_EQ(sums.position_tested, (std::vector<int64_t>{3, 2, 1}));
  EXPECT_EQ(sums.position_accepted, (std::vector<int64_t>{2, 1, 1}));
}

TEST(RoundSums, AddIsTheSumOfParts) {
  RoundSums a, b, both;
  a.add_round(2, 1, 2, false);
  b.add_round(5, 5, 6, false);
  both.add_round(2, 1, 2, false);
  both.add_round(5, 5, 6, false);
  a.add(b);
  EXPECT_EQ(a.gamma_histogram, both.gamma_histogram);
  EXPECT_EQ(a.tested, both.tested);
  EXPECT_EQ(a.burst_histogram, both.burst_histogram);
  EXPECT_DOUBLE_EQ(a.acceptance(), both.acceptance());
}

TEST(Totals, OfSeveralGroupsHoldTheirDraftersToo) {
  Totals a, b;
  a.workers_left = 1, b.workers_left = 2;
  a.sequences_moved = 3, b.sequences_moved = 4;
  a.drafters[7] = {.name = "model", .joined = 1, .rounds = 10, .accepted = 20, .round_seconds = 0.5};
  b.drafters[7] = {.name = "model", .joined = 2, .rounds = 5, .accepted = 6, .round_seconds = 0.25};
  b.drafters[9] = {.name = "ngram", .joined = 1};
  a.add(b);
  EXPECT_EQ(a.workers_left, 3);
  EXPECT_EQ(a.sequences_moved, 7);
  EXPECT_EQ(a.drafters.at(7).joined, 3);
  EXPECT_EQ(a.drafters.at(7).rounds, 15);
  EXPECT_EQ(a.drafters.at(7).accepted, 26);
  EXPECT_EQ(a.drafters.at(7).round_seconds, 0.75);
  EXPECT_EQ(a.drafters.at(9).name, "ngram");
}

TEST(DurationHistogram, PercentilesAreWithinABucket) {
  DurationHistogram histogram;
  for (int i = 1; i <= 1000; ++i) histogram.add(std::chrono::microseconds(i));
  EXPECT_NEAR(histogram.percentile_ns(0.50), 500e3, 0.05 * 500e3);  // buckets are 4.4 % wide
  EXPECT_NEAR(histogram.percentile_ns(0.99), 990e3, 0.05 * 990e3);
  EXPECT_DOUBLE_EQ(histogram.mean_ns(), 500.5e3);
}

TEST(DurationHistogram, ZerosCount) {
  DurationHistogram histogram;
  EXPECT_EQ(histogram.percentile_ns(0.5), 0);
  for (int i = 0; i < 6; ++i) histogram.add(nanoseconds(0));
  for (int i = 0; i < 4; ++i) histogram.add(milliseconds(1));
  EXPECT_EQ(histogram.percentile_ns(0.5), 0);
  EXPECT_NEAR(histogram.percentile_ns(0.95), 1e6, 5e4);
}

TEST(DurationHistogram, BurstsShowInTheVariation) {
  DurationHistogram even, bursts;
  for (int i = 0; i < 12; ++i) even.add(milliseconds(2));
  for (int i = 0; i < 4; ++i) {  // the same rate, three tokens at a time
    bursts.add(milliseconds(6));
    bursts.add(nanoseconds(0));
    bursts.add(nanoseconds(0));
  }
  EXPECT_NEAR(even.coefficient_of_variation(), 0, 1e-6);
  EXPECT_NEAR(bursts.coefficient_of_variation(), std::sqrt(2.0), 1e-9);
  even.add(bursts);
  EXPECT_NEAR(even.coefficient_of_variation(), 1, 1e-9);
  EXPECT_EQ(DurationHistogram().coefficient_of_variation(), 0);
}

TEST(RoundSums, BurstPercentiles) {
  RoundSums sums;
  for (int i = 0; i < 98; ++i) sums.add_round(4, 1, 2, false);
  for (int i = 0; i < 2; ++i) sums.add_round(4, 4, 5, false);
  EXPECT_EQ(sums.burst_percentile(0.5), 2);
  EXPECT_EQ(sums.burst_percentile(0.98), 2);
  EXPECT_EQ(sums.burst_percentile(0.99), 5);
  EXPECT_EQ(RoundSums().burst_percentile(0.99), 0);
}

TEST(RequestMetrics, GapsInsideABurstAreZero) {
  RequestMetrics metrics;
  Clock::time_point now{};
  metrics.submitted_at = now;
  metrics.tokens_emitted(1, now + milliseconds(10));
  metrics.tokens_emitted(3, now + milliseconds(30));
  EXPECT_DOUBLE_EQ(metrics.ttft_ms(), 10);
  EXPECT_EQ(metrics.gaps.count(), 3);
  EXPECT_EQ(metrics.gaps.percentile_ns(0.5), 0);
  EXPECT_EQ(metrics.bursts.count(), 1);
  EXPECT_NEAR(metrics.bursts.percentile_ns(0.5), 20e6, 1e6);
}

TEST(Metrics, JsonNamesDropsAndBytes) {
  Totals totals;
  totals.rounds.add_round(4, 3, 4, false);
  totals.drafts_dropped[static_cast<size_t>(DropReason::kStaleEpoch)] = 2;
  TransportStats stats;
  stats.received_bytes[8] = 300;  // draft
  stats.received_messages[8] = 1;
  nlohmann::json report, wire;
  fill_json(totals, report);
  fill_json(stats, totals, wire);
  EXPECT_EQ(report["drafts"]["dropped"]["stale_epoch"], 2);
  EXPECT_DOUBLE_EQ(report["rounds"]["acceptance_rate"], 0.75);
  EXPECT_DOUBLE_EQ(wire["kinds"]["draft"]["bytes_per_accepted_token"], 100);
  EXPECT_DOUBLE_EQ(wire["bytes_per_emitted_token"], 75);
  EXPECT_FALSE(wire["kinds"].contains("hello"));
}

}  // namespace
}  // namespace outrider
