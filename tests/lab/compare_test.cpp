// `outrider study compare`: synthetic results, then two real ones.
#include "lab/study/compare.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/support/program.h"

namespace outrider::testing {
namespace {

using nlohmann::json;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Six cells, three repeats each.
json study(double factor, uint64_t seed, const char* commit, double plain_factor = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> noise(0, 0.02);
  json cells = json::array();
  for (int gamma = 1; gamma <= 6; ++gamma) {
    json runs = json::array();
    for (int repeat = 0; repeat < 3; ++repeat) {
      const double plain = 500 * plain_factor * std::exp(noise(random));
      const double rate = 1000 * factor * std::exp(noise(random));
      runs.push_back({{"status", "ok"},
                      {"tokens_per_second", rate},
                      {"plain_tokens_per_second", plain},
                      {"speedup", rate / plain}});
    }
    runs.push_back({{"status", "failed"}, {"tokens_per_second", 0}});
    cells.push_back({{"cell", fmt::format("id{}", gamma)},
                     {"values", {{"num-speculative-tokens", std::to_string(gamma)}}},
                     {"runs", runs}});
  }
  return {{"provenance", {{"commit", commit}, {"host", "here"}}}, {"cells", cells}};
}

class Compare : public ::testing::Test {
 protected:
  Comparison compared(const json& a, const json& b) const {
    const auto one = read_results(dir_.write("a.json", a.dump()));
    const auto other = read_results(dir_.write("b.json", b.dump()));
    EXPECT_TRUE(one.ok() && other.ok());
    return compare_results(one.value(), other.value());
  }
  TemporaryDirectory dir_;
};

TEST_F(Compare, AGainIsFoundAndWhatDiffersIsTold) {
  const Comparison c = compared(study(1, 1, "old"), study(1.2, 2, "new"));
  ASSERT_EQ(c.cells.size(), 6u);
  EXPECT_TRUE(c.conclusions[0].starts_with("B is faster than A: 1.")) << c.conclusions[0];
  EXPECT_NEAR(c.rate.value, 1.2, 0.05);
  EXPECT_TRUE(c.speedup.is_above(1));
  EXPECT_FALSE(c.plain_rate.differs_from(1)) << "plain decoding is the same in both";
  EXPECT_EQ(c.differences, std::vector<std::string>{"commit: old -> new"});
  const std::string text = comparison_text(c);
  EXPECT_TRUE(text.starts_with(c.conclusions[0])) << text;
  EXPECT_TRUE(contains(text, "| num-speculative-tokens 6 | 1.")) << text;
}

TEST_F(Compare, EqualResultsAreNotDistinguishable) {
  int alarms = 0;
  constexpr int kPairs = 40;
  for (uint64_t seed = 0; seed < kPairs; ++seed)
    alarms += compared(study(1, 2 * seed + 10, "x"), study(1, 2 * seed + 11, "x")).rate.differs_from(1);
  EXPECT_LE(alarms, 6) << "5 % of 40 are 2, with a deviation of 1.4";
}

TEST_F(Compare, AFasterMachineIsToldByPlainDecoding) {
  const Comparison c = compared(study(1, 1, "x"), study(1.3, 2, "x", 1.3));
  EXPECT_TRUE(c.rate.is_above(1));
  EXPECT_FALSE(c.speedup.differs_from(1));
  EXPECT_TRUE(contains(c.conclusions[2], "the machine or the engine changed")) << c.conclusions[2];
}

TEST_F(Compare, CellsOfOneSideAreNamedAndOtherModelsAreMatchedByName) {
  json b = study(1, 2, "x");
  b["cells"].erase(5);
  EXPECT_EQ(compared(study(1, 1, "x"), b).only_a, std::vector<std::string>{"num-speculative-tokens 6"});
  for (json& cell : b["cells"]) cell["cell"] = "other " + cell["cell"].get<std::string>();
  const Comparison c = compared(study(1, 1, "x"), b);
  EXPECT_TRUE(c.by_name);
  EXPECT_EQ(c.cells.size(), 5u);
}

TEST_F(Compare, WhatIsNoResultIsRefusedByName) {
  EXPECT_TRUE(contains(read_results(dir_ / "absent").status().message(), "absent: cannot be read"));
  EXPECT_TRUE(contains(read_results(dir_.write("x.json", "{}")).status().message(), "holds no results"));
  EXPECT_FALSE(read_results(dir_.write("y.json", "{\"cells\": 3}")).ok());
  const Outcome run = outrider_program({"study", "compare", dir_ / "absent", dir_ / "absent"});
  EXPECT_EQ(run.code, 2) << run.describe();
  EXPECT_TRUE(contains(outrider_program({"study"}).err, "outrider study compare"));
}

TEST_F(Compare, TwoStudiesAndTwoBenchesOfThisProgram) {
  const std::string file = dir_.write(
      "s.toml",
      fmt::format("repeats = 2\n[base]\nmodel = '{}'\ndraft-model = '{}'\nprompt = 'Once'\n"
                  "max-tokens = 12\ncompare-plain = true\n[sweep]\nnum-speculative-tokens = [1, 2]\n",
                  demo_target().string(), demo_draft().string()));
  for (const char* out : {"a", "b"}) {
    const Outcome ran = outrider_program({"study", file, "--output", dir_ / out});
    ASSERT_EQ(ran.code, 0) << ran.describe();
    EXPECT_TRUE(contains(ran.out, "fastest")) << "the first line says what was found: " << ran.out;
    const json result = json::parse(read_file(std::filesystem::path(dir_ / out) / "study.json"));
    for (const char* key :
         {"version", "commit", "host", "cores", "isa", "date", "command_line", "load", "seeds"})
      EXPECT_TRUE(result["provenance"].contains(key)) << key;
    EXPECT_GT(result["cells"][0]["runs"][0]["read_bandwidth_bytes_per_s"].get<double>(), 1e8);
    EXPECT_GT(result["cells"][0]["summary"]["acceptance"]["of_tokens"].get<int>(), 0);
  }
  const Outcome again = outrider_program({"study", file, "--output", dir_ / "a", "--dry-run"});
  EXPECT_TRUE(contains(again.out, "All runs are in ")) << again.out;
  const Outcome run =
      outrider_program({"study", "compare", dir_ / "a", dir_ / "b", "--report", dir_ / "c.json"});
  ASSERT_EQ(run.code, 0) << run.describe();
  const json compared = json::parse(read_file(dir_ / "c.json"));
  EXPECT_EQ(compared["cells"].size(), 2u);
  EXPECT_TRUE(compared["differences"].empty() ||
              compared["differences"].dump().find("commit") == std::string::npos);

  const std::string bench = dir_ / "bench.json";
  ASSERT_TRUE(outrider_program({"bench", "-q", "--repetitions", "2", "--max-tokens", "24", "--gammas", "1,3",
                                "--report", bench})
                  .succeeded());
  const Outcome same = outrider_program({"study", "compare", bench, bench});
  ASSERT_EQ(same.code, 0) << same.describe();
  EXPECT_TRUE(contains(same.out, "not distinguishable")) << same.out;
  EXPECT_TRUE(contains(same.out, "| gamma 3 | 1.00")) << same.out;
}

}  // namespace
}  // namespace outrider::testing
