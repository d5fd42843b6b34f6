// Published workloads, in tiny files of our own in their formats; and results by category.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "requests/by_category.h"
#include "requests/published_lines.h"

namespace outrider {
namespace {

using nlohmann::json;

TEST(PublishedLine, OfSpecBenchIsItsFirstTurn) {
  const auto line = published_line(json::parse(
      R"({"question_id": 81, "category": "writing", "turns": ["Write.", "Again."], "reference": []})"));
  ASSERT_TRUE(line);
  EXPECT_EQ(line->prompt, "Write.");
  EXPECT_EQ(line->category, "writing");
  EXPECT_EQ(line->id, "81");
  EXPECT_EQ(line->later_turns, std::vector<std::string>{"Again."});
}

TEST(PublishedLine, OfSpeedBenchHasTurnsOrMessages) {
  const auto line = published_line(json::parse(
      R"({"question_id": "a1", "category": "coding", "sub_category": "python", "turns": ["Write."], "source": "x",
          "src_id": "7", "difficulty": "easy", "multiturn": false})"));
  ASSERT_TRUE(line);
  EXPECT_EQ(line->id, "\"a1\"");
  EXPECT_FALSE(line->is_chat);
  const auto chat = published_line(json::parse(
      R"({"question_id": "a1", "category": "coding", "sub_category": "python",
          "messages": [{"role": "user", "content": "Write."}, {"role": "user", "content": "Again."}]})"));
  ASSERT_TRUE(chat);
  EXPECT_TRUE(chat->is_chat);
  EXPECT_EQ(chat->prompt, "Write.");
  EXPECT_EQ(chat->category, "coding");
  EXPECT_EQ(chat->later_turns, std::vector<std::string>{"Again."});
}

TEST(PublishedLine, OfHumanEvalAndGsm8k) {
  const auto code = published_line(json::parse(
      R"({"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "  return 1\n",
          "test": "assert f() == 1"})"));
  ASSERT_TRUE(code);
  EXPECT_EQ(code->prompt, "def f():\n");
  EXPECT_EQ(code->id, "\"HumanEval/0\"");
  EXPECT_EQ(code->category, "humaneval");
  const auto sum = published_line(json::parse(R"({"question": "1 + 1?", "answer": "2\n#### 2"})"));
  ASSERT_TRUE(sum);
  EXPECT_EQ(sum->prompt, "1 + 1?");
  EXPECT_EQ(sum->category, "gsm8k");
}

TEST(PublishedLine, RequestsOfOurOwnAreNone) {
  EXPECT_FALSE(published_line(json::parse(R"({"prompt": "a", "id": 1})")));
  EXPECT_FALSE(published_line(json::parse(R"({"messages": []})")));
  EXPECT_FALSE(published_line(json::parse(R"({"question_id": 1, "messages": []})")));
  EXPECT_FALSE(
      published_line(json::parse(R"({"question_id": 1, "messages": [{"role": "system", "content": "a"}]})")));
  EXPECT_FALSE(published_line(json::parse(R"({"question_id": 1, "messages": [7]})")));
  EXPECT_FALSE(published_line(json::parse(R"({"question_id": 1, "turns": []})")));
  EXPECT_FALSE(published_line(json::parse(R"({"question": "without an answer"})")));
}

TEST(Trace, LinesHaveLengthsAndNoText) {
  EXPECT_TRUE(is_trace_header("TIMESTAMP,ContextTokens,GeneratedTokens\r"));
  EXPECT_FALSE(is_trace_header("{\"prompt\": 1}"));
  const auto line = trace_line("2023-11-16 18:15:46.6805900,374,44\r");
  ASSERT_TRUE(line.ok());
  EXPECT_EQ(line->prompt_tokens, 374);
  EXPECT_EQ(line->output_tokens, 44);
  for (const char* bad : {"", "a", "t,1", "t,0,4", "t,1,x", "t,1,-4"})
    EXPECT_FALSE(trace_line(bad).ok()) << bad;
}

TEST(Trace, CompressedFilesAreToldFromTheirFirstBytes) {
  EXPECT_NE(how_to_unpack("\x1f\x8b\x08", "my tasks.jsonl.gz").find("`gunzip -k 'my tasks.jsonl.gz'`"),
            std::string::npos);
  EXPECT_EQ(how_to_unpack("{\"prompt\": \"a\"}", "a.jsonl"), "");
}

RequestResult result(const char* category, int64_t tokens, double seconds) {
  return {.id = {},
          .category = category,
          .seconds = seconds,
          .tokens = tokens,
          .passes = tokens / 2,
          .acceptance = {tokens / 4, tokens / 2}};
}

// As Spec-Bench: the mean of tokens/s over requests, over the same mean of plain decoding.
TEST(ByCategory, SpeedUpsAreThoseOfSpecBench) {
  const std::vector<RequestResult> drafted{result("writing", 100, 1), result("math", 300, 1),
                                           result("rag", 100, 2)};
  const std::vector<RequestResult> plain{result("writing", 100, 2), result("math", 100, 2),
                                         result("rag", 100, 2)};
  const auto categories = by_category(drafted, plain);
  ASSERT_EQ(categories.size(), 3u);
  EXPECT_EQ(categories[0].category, "mt_bench") << "its eight categories are one";
  EXPECT_EQ(categories[0].requests, 2);
  EXPECT_DOUBLE_EQ(categories[0].speedup(), (100.0 + 300) / (50 + 50));
  EXPECT_EQ(categories[1].category, "rag");
  EXPECT_DOUBLE_EQ(categories[1].speedup(), 1);
  EXPECT_EQ(categories[2].category, "overall");
  EXPECT_DOUBLE_EQ(categories[2].speedup(), (100.0 + 300 + 50) / 150);
  EXPECT_DOUBLE_EQ(categories[2].acceptance.value(), 0.5);
  EXPECT_EQ(by_category(drafted, {}).front().speedup(), 0);
}

TEST(ByCategory, TheLeagueTableHasARowPerWayAndAColumnPerCategory) {
  const Ratio sure{.value = 2, .low = 1.9, .high = 2.1, .samples = 3};
  EXPECT_EQ(league_table({"qa", "overall"}, {{"gamma 4", {sure, {.value = 1.5, .samples = 1}}}}),
            "| speed-up (95 % interval) | qa | overall |\n|---|---|---|\n| gamma 4 | 2.00 (1.90 to 2.10) | "
            "1.50 |\n");
}

// The published files themselves, where OUTRIDER_TEST_DATA names a folder that has them.
TEST(PublishedFiles, EveryLineIsKnown) {
  const char* data = std::getenv("OUTRIDER_TEST_DATA");
  if (!data)
    GTEST_SKIP() << "OUTRIDER_TEST_DATA names no folder with workloads/: the published files were not read";
  int read = 0;
  for (const char* name : {"workloads/spec_bench/clean_mtbench_gsm8k.jsonl", "workloads/gsm8k/train.jsonl"}) {
    std::ifstream file(std::string(data) + "/" + name);
    if (!file) continue;
    for (std::string line; std::getline(file, line); ++read)
      ASSERT_TRUE(published_line(json::parse(line))) << name << ": " << line;
  }
  std::ifstream trace(std::string(data) + "/workloads/traces/AzureLLMInferenceTrace_conv.csv");
  std::string line;
  if (std::getline(trace, line)) {
    ASSERT_TRUE(is_trace_header(line));
    for (; std::getline(trace, line); ++read) ASSERT_TRUE(trace_line(line).ok()) << line;
  }
  if (read == 0) GTEST_SKIP() << data << " has none of the published files: nothing was read";
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace outrider
