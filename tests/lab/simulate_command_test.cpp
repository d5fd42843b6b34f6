// `outrider simulate` from outside: numbers that cannot be, and costs of a real run.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/program.h"

namespace outrider::testing {
namespace {

using Arguments = std::vector<std::string>;

TEST(SimulateCommand, RefusesNumbersThatCannotBe) {
  const std::vector<Arguments> kBad = {
      {"run", "--delay-ms", "nan"},    {"run", "--delay-ms", "inf"},
      {"run", "--gbit", "nan"},        {"run", "--target-ms", "nan"},
      {"run", "--target-ms", "1e300"}, {"run", "--draft-ms", "-1"},
      {"run", "--target-row-ms", "x"}, {"run", "--arrivals", "poisson:1e-300"},
      {"plan", "--delay-ms", "nan"},   {"plan", "--gbit", "-1"},
      {"grid", "--draft-cost", "nan"}, {"grid", "--batch", "0"},
      {"grid", "--per-row", "nan"},    {"run", "--report", "/no/such/directory/r.json"},
      {"plan", "--report", "/tmp"},
  };
  for (Arguments arguments : kBad) {
    const std::string flag = arguments[1].substr(2), value = arguments[2];
    arguments.insert(arguments.begin(), "simulate");
    const Outcome run = outrider_program(arguments, {.limit = std::chrono::seconds(20)});
    EXPECT_EQ(run.code, 2) << run.describe();
    EXPECT_EQ(run.out, "") << run.describe();
    EXPECT_NE(run.err.find(flag), std::string::npos) << run.describe();
    EXPECT_NE(run.err.find(value), std::string::npos) << run.describe();
  }
}

TEST(SimulateCommand, ADelayComesOnTopOfMeasuredCosts) {
  const TemporaryDirectory dir;
  ASSERT_TRUE(generate({"--prompt", "Once", "--max-tokens", "40", "--ignore-eos", "--draft-model",
                        demo_draft(), "-g", "3", "--report", dir / "real.json"})
                  .succeeded());
  const auto seconds = [&](const std::string& delay_ms) {
    const Outcome run =
        outrider_program({"simulate", "run", "--costs", dir / "real.json", "--delay-ms", delay_ms,
                          "--gamma-policy", "fixed:gamma=3", "--requests", "1", "--report", dir / "s.json"});
    EXPECT_EQ(run.code, 0) << run.describe();
    return nlohmann::json::parse(read_file(dir / "s.json"))["simulated_seconds"].get<double>();
  };
  // 256 tokens in rounds of at most 4, each 0.1 s longer.
  EXPECT_GT(seconds("50"), seconds("0") + 5);
}

TEST(SimulateCommand, ReplaySaysWhatIsNoRecord) {
  const TemporaryDirectory dir;
  const Outcome run = outrider_program({"simulate", "replay", dir.write("r.jsonl", "{\"a\": \n")});
  EXPECT_EQ(run.code, 2);
  EXPECT_NE(run.err.find("r.jsonl:1: not a record of rounds"), std::string::npos) << run.describe();
  EXPECT_EQ(run.err.find("json.exception"), std::string::npos) << run.describe();
}

}  // namespace
}  // namespace outrider::testing
