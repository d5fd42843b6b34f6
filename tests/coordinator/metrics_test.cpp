#include "coordinator/metrics/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

namespace outrider {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// The worked example of the published definition: K = 4, accepted 4, 2, 0.
TEST(RoundSums, AcceptanceIsPerTestedTokenAndUtilisationPerDrafted) {
  RoundSums sums;
  for (const int32_t accepted : {4, 2, 0}) sums.add_round(4, accepted, accepted + 1, false);
  EXPECT_DOUBLE_EQ(sums.tokens_per_round(), 3.0);
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
  EXPECT_DOUBLE_EQ(sums.tokens_per_round(), 2.0);
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

// A tree of 6 nodes in 2 levels is rolled back where no node of a level is right, not for its other branches.
TEST(RoundSums, AnAcceptedBranchOfATreeIsNoRollback) {
  RoundSums sums;
  sums.add_round(6, 2, 3, false, 2);
  EXPECT_EQ(sums.rollbacks, 0);
  EXPECT_EQ(sums.rolled_back_tokens, 4);
  sums.add_round(6, 1, 2, false, 2);
  EXPECT_EQ(sums.rollbacks, 1);
  EXPECT_EQ(sums.rolled_back_tokens, 9);
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

// Two requests at once, a pause of a minute, and a refused one.
TEST(Totals, SpeedLeavesTimesWithoutARequestOut) {
  using std::chrono::seconds;
  const Clock::time_point begin{};
  Totals totals;
  totals.count_submitted(begin);
  totals.count_submitted(begin + seconds(1));
  totals.count_finished(FinishReason::kLength, begin + seconds(2));
  EXPECT_DOUBLE_EQ(totals.busy_seconds(), 2);
  totals.count_finished(FinishReason::kStop, begin + seconds(3));
  totals.count_submitted(begin + seconds(63));
  totals.count_finished(FinishReason::kError, begin + seconds(64));
  totals.rounds.emitted = 40;
  EXPECT_DOUBLE_EQ(totals.wall_seconds(), 64);
  EXPECT_DOUBLE_EQ(totals.busy_seconds(), 4);
  nlohmann::json report;
  fill_json(totals, report);
  EXPECT_DOUBLE_EQ(report["tokens_per_second"].get<double>(), 10);
}

// The sample that a percentile means, from the samples themselves.
double exact_percentile(std::vector<int64_t> samples, double q) {
  std::sort(samples.begin(), samples.end());
  const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(samples.size()) - 1e-9));
  return static_cast<double>(samples[std::max<size_t>(rank, 1) - 1]);
}

constexpr double kQuantiles[] = {0, 0.01, 0.07, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1};

TEST(DurationHistogram, PercentilesAreWithinHalfAClassOfTheSample) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> octave(0, 44);  // 1 ns to 5 hours
  for (const size_t count : {1, 2, 3, 100, 700, 20'000}) {
    DurationHistogram histogram;
    std::vector<int64_t> samples;
    for (size_t i = 0; i < count; ++i) {
      samples.push_back(static_cast<int64_t>(std::exp2(octave(random))));
      histogram.add(nanoseconds(samples.back()));
    }
    for (const double q : kQuantiles) {
      const double exact = exact_percentile(samples, q);
      EXPECT_NEAR(histogram.percentile_ns(q), exact, 0.004 * exact) << q << " of " << count;
    }
  }
}

TEST(DurationHistogram, ShortDurationsAreExact) {
  DurationHistogram histogram;
  std::vector<int64_t> samples;
  for (int i = 0; i < 256; ++i) {
    samples.push_back(i * 77 % 256);
    histogram.add(nanoseconds(samples.back()));
  }
  for (const double q : kQuantiles) EXPECT_EQ(histogram.percentile_ns(q), exact_percentile(samples, q)) << q;
  EXPECT_EQ(histogram.count_up_to(nanoseconds(99)), 100);
}

TEST(DurationHistogram, ARankIsAWholeNumberDespiteRounding) {
  DurationHistogram histogram;
  for (int i = 1; i <= 100; ++i) histogram.add(nanoseconds(i));
  for (int percent = 1; percent <= 100; ++percent)
    EXPECT_EQ(histogram.percentile_ns(percent / 100.0), percent) << "0.07 * 100 is above 7 in binary";
}

TEST(DurationHistogram, SumsOfHistogramsAreThoseOfAllSamples) {
  DurationHistogram low, high, all;
  for (int i = 1; i <= 1000; ++i) {
    low.add(std::chrono::microseconds(i));
    high.add(milliseconds(i));
    all.add(std::chrono::microseconds(i));
    all.add(milliseconds(i));
  }
  DurationHistogram up = low, down = high, empty;
  up.add(high);
  down.add(low);
  empty.add(all);
  for (const double q : kQuantiles)
    for (const DurationHistogram& sum : {up, down, empty})
      EXPECT_EQ(sum.percentile_ns(q), all.percentile_ns(q)) << q;
  for (const int ms : {0, 1, 30, 2000})
    EXPECT_EQ(up.count_up_to(milliseconds(ms)), all.count_up_to(milliseconds(ms))) << ms;
}

TEST(DurationHistogram, CountsUpToABound) {
  DurationHistogram histogram;
  for (int i = 0; i <= 1000; ++i) histogram.add(milliseconds(i));
  EXPECT_EQ(histogram.count_up_to(nanoseconds(-1)), 0);
  EXPECT_EQ(histogram.count_up_to(nanoseconds(0)), 1);
  for (const int ms : {1, 10, 100, 999})
    EXPECT_NEAR(static_cast<double>(histogram.count_up_to(milliseconds(ms))), ms + 1, 0.008 * ms) << ms;
  EXPECT_EQ(histogram.count_up_to(milliseconds(5000)), 1001);
}

TEST(DurationHistogram, TheLongestAndTheNegativeHaveTheirPlace) {
  DurationHistogram histogram;
  histogram.add(nanoseconds(-5));
  EXPECT_EQ(histogram.percentile_ns(1), 0);
  EXPECT_EQ(histogram.mean_ns(), 0);
  histogram.add(std::chrono::hours(1000));
  histogram.add(nanoseconds::max());
  EXPECT_NEAR(histogram.percentile_ns(1), 19.5 * 3600e9, 0.1 * 3600e9) << "the last class";
  EXPECT_EQ(histogram.count(), 3);
}

TEST(DurationHistogram, ZerosCount) {
  DurationHistogram histogram;
  EXPECT_EQ(histogram.percentile_ns(0.5), 0);
  for (int i = 0; i < 6; ++i) histogram.add(nanoseconds(0));
  for (int i = 0; i < 4; ++i) histogram.add(milliseconds(1));
  EXPECT_EQ(histogram.percentile_ns(0.5), 0);
  EXPECT_NEAR(histogram.percentile_ns(0.95), 1e6, 4e3);
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
  EXPECT_NEAR(metrics.bursts.percentile_ns(0.5), 20e6, 8e4);
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
