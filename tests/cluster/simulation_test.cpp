// Inputs of simulations: arrivals and acceptance, and the errors for invalid inputs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "cluster/acceptance_process.h"
#include "cluster/simulation/arrivals.h"
#include "tests/support/source_dir.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

// ---- arrivals -------------------------------------------------------------------------------------------

struct Gaps {
  double mean = 0, variation = 0;
};

Gaps gaps_of(const std::vector<SimulatedRequest>& arrivals) {
  double sum = 0, squares = 0;
  for (size_t i = 1; i < arrivals.size(); ++i) {
    const double gap = arrivals[i].arrival_s - arrivals[i - 1].arrival_s;
    EXPECT_GE(gap, 0);
    sum += gap;
    squares += gap * gap;
  }
  const auto n = static_cast<double>(arrivals.size() - 1);
  return {sum / n, std::sqrt(squares / n - sum / n * sum / n) / (sum / n)};
}

TEST(Arrivals, HaveTheRateAndVariationThatWasAsked) {
  // 20,000 gaps: the mean's standard error is CV / 141, and the seed is fixed.
  for (const auto& [text, variation] :
       {std::pair("poisson:4", 1.0), std::pair("gamma:4/2", 2.0), std::pair("gamma:4/0.5", 0.5)}) {
    const auto arrivals = make_arrivals(text, 20'000, 100, 10, 3).value().requests;
    EXPECT_EQ(arrivals.front().arrival_s, 0);
    EXPECT_EQ(arrivals.front().prompt_tokens, 100);
    EXPECT_NEAR(gaps_of(arrivals).mean, 0.25, 0.25 * 0.05) << text;
    EXPECT_NEAR(gaps_of(arrivals).variation, variation, 0.05 * variation) << text;
    EXPECT_EQ(arrivals.back().arrival_s,
              make_arrivals(text, 20'000, 100, 10, 3).value().requests.back().arrival_s);
  }
  EXPECT_EQ(make_arrivals("burst", 5, 1, 1, 1).value().requests.back().arrival_s, 0);
}

TEST(Arrivals, AClosedLoopHasClientsThatMayThink) {
  const auto loop = make_arrivals("closed:3/0.5", 9, 10, 20, 1).value();
  EXPECT_EQ(loop.clients, 3);
  EXPECT_EQ(loop.think_s, 0.5);
  EXPECT_EQ(loop.requests.size(), 9u);
  EXPECT_EQ(make_arrivals("closed:3", 9, 10, 20, 1).value().think_s, 0);
  EXPECT_EQ(make_arrivals("burst", 9, 10, 20, 1).value().clients, 0);
}

TEST(Arrivals, BadOnesAreTold) {
  const auto told = [](const std::string& text) {
    return make_arrivals(text, 5, 1, 1, 1).status().message();
  };
  for (const char* text : {"poison:4", "poisson", "poisson:0", "poisson:x", "gamma:4", "gamma:4/0", "burst:3",
                           "closed:0", "closed:1.5", "closed:x", "closed:3/-1"})
    EXPECT_NE(told(text).find("write burst, closed:CLIENTS[/THINK], poisson:RATE"), std::string::npos)
        << text;
  EXPECT_NE(told("closed").find("closed:8; all requests at once are a burst"), std::string::npos);
  EXPECT_NE(told("azure:/no/such/file").find("cannot be opened"), std::string::npos);
  const TemporaryDirectory directory;
  const auto bad = directory.write(
      "bad_trace.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,374,44\nnonsense\n");
  EXPECT_NE(told("azure:" + bad.string()).find("bad_trace.csv:3: 'nonsense' is not TIMESTAMP"),
            std::string::npos);
}

TEST(Arrivals, ATraceGivesTimesAndLengths) {
  const TemporaryDirectory directory;
  const auto path =
      directory.write("trace.csv",
                      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.5,374,44\r\n"
                      "2023-11-17 00:00:01.5,10,0\r\n");
  const auto arrivals = make_arrivals("azure:" + path.string() + "/2", 9, 1, 1, 1).value().requests;
  ASSERT_EQ(arrivals.size(), 2u);
  EXPECT_EQ(arrivals[0].prompt_tokens, 374);
  EXPECT_EQ(arrivals[0].output_tokens, 44);
  EXPECT_DOUBLE_EQ(arrivals[1].arrival_s, 1) << "two seconds over midnight, at twice the speed";
  EXPECT_EQ(arrivals[1].output_tokens, 1) << "a request emits at least one token";
}

// 19,366 requests of an hour of conversations. OUTRIDER_AZURE_TRACE names the file where it lies elsewhere.
TEST(Arrivals, TheAzureConversationTraceLoads) {
  const char* named = std::getenv("OUTRIDER_AZURE_TRACE");
  const std::filesystem::path path =
      named ? named : source_dir() / "../shared/data/workloads/traces/AzureLLMInferenceTrace_conv.csv";
  if (!std::filesystem::exists(path))
    GTEST_SKIP() << "NOT TESTED: " << path
                 << " is not here; set OUTRIDER_AZURE_TRACE to the CSV file of the data set";
  const auto arrivals = make_arrivals("azure:" + path.string(), 1 << 20, 1, 1, 1).value().requests;
  EXPECT_EQ(arrivals.size(), 19'366u);
  EXPECT_EQ(arrivals.front().prompt_tokens, 374);
  EXPECT_EQ(arrivals.front().output_tokens, 44);
  EXPECT_NEAR(arrivals.back().arrival_s, 3600, 120);
  gaps_of(arrivals);  // in order
}

// ---- acceptance -----------------------------------------------------------------------------------------

TEST(Acceptance, TheNextTokenIsGuessedAsOftenAsAsked) {
  const auto process = AcceptanceProcess::parse("rates:0.8,guess=0.4", 1).value();
  const auto measured = AcceptanceProcess::parse("rates:0.8,hit=0.3", 1).value();
  int first_bonus = 0, second_bonus = 0, first_recovery = 0, hits = 0;
  constexpr int kTexts = 20'000;
  for (int i = 0; i < kTexts; ++i) {
    const SequenceId id(static_cast<uint64_t>(i));
    const int32_t bonus = process.next_guess(id, 10, 3, 3), recovery = process.next_guess(id, 10, 1, 3);
    first_bonus += bonus == 0;
    second_bonus += bonus == 1;
    first_recovery += recovery == 1;
    EXPECT_GE(recovery, 1) << "the best guess was what was rejected";
    const int32_t told = measured.next_guess(id, 10, 1, 3);
    hits += told == 1;
    EXPECT_TRUE(told == 1 || told > 1000);
  }
  // Standard errors below 0.4 %.
  EXPECT_NEAR(first_bonus / double{kTexts}, 0.8, 0.02);
  EXPECT_NEAR(second_bonus / double{kTexts}, 0.2 * 0.4, 0.01);
  EXPECT_NEAR(first_recovery / double{kTexts}, 0.4, 0.02);
  EXPECT_NEAR(hits / double{kTexts}, 0.3, 0.02);
}

TEST(Acceptance, BadDescriptionsNameTheNearestKey) {
  const auto told = [](const char* text) { return AcceptanceProcess::parse(text, 1).status().message(); };
  EXPECT_NE(told("rates:0.8,gues=0.5").find("did you mean 'guess='?"), std::string::npos);
  EXPECT_NE(told("rates:0.8,spraed=0.1").find("did you mean 'spread='?"), std::string::npos);
  EXPECT_NE(told("rates:0.8,hit=2").find("hit 2 is not in 0..1"), std::string::npos);
  EXPECT_NE(told("rates:1.5").find("rate 1.5 is not in 0..1"), std::string::npos);
  EXPECT_NE(told("rate:0.5").find("write rates:"), std::string::npos);
  EXPECT_NE(told("length:9/4").find("outside 1..5"), std::string::npos);
}

// In a tree the first children fare as a chain does, and each further one has a share of what is missing.
TEST(AcceptanceProcess, TakesPathsOfTrees) {
  const auto process = AcceptanceProcess::parse("rates:0.7/0.5,guess=0.4", 3).value();
  // 0 ( 3, 4 ), 1 ( 5 ), 2
  const DraftTree tree(std::vector<TokenId>(6, TokenId(1)), {-1, -1, -1, 0, 0, 1});
  std::vector<double> taken(6);
  std::vector<int32_t> path;
  constexpr int kRounds = 40'000;
  for (int i = 0; i < kRounds; ++i) {
    process.accepted_path(SequenceId(1), 3 * i, tree, path);
    ASSERT_TRUE(is_path(tree, path));
    for (const int32_t node : path) taken[static_cast<size_t>(node)] += 1.0 / kRounds;
    const int32_t chain = process.accepted_count(SequenceId(1), 3 * i, 2);
    EXPECT_EQ(chain > 0, !path.empty() && path[0] == 0);
  }
  const double second = 0.3 * 0.4, third = 0.3 * 0.6 * 0.4;
  const double expected[] = {0.7, second, third, 0.7 * 0.5, 0.7 * 0.5 * 0.4, second * 0.5};
  for (size_t node = 0; node < 6; ++node)  // 4.5 standard errors: false alarm in 1e-5 each
    EXPECT_NEAR(taken[node], expected[node], 4.5 * std::sqrt(expected[node] / kRounds)) << node;
}

TEST(Acceptance, ARecordedTraceIsReplayed) {
  const TemporaryDirectory directory;
  const auto path = directory.write("accepted.txt", "# two texts\n1101\n0\n");
  const auto process = AcceptanceProcess::parse("trace:" + path.string(), 1).value();
  EXPECT_EQ(process.accepted_count(SequenceId(0), 0, 8), 2);
  EXPECT_EQ(process.accepted_count(SequenceId(0), 3, 8), 3) << "the line repeats";
  EXPECT_EQ(process.accepted_count(SequenceId(1), 5, 8), 0);
  const auto bad = directory.write("bad_accepted.txt", "11x\n");
  EXPECT_NE(
      AcceptanceProcess::parse("trace:" + bad.string(), 1).status().message().find(":1: 'x' is neither"),
      std::string::npos);
}

}  // namespace
}  // namespace outrider
