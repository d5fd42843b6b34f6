// Target and draft model whose lm_heads have different numbers of rows, as in families whose models are
// padded differently. Ids that the draft model lacks occur in prompts, in biases and among sampled tokens.
// Ids that the target lacks are never proposed.
#include <gtest/gtest.h>

#include "tests/support/cut_vocabulary.h"
#include "tests/support/law_samples.h"
#include "tests/support/test_cluster.h"
#include "tests/support/token_law.h"

namespace outrider::vocabulary_test {
namespace {

using testing::ClusterOptions;
using testing::DrafterKind;
using testing::Finished;
using testing::TestCluster;

constexpr const char* kWhole = "qwen3";
constexpr int32_t kWholeVocab = 302, kCutVocab = 271;
constexpr int kMaxTokens = 24;

struct Pair {
  const char* name;
  std::string target, draft;  // directories
  int32_t target_vocab;
  int64_t draft_vocab_size = 0;  // as --draft-vocab-size
};

// The draft is the target a little off, and lacks a tenth of its tokens.
const Pair& small_draft() {
  static const testing::PerturbedModel off(kWhole, 0.2f);
  static const testing::CutVocabulary draft(off.path(), kCutVocab);
  static const Pair pair{"small draft", testing::golden_model(kWhole).string(), draft.path(), kWholeVocab};
  return pair;
}

// A draft model that reads all ids and draws only the first kCutVocab.
const Pair& short_head() {
  static const testing::PerturbedModel draft(kWhole, 0.2f);
  static const Pair pair{"short head", testing::golden_model(kWhole).string(), draft.path(), kWholeVocab,
                         kCutVocab};
  return pair;
}

// The other way round.
const Pair& small_target() {
  static const testing::PerturbedModel draft(kWhole, 0.2f);
  static const testing::CutVocabulary target(testing::golden_model(kWhole), kCutVocab);
  static const Pair pair{"small target", target.path(), draft.path(), kCutVocab};
  return pair;
}

ClusterOptions plain_of(const Pair& pair) { return {.target = pair.target}; }
ClusterOptions drafting(const Pair& pair) {
  return {.target = pair.target,
          .draft = pair.draft,
          .drafter = DrafterKind::kModel,
          .max_num_seqs = 4,
          .draft_vocab_size = pair.draft_vocab_size};
}

// Prompts end in the last ids of the target's vocabulary, or hold one, or none; biases ask for some.
std::vector<Request> requests(const Pair& pair, const std::vector<Rule>& rules) {
  const TokenId last(pair.target_vocab - 1), middle(pair.target_vocab - 20);
  const std::vector<std::vector<TokenId>> prompts{{last},
                                                  {last, TokenId(11), middle, last},
                                                  {TokenId(12), last, TokenId(14)},
                                                  {TokenId(11), TokenId(14)}};
  const std::vector<SamplingParams> variants{
      {},
      {.logit_bias = {{last, 9.0f}, {middle, 6.0f}}},
      {.top_p = 0.9f, .repetition_penalty = 1.3f, .presence_penalty = 0.5f, .logit_bias = {{last, 7.0f}}}};
  std::vector<Request> all;
  for (const Rule rule : rules)
    for (const SamplingParams& variant : variants)
      for (const auto& prompt : prompts) {
        Request request{.prompt = prompt, .sampling = variant, .max_tokens = kMaxTokens, .ignore_eos = true};
        request.sampling.rule = rule;
        request.sampling.temperature = rule == Rule::kGreedy ? 0.0f : 1.5f;
        request.sampling.seed = Seed{1000 + all.size()};
        all.push_back(std::move(request));
      }
  return all;
}

const std::vector<Rule> kMatchRules{Rule::kGreedy, Rule::kInvariant, Rule::kNaive};
const std::vector<Rule> kPqRules{Rule::kToken, Rule::kBlock};

void expect_same(const std::vector<Finished>& expected, const std::vector<Finished>& actual,
                 const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(actual[i].error.ok()) << what << ", request " << i << ": " << actual[i].error.message();
    EXPECT_EQ(expected[i].ids, actual[i].ids) << what << ", request " << i;
  }
}

int64_t count_beyond(const std::vector<Finished>& texts, int32_t vocab) {
  int64_t count = 0;
  for (const Finished& text : texts)
    count += std::count_if(text.ids.begin(), text.ids.end(), [&](TokenId id) { return id.value() >= vocab; });
  return count;
}

void expect_no_bad_drafts(const Totals& totals) {
  EXPECT_EQ(totals.dropped(DropReason::kBadIds), 0);
  EXPECT_EQ(totals.dropped(DropReason::kBadQ), 0);
  EXPECT_EQ(totals.dropped(DropReason::kWrongHash), 0);
}

class Vocabulary : public ::testing::TestWithParam<const Pair& (*)()> {};

TEST_P(Vocabulary, MatchRulesEqualPlainDecoding) {
  const Pair& pair = GetParam()();
  TestCluster plain(plain_of(pair));
  const auto expected = plain.run(requests(pair, kMatchRules));
  if (pair.target_vocab > kCutVocab) {
    EXPECT_GT(count_beyond(expected, kCutVocab), 50);
  }
  for (const DrafterKind drafter : {DrafterKind::kModel, DrafterKind::kNgram})
    for (const int ranks : {1, 2})
      for (const Pipeline pipeline : {Pipeline::kLockstep, Pipeline::kAhead, Pipeline::kFanout}) {
        ClusterOptions options = drafting(pair);
        options.drafter = drafter;
        options.tp_size = ranks;
        options.pipeline = pipeline;
        TestCluster cluster(options);
        expect_same(expected, cluster.run(requests(pair, kMatchRules)),
                    fmt::format("{}, drafter {}, {} ranks, pipeline {}", pair.name, static_cast<int>(drafter),
                                ranks, static_cast<int>(pipeline)));
        expect_no_bad_drafts(cluster.totals());
        EXPECT_GT(cluster.totals().rounds.accepted, 20);
        EXPECT_GT(cluster.totals().rounds.rollbacks, 20);
      }
}

struct QForm {
  const char* name;
  QKind kind;
  bool slices = false;
};

TEST_P(Vocabulary, RulesWithQGiveOneTextOverRanksAndPipelines) {
  const Pair& pair = GetParam()();
  for (const QForm& form : {QForm{"dense", QKind::kDense}, QForm{"slices", QKind::kDense, true},
                            QForm{"compact", QKind::kSparse}, QForm{"states", QKind::kHidden}}) {
    if (pair.draft_vocab_size > 0 && form.kind == QKind::kHidden) continue;  // refused (start/settings.cpp)
    ClusterOptions options = drafting(pair);
    options.q_kind = form.kind;
    options.row_bytes = 40;
    TestCluster one(options);
    const auto expected = one.run(requests(pair, kPqRules));
    options.slices = form.slices;
    for (const int ranks : {1, 2, 8})
      for (const Pipeline pipeline : {Pipeline::kLockstep, Pipeline::kFanout}) {
        options.tp_size = ranks;
        options.pipeline = pipeline;
        TestCluster cluster(options);
        expect_same(expected, cluster.run(requests(pair, kPqRules)),
                    fmt::format("{}, {}, {} ranks", pair.name, form.name, ranks));
        expect_no_bad_drafts(cluster.totals());
        EXPECT_EQ(cluster.totals().dropped(DropReason::kSliceMissing), 0);
        EXPECT_GT(cluster.totals().rounds.accepted, 20);
        EXPECT_GT(cluster.totals().rounds.rollbacks, 20);
      }
  }
}

TEST_P(Vocabulary, TokensFollowTheTarget) {
  const Pair& pair = GetParam()();
  // One pair has 8,000 samples; the others differ from it in the ids that are missing.
  const int samples = GetParam() == &small_draft ? 8000 : testing::repeated_law_samples();
  constexpr float kTemperature = 2.0f;
  const auto single = make_single_collectives();
  const auto model = testing::load_or_die(pair.target, {}, *single);
  const std::vector<TokenId> prompt{TokenId(11), TokenId(pair.target_vocab - 1)};
  const auto law = testing::law_of_second(*model, prompt, kTemperature);
  for (const QForm& form : {QForm{"dense", QKind::kDense}, QForm{"compact", QKind::kSparse}}) {
    ClusterOptions options = drafting(pair);
    options.max_num_seqs = 8;
    options.q_kind = form.kind;
    options.row_bytes = 40;
    TestCluster cluster(options);
    for (const Rule rule : kPqRules) {
      auto all = testing::seeded_requests(prompt, {.rule = rule, .temperature = kTemperature}, samples);
      const auto seen = testing::count_second(cluster, std::move(all), law.size());
      testing::expect_follows(law, seen, fmt::format("{}, {}, {}", pair.name, rule_name(rule), form.name));
    }
    EXPECT_GT(cluster.totals().rounds.accepted, samples / 8);
    EXPECT_GT(cluster.totals().rounds.rollbacks, samples / 8);
  }
}

INSTANTIATE_TEST_SUITE_P(Pairs, Vocabulary, ::testing::Values(&small_draft, &small_target, &short_head));

}  // namespace
}  // namespace outrider::vocabulary_test
