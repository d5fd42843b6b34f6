// Existing texts replayed through drafters without a model: the results equal those of the engine.
#include "lab/simulate/texts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lab/simulate/replay.h"
#include "tests/support/program.h"

namespace outrider::testing {
namespace {

std::vector<TokenId> ids_of(std::initializer_list<int> ids) {
  std::vector<TokenId> out;
  for (const int id : ids) out.emplace_back(id);
  return out;
}

TEST(Texts, CountsPassesOfAChain) {
  const std::vector<WrittenText> texts{{ids_of({1, 2, 3, 4, 5}), ids_of({1, 2, 3, 4, 9})}};
  const auto guesser = make_ngram_guesser({});
  const RowCosts costs({{5, 2.0}});
  const TextDraftFigures figures = replay_texts(*guesser, texts, {.gamma = 3}, costs);
  // Four tokens are left: the draft 2 3 4 is right, and 9 is the bonus token.
  EXPECT_EQ(figures.passes, 1);
  EXPECT_EQ(figures.drafted, 3);
  EXPECT_EQ(figures.accepted, 3);
  EXPECT_EQ(figures.tokens, 4);
  EXPECT_DOUBLE_EQ(figures.cost, 1.75);
  EXPECT_DOUBLE_EQ(figures.speedup(), 4 / 1.75);
}

TEST(Texts, ByCostADraftIsNeverWorseThanPlainDecodingForLong) {
  // Behind 1 stood 2, and now always comes something new.
  WrittenText text{ids_of({1, 2}), {}};
  for (int i = 0; i < 200; ++i) text.output.insert(text.output.end(), {TokenId(1), TokenId(100 + i)});
  const std::vector<WrittenText> texts{text};
  const RowCosts costs({{2, 1.5}});
  const auto by_cost = make_suffix_guesser({}), fixed = make_suffix_guesser({});
  const TextDraftFigures ended = replay_texts(*by_cost, texts, {.gamma = 64, .by_cost = true}, costs);
  EXPECT_GT(ended.speedup(), 0.98);
  EXPECT_GT(ended.speedup(), replay_texts(*fixed, texts, {.gamma = 64}, costs).speedup());
}

TEST(Texts, AHistoryHelpsWithTheSameAnswerAgain) {
  const std::vector<WrittenText> texts{{ids_of({1}), ids_of({5, 6, 7, 8, 5, 9, 4, 3})},
                                       {ids_of({2}), ids_of({5, 6, 7, 8, 5, 9, 4, 3})}};
  const RowCosts costs({{16, 1.1}});
  const auto alone = make_suffix_guesser({.history_tokens = 0});
  const auto remembers = make_suffix_guesser({});
  EXPECT_LT(replay_texts(*remembers, texts, {.gamma = 8}, costs).passes,
            replay_texts(*alone, texts, {.gamma = 8}, costs).passes);
}

TEST(Texts, NamesFileAndLineOfWhatItCannotRead) {
  auto tokenizer = load_tokenizer(demo_target());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  TemporaryDirectory dir;
  const std::string file = dir / "texts.jsonl";
  const auto read = [&](const std::string& content) {
    std::ofstream(file) << content;
    return read_written_texts(file, **tokenizer, 10, 100).status().message();
  };
  EXPECT_EQ(read("{\"prompt\": \"a\", \"output\": \"b\"}\n{\"prompt\": 1}\n"),
            file + ":2: no text with what followed it; write {\"prompt\": \"...\", \"output\": \"...\"}");
  EXPECT_EQ(read("[1]\n"),
            file + ":1: no text with what followed it; write {\"prompt\": \"...\", \"output\": \"...\"}");
  EXPECT_EQ(read("{\n"), file + ":1: not JSON");
  EXPECT_EQ(read("\n"), file + ": holds no text");
  EXPECT_EQ(read_written_texts(dir / "none", **tokenizer, 1, 1).status().message(),
            (dir / "none").string() + ": cannot be opened");
  std::ofstream(file) << R"({"question": "How many?", "answer": "Two and two and two."})"
                      << "\n";
  const auto texts = read_written_texts(file, **tokenizer, 10, 3);
  ASSERT_TRUE(texts.ok()) << texts.status().message();
  EXPECT_EQ(texts->front().output.size(), 3u);
}

struct Drafting {
  const char* drafter;
  const char* tree;
  TextDraftShape shape;
};

// A run of the demo target, and the same texts without it.
class TextsOfARun : public ::testing::TestWithParam<Drafting> {};

TEST_P(TextsOfARun, TakeAsManyPassesAsTheRun) {
  const Drafting& drafting = GetParam();
  TemporaryDirectory dir;
  const std::string prompts = dir / "prompts.jsonl", rounds = dir / "rounds.jsonl", out = dir / "out.jsonl";
  const std::vector<std::string> openings{"Once upon a time", "One day, Tom and Tom and Tom",
                                          "Lily had a cat"};
  for (std::ofstream file(prompts); const std::string& opening : openings)
    file << nlohmann::json{{"prompt", opening}}.dump() << "\n";
  const Outcome ran = generate(
      {"--prompts", prompts, "--drafter", drafting.drafter, "--speculative-tree", drafting.tree,
       "--num-speculative-tokens", std::to_string(drafting.shape.gamma), "--max-tokens", "150",
       "--ignore-eos", "--max-num-seqs", "1", "--record-rounds", rounds, "--output", out, "--quiet"});
  ASSERT_EQ(ran.code, 0) << ran.describe();
  const auto record = read_round_record(rounds);
  ASSERT_TRUE(record.ok()) << record.status().message();
  TextDraftFigures real;
  for (const RecordedRound& round : record->rounds) {
    const auto of = std::find_if(record->requests.begin(), record->requests.end(),
                                 [&](const auto& request) { return request.id == round.request; });
    ASSERT_NE(of, record->requests.end());
    if (round.base == of->prompt_tokens) continue;  // the pass of the prompt
    ++real.passes;
    real.drafted += round.parents.empty() ? round.drafted : static_cast<int64_t>(round.parents.size());
    real.accepted += round.accepted;
    real.tokens += round.emitted;
  }
  auto tokenizer = load_tokenizer(demo_target());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  std::vector<WrittenText> texts(openings.size());
  std::ifstream results(out);
  for (std::string line; std::getline(results, line);) {
    const auto json = nlohmann::json::parse(line);
    WrittenText& text = texts.at(json["index"].get<size_t>());
    for (const int id : json["token_ids"]) text.output.emplace_back(id);
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    auto ids = (*tokenizer)->encode(openings[i], SpecialTokens::kAdd);
    ASSERT_TRUE(ids.ok());
    texts[i].prompt = *ids;
  }
  const auto guesser =
      drafting.drafter == std::string("suffix") ? make_suffix_guesser({}) : make_ngram_guesser({});
  const TextDraftFigures same = replay_texts(*guesser, texts, drafting.shape, RowCosts({{16, 1.1}}));
  EXPECT_EQ(same.tokens, real.tokens);
  EXPECT_EQ(same.passes, real.passes);
  EXPECT_EQ(same.accepted, real.accepted);
  EXPECT_EQ(same.drafted, real.drafted);
  EXPECT_GT(same.accepted, 20);
}

INSTANTIATE_TEST_SUITE_P(Drafters, TextsOfARun,
                         ::testing::Values(Drafting{"ngram", "off", {.gamma = 6}},
                                           Drafting{"suffix", "off", {.gamma = 6}},
                                           Drafting{"suffix", "best-first:8", {.gamma = 6, .nodes = 8}}),
                         [](const auto& instance) {
                           return std::string(instance.param.drafter) +
                                  (instance.param.shape.nodes > 0 ? "Trees" : "");
                         });

}  // namespace
}  // namespace outrider::testing
