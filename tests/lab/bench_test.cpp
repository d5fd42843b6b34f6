// `outrider bench` as a user runs it: the contents of its report, not the speeds.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/program.h"

namespace outrider::testing {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

const Arguments kShort{"bench", "--repetitions", "2", "--max-tokens", "24", "--gammas", "1,3"};

Outcome bench(const Arguments& more, const RunSettings& settings = {}) {
  Arguments arguments = kShort;
  arguments.insert(arguments.end(), more.begin(), more.end());
  return outrider_program(arguments, settings);
}

double sum_of_parts(const json& round) {
  double sum = 0;
  for (const char* part : {"draft", "transfer", "verify_forward", "verification", "commit", "idle"})
    sum += round[part].get<double>();
  return sum;
}

TEST(Bench, ReportsEverythingAboutTheDemoPairWithoutAnyFlag) {
  const TemporaryDirectory dir;
  const Outcome run = bench({"--report", dir / "r.json", "--csv", dir / "r.csv", "--html", dir / "r.html"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  for (const char* words :
       {"read bandwidth", "t(M)/t(1)", "speed-up", "ms per round", "start to first token"})
    EXPECT_NE(run.out.find(words), std::string::npos) << words;
  EXPECT_EQ(run.out.find("turn 1"), std::string::npos) << "progress belongs on standard error";

  const std::string page = read_file(dir / "r.html");
  for (const char* words : {"Speed-up against draft length", "A target pass by its rows", "plain decoding"})
    EXPECT_NE(page.find(words), std::string::npos) << words;
  const json report = json::parse(read_file(dir / "r.json"));
  EXPECT_GT(report["machine"]["read_bandwidth_bytes_per_s"].get<double>(), 1e8);
  EXPECT_GT(report["decode"]["tokens_per_s"].get<double>(), 0);
  EXPECT_GT(report["decode"]["bandwidth_share"].get<double>(), 0);
  EXPECT_GT(report["startup_seconds"].get<double>(), 0);
  EXPECT_GT(report["weight_bytes"].get<double>(), 4e6);
  EXPECT_GT(report["peak_memory_bytes"].get<double>(), report["weight_bytes"].get<double>());
  ASSERT_EQ(report["verify_curve"].size(), 16u);
  for (int m = 1; m <= 16; ++m) {
    const json& point = report["verify_curve"][static_cast<size_t>(m - 1)];
    EXPECT_EQ(point["rows"], m);
    EXPECT_NEAR(point["ratio"].get<double>() * report["verify_curve"][0]["seconds"].get<double>(),
                point["seconds"].get<double>(), 1e-9);
  }
  ASSERT_EQ(report["runs"].size(), 2u);
  for (const json& one : report["runs"]) {
    EXPECT_TRUE(one["identical_output"]);
    for (const char* key : {"tokens_per_s", "speedup", "predicted_speedup", "acceptance_rate"})
      EXPECT_GT(one[key].get<double>(), 0) << key;
    EXPECT_NEAR(sum_of_parts(one["round_seconds"]), one["round_seconds"]["wall"].get<double>(), 1e-7);
  }
  EXPECT_EQ(report["runs"][1]["gamma"], 3);
  EXPECT_EQ(report["policy"], "ewma");
  EXPECT_TRUE(report["by_policy"]["identical_output"]);
  EXPECT_GT(report["by_policy"]["speedup"].get<double>(), 0);
  EXPECT_NE(read_file(dir / "r.csv").find("\nruns.1.gamma,3\n"), std::string::npos);
}

TEST(Bench, TakesPromptsContextAndSampling) {
  const TemporaryDirectory dir;
  const Outcome run = bench({"--model", demo_target(), "--draft-model", demo_draft(), "--prompt", "Tom",
                             "--context", "70", "--temperature", "0.8", "--report", dir / "r.json"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  const json report = json::parse(read_file(dir / "r.json"));
  EXPECT_EQ(report["prompts"], 1);
  EXPECT_EQ(report["context"], 70);
  EXPECT_TRUE(report["runs"][0]["identical_output"]);
}

TEST(Bench, PrintsALeagueTableOverTheCategoriesOfAPublishedFile) {
  const TemporaryDirectory dir;
  const auto file =
      dir.write("question.jsonl",
                "{\"question_id\": 1, \"category\": \"writing\", \"turns\": [\"Tom\", \"Again\"]}\n"
                "{\"question_id\": 2, \"category\": \"math\", \"turns\": [\"One\"]}\n"
                "{\"question_id\": 3, \"category\": \"rag\", \"turns\": [\"Lily\"]}\n");
  const Outcome run = bench({"--prompts", file, "--report", dir / "r.json"});
  ASSERT_TRUE(run.succeeded()) << run.describe();
  EXPECT_NE(run.out.find("| speed-up (95 % interval) | mt_bench | rag | overall |"), std::string::npos)
      << run.out;
  EXPECT_NE(run.out.find("\n| gamma 3 | "), std::string::npos) << run.out;
  EXPECT_NE(run.err.find("1 later turns of conversations are asked after the model's own answer"),
            std::string::npos)
      << run.err;
  const json report = json::parse(read_file(dir / "r.json"));
  EXPECT_GT(report["by_category"]["ewma"]["overall"]["value"].get<double>(), 0);
  EXPECT_EQ(report["runs"][0]["by_request"][1][3]["id"], 3);
  EXPECT_EQ(report["runs"][0]["by_request"][1][3]["tokens"], 24);
  EXPECT_EQ(report["provenance"]["command_line"][1], "bench");
  for (const json& one : report["runs"]) EXPECT_EQ(one["speedup_interval"].size(), 2u);
}

TEST(Bench, MeasuresTensorParallelAndNgram) {
  EXPECT_TRUE(bench({"--tensor-parallel-size", "2", "--quiet"}).succeeded());
  const Outcome ngram = bench({"--model", demo_target(), "--drafter", "ngram", "--quiet"});
  EXPECT_TRUE(ngram.succeeded()) << ngram.describe();
  EXPECT_EQ(ngram.err, "");
}

TEST(Bench, BadFlagsAreNamed) {
  const auto message = [](const Arguments& flags) {
    const Outcome run = bench(flags);
    EXPECT_EQ(run.code, 2) << run.describe();
    return run.err;
  };
  EXPECT_NE(message({"--rule", "token", "--temperature", "1"}).find("--rule token"), std::string::npos);
  EXPECT_NE(message({"--gammas", "0"}).find("--gammas"), std::string::npos);
  EXPECT_NE(message({"--model", demo_target()}).find("--draft-model is missing"), std::string::npos);
  EXPECT_NE(message({"--context", "511"}).find("the model has 512"), std::string::npos);
  EXPECT_NE(message({"--max-tokens", "2"}).find("--max-tokens 2"), std::string::npos);
}

}  // namespace
}  // namespace outrider::testing
