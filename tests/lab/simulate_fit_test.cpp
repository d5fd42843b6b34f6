// `simulate fit`: its least squares against those of other code, and the files it reads in their published
// form.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "lab/report/html.h"
#include "lab/simulate/fit.h"
#include "lab/simulate/measured_costs.h"
#include "lab/simulate/pages.h"
#include "tests/support/source_dir.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

using nlohmann::json;

TEST(Fit, LeastSquaresAsOthersSolveIt) {
  std::ifstream file(source_dir() / "tests/vectors/simulate.json");
  for (const json& c : json::parse(file)["fits"]) {
    std::vector<PassSample> samples;
    for (const json& s : c["samples"]) samples.push_back({s["rows"], s["context"], s["seconds"]});
    const PassFit fit = fit_pass(samples);
    EXPECT_NEAR(fit.cost.base / c["base"].get<double>(), 1, 1e-6);
    EXPECT_NEAR(fit.cost.per_row / c["per_row"].get<double>(), 1, 1e-6);
    EXPECT_NEAR(fit.cost.per_context, c["per_context"].get<double>(), 1e-12);
    EXPECT_EQ(fit.samples, samples.size());
    EXPECT_LT(fit.worst_error, 0.06) << "of noise of 2 %";
    EXPECT_LE(fit.mean_error, fit.worst_error);
  }
}

TEST(Fit, WhatTheTimingsDoNotTellIsLeftOutAndSaid) {
  const PassFit one = fit_pass({{1, 64, 0.010}, {1, 64, 0.012}});
  EXPECT_NEAR(one.cost.base, 0.011, 1e-12);
  EXPECT_EQ(one.cost.per_row, 0);
  ASSERT_EQ(one.left_out.size(), 2u);
  EXPECT_NE(one.left_out[0].find("that of the 64 tokens"), std::string::npos);
  // Passes that get faster with rows: no slope is believed.
  EXPECT_EQ(fit_pass({{1, 0, 0.012}, {8, 0, 0.010}}).cost.per_row, 0);
  EXPECT_EQ(fit_pass({}).samples, 0u);
}

