// Conclusions of a bench from synthetic turns with known truth.
#include "lab/bench/conclusions.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <random>
#include <thread>

namespace outrider {
namespace {

// Lengths 1, 2, ... with these true speed-ups; each rate with a noise of 3 %, besides what a turn does to
// all.
BenchResults bench_of(const std::vector<double>& truth, int turns, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> noise(0, 0.03);
  BenchResults results;
  results.policy = "ewma";
  results.runs.resize(truth.size());
  for (int turn = 0; turn < turns; ++turn) {
    const double speed = 1000 * std::exp(5 * noise(random));  // of the machine in this turn
    results.plain.rates.push_back(speed * std::exp(noise(random)));
    results.by_policy.rates.push_back(speed * std::exp(noise(random)));
    for (size_t i = 0; i < truth.size(); ++i)
      results.runs[i].rates.push_back(speed * truth[i] * std::exp(noise(random)));
  }
  for (size_t i = 0; i < truth.size(); ++i) {
    GammaResult& run = results.runs[i];
    run.gamma = static_cast<int>(i) + 1;
    std::vector<double> speedups;
    for (size_t turn = 0; turn < run.rates.size(); ++turn)
      speedups.push_back(run.rates[turn] / results.plain.rates[turn]);
    run.speedup = Spread::of(speedups);
  }
  judge(results);
  return results;
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST(Conclusions, AClearWinnerIsNamedWithItsInterval) {
  const BenchResults results = bench_of({1.2, 1.6, 1.2}, 5, 1);
  EXPECT_TRUE(results.conclusions[0].starts_with("Speculation pays: with drafts of 2 tokens it decodes 1."))
      << results.conclusions[0];
  EXPECT_TRUE(contains(results.conclusions[0], "95 % interval 1.")) << results.conclusions[0];
  EXPECT_EQ(results.conclusions[1], "Every other length is slower than 2.");
  EXPECT_TRUE(contains(results.conclusions[2], "slower.")) << results.conclusions[2];
  const std::string text = bench_tables([&] {
    BenchResults shown = results;
    shown.curve = {{1, 0.001, 1}};
    return shown;
  }());
  EXPECT_TRUE(text.starts_with(results.conclusions[0])) << "the first line says what was found: " << text;
}

TEST(Conclusions, EqualLengthsHaveNoWinner) {
  const BenchResults results = bench_of({1.5, 1.5, 1.1}, 5, 2);
  EXPECT_TRUE(contains(results.conclusions[1], "Not distinguishable from length")) << results.conclusions[1];
  EXPECT_FALSE(contains(results.conclusions[1], "3"));
}

TEST(Conclusions, OneTurnProvesNothing) {
  const BenchResults results = bench_of({3.0}, 1, 3);
  EXPECT_TRUE(contains(results.conclusions[0], "not distinguishable")) << results.conclusions[0];
  EXPECT_TRUE(contains(results.conclusions[0], "give more --repetitions")) << results.conclusions[0];
}

TEST(Conclusions, NoiseLargerThanTheEffectIsWarnedOf) {
  EXPECT_TRUE(bench_of({2.0, 3.0}, 5, 4).warnings.empty());
  const BenchResults results = bench_of({1.001, 2.0}, 5, 4);
  ASSERT_EQ(results.warnings.size(), 1u);
  EXPECT_TRUE(contains(results.warnings[0], "length 1 differs between turns")) << results.warnings[0];
}

// Where nothing is gained, a winner over plain decoding may be claimed in one of forty benches (5 %, both
// sides), and a length that beats all others as rarely.
TEST(Conclusions, FalseWinnersAreRare) {
  constexpr int kBenches = 300;
  int pays = 0, alone = 0;
  for (int i = 0; i < kBenches; ++i) {
    const BenchResults results = bench_of({1, 1, 1, 1}, 5, 100 + static_cast<uint64_t>(i));
    pays += results.conclusions[0].starts_with("Speculation pays");
    alone += results.conclusions[1].starts_with("Every other");
  }
  EXPECT_LE(pays, kBenches * 0.05);
  EXPECT_LE(alone, kBenches * 0.05);
}

TEST(Disturbances, AreToldFromTheFigures) {
  MachineResult machine{.bandwidth = {.median = 30e9, .low = 29e9, .high = 31e9}};
  EXPECT_TRUE(disturbances(machine).empty());
  machine.load = {.load_before = 2, .load_after = 3, .other_cores = 0.8, .steal_share = 0.04};
  machine.bandwidth.low = 12e9;
  const auto found = disturbances(machine);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_TRUE(contains(found[0], "0.8 cores")) << found[0];
  EXPECT_TRUE(contains(found[1], "4 %")) << found[1];
  EXPECT_TRUE(contains(found[2], "12.0 to 31.0 GB/s")) << found[2];
}

double own_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// With all cores busy, others have what we have not, whoever else works here.
TEST(LoadWatch, ItsOwnWorkIsNotThatOfOthers) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const LoadWatch watch;
  const double own_before = own_seconds();
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::jthread> threads;
  for (int i = 0; i < cores; ++i)
    threads.emplace_back([&] {
      volatile double sum = 0;
      while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(600)) sum = sum + 1;
    });
  threads.clear();
  const CpuLoad load = watch.load();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  const double own_cores = (own_seconds() - own_before) / wall.count();
  EXPECT_GT(own_cores, 0.1);
  EXPECT_GE(load.other_cores, 0);
  EXPECT_LT(load.other_cores + own_cores, cores + 0.3) << "own work was counted: " << own_cores;
  EXPECT_GE(load.steal_share, 0);
  EXPECT_LT(load.steal_share, 1);
}

}  // namespace
}  // namespace outrider
