// `outrider simulate` as a user runs it: impossible numbers are refused, and the costs of a real run are
// used.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

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
      {"grid", "--acceptance", "1.5"}, {"grid", "--seeds", "1"},
      {"grid", "--per-row", "nan"},    {"run", "--report", "/no/such/directory/r.json"},
      {"plan", "--report", "/tmp"},    {"run", "--draft-placement", "elsewhere"},
      {"plan", "--slo", "ttft=fast"},  {"plan", "--objective", "both"},
      {"run", "--arrivals", "closed"},
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

// Every row of a plan names a run; the run says what the row says, to the last digit.
TEST(SimulateCommand, EveryRowOfAPlanIsWhatItsRunSays) {
  const TemporaryDirectory dir;
  const Outcome planned =
      outrider_program({"simulate", "plan", "--devices", "4", "--model", "8b", "--arrivals", "closed:12",
                        "--requests", "24", "--output-tokens", "48", "--report", dir / "plan.json"});
  ASSERT_EQ(planned.code, 0) << planned.describe();
  const auto plan = nlohmann::json::parse(read_file(dir / "plan.json"));
  std::set<std::string> placements;
  size_t compared = 0, of_several_groups = 0, shared_unevenly = 0;
  for (const auto& row : plan["ranking"]) {
    const int groups = row["groups"], drafters = row["drafters"];
    of_several_groups += groups > 1;
    shared_unevenly += drafters > 0 && groups % drafters != 0;
    // One of each layout, the front, and some of the rest.
    const bool is_new = placements.insert(row["layout"].get<std::string>()).second;
    if (!is_new && !row["on_front"].get<bool>() && compared % 8 != 0) continue;
    ++compared;
    Arguments arguments{"simulate", "run", "--report", dir / "run.json"};
    for (const auto& argument : row["arguments"]) arguments.push_back(argument.get<std::string>());
    const Outcome run = outrider_program(arguments);
    ASSERT_EQ(run.code, 0) << run.describe();
    const auto report = nlohmann::json::parse(read_file(dir / "run.json"));
    for (const auto& [name, figure] : report["figures"].items())
      EXPECT_EQ(row[name], figure) << name << " " << row["command"];
    EXPECT_EQ(row["devices"], report["devices"]) << row["command"];
    if (row.contains("tokens_per_second_over_seeds")) {
      EXPECT_LE(row["tokens_per_second_over_seeds"]["low"], row["tokens_per_second"]);
      EXPECT_GE(row["tokens_per_second_over_seeds"]["high"], row["tokens_per_second"]);
    }
  }
  EXPECT_GE(placements.size(), 10u);
  EXPECT_GT(of_several_groups, 10u);
  EXPECT_GT(shared_unevenly, 0u);
}

TEST(SimulateCommand, PagesAndFiguresAreWrittenTogether) {
  const TemporaryDirectory dir;
  const std::vector<Arguments> kCommands = {
      {"run", "--requests", "2", "--output-tokens", "20"},
      {"trees"},
      {"theory"},
      {"grid", "--policies", "ewma", "--acceptance", "0.8", "--draft-cost", "0.1", "--batch", "1", "--tokens",
       "256", "--quiet"},
      {"plan", "--devices", "1", "--model", "8b", "--requests", "4", "--output-tokens", "16", "--arrivals",
       "closed:2", "--quiet"}};
  for (Arguments arguments : kCommands) {
    const std::string name = arguments.front();
    arguments.insert(arguments.begin(), "simulate");
    arguments.insert(arguments.end(), {"--report", dir / (name + ".json"), "--html", dir / (name + ".html")});
    const Outcome run = outrider_program(arguments);
    ASSERT_EQ(run.code, 0) << run.describe();
    EXPECT_TRUE(nlohmann::json::parse(read_file(dir / (name + ".json"))).is_object()) << name;
    const std::string page = read_file(dir / (name + ".html"));
    EXPECT_NE(page.find("</html>"), std::string::npos) << name;
    EXPECT_EQ(page.find("<svg") == std::string::npos, name == "run") << name;
  }
}

// Where a second row costs nearly a pass, no draft pays; where the target is far and rows are cheap, long
// ones do.
TEST(SimulateCommand, AGridHasMeasuredCostsOfRows) {
  const TemporaryDirectory dir;
  const auto over_plain = [&](const Arguments& costs) {
    Arguments arguments{"simulate", "grid", "--policies", "fixed:gamma=6", "--acceptance", "0.8",
                        "--batch",  "1",    "--tokens",   "256",           "--draft-cost", "0.1",
                        "--seeds",  "2",    "--quiet",    "--report",      dir / "r.json"};
    arguments.insert(arguments.end(), costs.begin(), costs.end());
    const Outcome run = outrider_program(arguments);
    EXPECT_EQ(run.code, 0) << run.describe();
    return nlohmann::json::parse(read_file(dir / "r.json"))["policies"][0]["worst_over_plain"].get<double>();
  };
  EXPECT_LT(over_plain({"--row-costs", "2=1.9", "9=8"}), 0.7);
  EXPECT_GT(over_plain({"--row-costs", "2=1.1", "9=1.5"}), 1.6);
  EXPECT_GT(over_plain({"--row-costs", "2=1.1", "9=1.5", "--target-delay", "20"}), 3);
  EXPECT_LT(over_plain({"--row-costs", "2=1.1", "9=1.5", "--one-device"}), 3);
  EXPECT_EQ(outrider_program({"simulate", "grid", "--row-costs", "1.1"}).code, 2);
  EXPECT_EQ(outrider_program({"simulate", "grid", "--row-costs", "2=1.1", "--per-row", "0.1"}).code, 2);
}

TEST(SimulateCommand, FlagsComeFromAFileAndSourcesAreTold) {
  const TemporaryDirectory dir;
  const std::string file = dir.write("c.toml", "[run]\nrequests = 3\noutput-tokens = 20\n");
  const Outcome run = outrider_program({"simulate", "run", "--config", file, "--output-tokens", "30"});
  EXPECT_EQ(run.code, 0) << run.describe();
  EXPECT_EQ(run.out.rfind("90 tokens in", 0), 0u) << run.out;
  EXPECT_NE(run.out.find("Assumed: target pass: 20 ms, 0.1 ms of it for each row (default of --target-ms)"),
            std::string::npos)
      << run.out;
  const Outcome data_sheet = outrider_program(
      {"simulate", "run", "--config", file, "--hardware", "h100:8b", "--draft-placement", "heads"});
  EXPECT_NE(data_sheet.out.find("From data sheets: h100 memory bandwidth: 3350 GB/s (NVIDIA H100"),
            std::string::npos)
      << data_sheet.out;
  const Outcome misspelt = outrider_program({"simulate", "run", "--draft-placemnt", "own"});
  EXPECT_EQ(misspelt.code, 2);
  EXPECT_NE(misspelt.err.find("did you mean --draft-placement?"), std::string::npos) << misspelt.err;
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