TEST(Fit, LinksHaveADelayAndWhereSizesDifferABandwidth) {
  const LinkFit line = fit_link({{1000, 0.002 + 1e-6}, {100'000, 0.002 + 1e-4}, {1'000'000, 0.002 + 1e-3}});
  EXPECT_NEAR(line.delay_s, 0.001, 1e-9);
  EXPECT_NEAR(line.bytes_per_second, 1e9, 1);
  const LinkFit one = fit_link({{500, 0.0004}, {500, 0.0006}});
  EXPECT_NEAR(one.delay_s, 0.00025, 1e-12);
  EXPECT_EQ(one.bytes_per_second, 0);
}

json bench_report() {
  json curve = json::array();
  for (const int rows : {1, 2, 4, 8}) curve.push_back({{"rows", rows}, {"seconds", 0.004 + 1e-4 * rows}});
  return {{"target", "t"},
          {"draft", "d"},
          {"context", 100},
          {"verify_curve", curve},
          {"draft_step_seconds", 3e-4},
          {"runs", json::array({{{"gamma", 1}, {"round_seconds", {{"transfer", 8e-5}}}},
                                {{"gamma", 4}, {"round_seconds", {{"transfer", 1.2e-4}}}}})}};
}

TEST(Fit, AFileOfTheBenchBecomesCostsOfTheSimulator) {
  const TemporaryDirectory dir;
  Timings timings;
  ASSERT_TRUE(read_timings(dir.write("bench.json", bench_report().dump()), "", "", timings).ok());
  const CostFit fit = fit_costs(timings).value();
  json out;
  fill_json(fit, out);
  const MeasuredCosts costs = measured_costs(dir.write("costs.json", out.dump())).value();
  EXPECT_NEAR(costs.job.target.seconds(4, 0), 0.0044, 1e-9);
  // The report itself says the same.
  const auto at_once = measured_costs(dir.write("report.json", bench_report().dump()));
  ASSERT_TRUE(at_once.ok()) << at_once.status().message();
  EXPECT_EQ(at_once->job.target.seconds(4, 0), costs.job.target.seconds(4, 0));
  EXPECT_NEAR(costs.job.draft.seconds(1, 0), 3e-4, 1e-9);
  EXPECT_NEAR(costs.job.draft_link.delay_s, 5e-5, 1e-12);
  ASSERT_FALSE(costs.sources.empty());
  EXPECT_EQ(costs.sources.front().kind, CostSource::Kind::kFitted);
  bool assumes = false;
  for (const CostSource& source : costs.sources) assumes |= source.kind == CostSource::Kind::kAssumption;
  EXPECT_TRUE(assumes) << "one context does not tell what context costs";
  const std::string page = report::html_page(fit_page(timings, fit));
  EXPECT_NE(page.find("A draft token costs 0.0"), std::string::npos);
  EXPECT_NE(page.find("The draft has 1 timing: too few"), std::string::npos) << "a warning";
  EXPECT_NE(page.find("context costs nothing beyond"), std::string::npos);
}

TEST(Fit, AGpuSuiteHasManyModels) {
  json steps = json::array();
  for (const char* model : {"8B bf16", "1B bf16"})
    for (const double context : {128.0, 2048.0})
      for (const int rows : {1, 4, 16})
        steps.push_back({{"model", model},
                         {"rows", rows},
                         {"context", context},
                         {"overlapping_kernels", true},
                         {"ms", (model[0] == '8' ? 4 : 1) * (1 + 0.01 * rows + 1e-5 * context)}});
  const TemporaryDirectory dir;
  const auto path =
      dir.write("results.json",
                json{{"steps", json::array()}, {"timings", {{"steps", steps}}}, {"pair", nullptr}}.dump());
  Timings timings;
  ASSERT_TRUE(read_timings(path, "8B bf16", "1B bf16", timings).ok());
  const CostFit fit = fit_costs(timings).value();
  EXPECT_NEAR(fit.target.cost.base, 4e-3, 1e-9);
  EXPECT_NEAR(fit.target.cost.per_context, 4e-8, 1e-12);
  EXPECT_NEAR(fit.draft.cost.per_row, 1e-5, 1e-9);
  EXPECT_NE(fit_text(fit).find("no file times them"), std::string::npos);
  const auto told = [&](const char* target, const char* draft) {
    Timings none;
    return read_timings(path, target, draft, none).message();
  };
  EXPECT_NE(told("70B", "").find("no model '70B' was timed; there are: 8B bf16, 1B bf16"), std::string::npos);
  EXPECT_NE(told("", "").find("choose --target and --draft"), std::string::npos);
}

TEST(Fit, AReportOfARunHasMeansAndTheSizesOfMessages) {
  const auto report = [](double rows, double ms, double bytes, double exchange_ms) {
    return json{{"target", {{"name", "t"}}},
                {"metrics",
                 {{"cost_model",
                   {{"mean",
                     {{"verify", {{"rows", rows}, {"context_tokens", 0}, {"ms", ms}}},
                      {"draft", {{"ms_per_token", 0.5}, {"exchange_ms", exchange_ms}}}}}}},
                  {"wire",
                   {{"kinds",
                     {{"propose", {{"sent_bytes", 100.0}}},
                      {"draft", {{"received_bytes", bytes}, {"received_messages", 1.0}}}}}}}}}}
        .dump();
  };
  const TemporaryDirectory dir;
  Timings timings;
  for (const auto& path :
       {dir.write("a.json", report(2, 10.4, 900, 0.3)), dir.write("b.json", report(5, 11.0, 99'900, 0.498))})
    ASSERT_TRUE(read_timings(path, "", "", timings).ok());
  const CostFit fit = fit_costs(timings).value();
  EXPECT_NEAR(fit.target.cost.per_row, 2e-4, 1e-9);
  EXPECT_NEAR(fit.target.cost.base, 10e-3, 1e-9);
  EXPECT_NEAR(fit.draft.cost.base, 5e-4, 1e-9);
  // 99,000 bytes more take 0.198 ms more: 0.5 GB/s, and 0.149 ms each way.
  EXPECT_NEAR(fit.link.bytes_per_second, 5e8, 1);
  EXPECT_NEAR(fit.link.delay_s, 0.149e-3, 1e-9);
}

TEST(Fit, WhatIsNoTimingIsTold) {
  const TemporaryDirectory dir;
  const auto told = [&](const std::string& path) {
    Timings none;
    return read_timings(path, "", "", none).message();
  };
  EXPECT_NE(told("/no/such/file").find("cannot be opened"), std::string::npos);
  EXPECT_NE(told(dir.write("a.json", "{")).find("a.json: is no JSON object"), std::string::npos);
  EXPECT_NE(told(dir.write("b.json", "{}")).find("is neither a report of `outrider bench`"),
            std::string::npos);
  json broken = bench_report();
  broken["verify_curve"][0]["seconds"] = "long";
  EXPECT_NE(told(dir.write("c.json", broken.dump())).find("is missing or no number"), std::string::npos);
  Timings empty;
  EXPECT_NE(fit_costs(empty).status().message().find("no pass of a target"), std::string::npos);
}

}  // namespace
}  // namespace outrider
