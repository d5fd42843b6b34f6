// The parts of `outrider bench`.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lab/bench/machine.h"
#include "lab/bench/results.h"

namespace outrider {
namespace {

// Leviathan et al. 2023: (1 - 0.8^6) / 0.2 = 3.689 tokens in a round of 1.5 plain steps.
TEST(Prediction, IsTokensPerRoundOverItsCost) {
  EXPECT_NEAR(predicted_speedup(0.8, 5, 1.5, 1.0), 3.68928 / 1.5, 1e-9);
  EXPECT_NEAR(predicted_speedup(1.0, 5, 2.0, 1.0), 3.0, 1e-9);
  EXPECT_EQ(predicted_speedup(0.8, 5, 0, 1.0), 0);
}

TEST(RunTimes, TheMedianOverheadAndTheRate) {
  RunTimes times;
  for (const double transfer : {1.0, 2.0, 9.0})
    times.rounds.push_back({.transfer = transfer, .idle = 1, .wall = transfer + 1});
  times.sums.emitted = 30;
  times.seconds = 15;
  EXPECT_EQ(times.median_overhead(), 3);
  EXPECT_EQ(times.tokens_per_second(), 2);
}

TEST(Machine, ReadsMemoryAndKnowsItsPeak) {
  ReadProbe probe(2);
  EXPECT_GT(probe.measure(), 1e8);
  EXPECT_GT(probe.measure(), 1e8);
  probe.release();
  reset_peak_memory();
  const int64_t before = peak_memory_bytes();
  ASSERT_GT(before, 0);
  std::vector<char> much(size_t{300} << 20, 1);
  EXPECT_GE(peak_memory_bytes() - before, int64_t{200} << 20);
  EXPECT_EQ(much.back(), 1);
}

TEST(BenchResults, TheBestRunIsTheOneShown) {
  BenchResults results;
  results.curve = {{1, 0.001, 1}};
  results.weight_bytes = 1;
  for (const double speedup : {1.1, 1.7, 1.4}) {
    GammaResult run{.gamma = static_cast<int>(results.runs.size()) + 1};
    run.speedup.median = speedup;
    run.round.draft = speedup;
    results.runs.push_back(run);
  }
  EXPECT_EQ(results.best().gamma, 2);
  const nlohmann::json json = bench_json(results);
  EXPECT_EQ(json["best_gamma"], 2);
  EXPECT_EQ(json["round_seconds"]["draft"], 1.7);
  EXPECT_NE(bench_csv(results).find("runs.1.speedup,1.7\n"), std::string::npos);
  EXPECT_NE(bench_tables(results).find("| 2 | 0.000 (0) |"), std::string::npos);
}

// A device reads its own memory: nothing is said of the host's.
TEST(BenchResults, OnADeviceTheHostsMemoryIsNotTheMeasure) {
  BenchResults results;
  results.curve = {{1, 0.004, 1}};
  results.runs.emplace_back();
  results.machine.isa = "cuda sm_90";
  results.plain.tokens_per_second.median = 200;
  results.decode_bytes_per_token = 15e9;
  const std::string tables = bench_tables(results);
  EXPECT_NE(tables.find("200.0 tokens/s, 3000.0 GB/s of weights and KV"), std::string::npos) << tables;
  EXPECT_EQ(tables.find("read bandwidth"), std::string::npos);
  const nlohmann::json json = bench_json(results);
  EXPECT_EQ(json["machine"]["isa"], "cuda sm_90");
  EXPECT_FALSE(json["decode"].contains("bandwidth_share"));
  EXPECT_FALSE(json.contains("peak_memory_bytes"));
  results.machine.bandwidth.median = 33e9;
  EXPECT_TRUE(bench_json(results)["machine"].contains("read_bandwidth_bytes_per_s"));
}

TEST(BenchParts, ATimeBelowTheDigitsIsNoNegativeZero) {
  EXPECT_EQ(fmt::format("{:.3f}", shown_ms(-4e-7)), "0.000");
  EXPECT_EQ(fmt::format("{:.3f}", shown_ms(-6e-7)), "-0.001");
  EXPECT_EQ(fmt::format("{:.3f}", shown_ms(0.0012)), "1.200");
}

}  // namespace
}  // namespace outrider
