// Speculation is lossless with grammars: a text equals plain decoding with the same grammar, for every
// drafter and fault. Under p/q rules, the output distribution is the target's distribution restricted to the
// tokens that the grammar allows.
#include <gtest/gtest.h>

#include "tests/end_to_end/request_grid.h"
#include "tests/support/dying_wire.h"
#include "tests/support/law_samples.h"
#include "tests/support/prefix_grammar.h"
#include "tests/support/token_law.h"

namespace outrider::grammars_test {
namespace {

using namespace grid;  // NOLINT: the grid's names
using testing::DrafterKind;
using testing::make_prefix_grammar;

const std::vector<TokenId> kEnds{TokenId(5), TokenId(77)};

std::shared_ptr<const Grammar> grammar_of(uint64_t seed) {
  return make_prefix_grammar({.vocab_size = kVocab, .seed = seed % 7 + 1, .ends = kEnds});
}

// The requests of the grid with a grammar; some are without, in the same passes.
std::vector<Request> constrained(const std::vector<Rule>& rules, const std::string& policy) {
  auto all = more_requests(rules, policy);
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % 5 != 0) all[i].grammar = grammar_of(i);
    all[i].sampling.logprobs = i % 3 == 0 ? 2 : -1;
  }
  return all;
}

const std::vector<Finished>& plainly() {
  static const std::vector<Finished> finished = [] {
    TestCluster plain({.target = kTarget, .eos_ids = kEnds});
    return plain.run(constrained(kMatchRules, ""));
  }();
  return finished;
}

// Every emitted token fits the grammar, whichever drafter proposed it.
void expect_allowed(const std::vector<Finished>& finished, std::vector<Request> requests) {
  ASSERT_EQ(finished.size(), requests.size());
  size_t over = 0;
  for (size_t i = 0; i < finished.size(); ++i) {
    if (!requests[i].grammar) continue;
    const auto matcher = requests[i].grammar->matcher();
    for (const TokenId id : finished[i].ids) ASSERT_TRUE(matcher->accept(id)) << "request " << i;
    EXPECT_EQ(matcher->is_over(), finished[i].reason == FinishReason::kStop) << "request " << i;
    over += matcher->is_over();
  }
  EXPECT_GT(over, kSanitized ? 0u : requests.size() / 20);
}

TEST(GrammarsPlain, TextsFitTheirGrammars) { expect_allowed(plainly(), constrained(kMatchRules, "")); }

class Grammars : public ::testing::TestWithParam<int> {};  // tensor-parallel size

TEST_P(Grammars, MatchRulesEqualPlainDecoding) {
  for (const DrafterKind drafter : {DrafterKind::kNone, DrafterKind::kModel, DrafterKind::kNgram})
    for (const int batch : {1, 8}) {
      TestCluster cluster({.target = kTarget,
                           .draft = draft_model(),
                           .drafter = drafter,
                           .tp_size = GetParam(),
                           .max_num_seqs = batch,
                           .eos_ids = kEnds,
                           .pipeline = batch == 8 ? Pipeline::kFanout : Pipeline::kLockstep});
      const auto what =
          fmt::format("tp {}, drafter {}, batch {}", GetParam(), static_cast<int>(drafter), batch);
      expect_same(plainly(),
                  cluster.run(constrained(kMatchRules, drafter == DrafterKind::kNone ? "" : "fixed:gamma=5")),
                  what);
      EXPECT_GT(cluster.totals().forced_tokens, 0) << what;
      EXPECT_GT(cluster.totals().masks, kEnough) << what;
      if (drafter == DrafterKind::kNone) continue;
      EXPECT_GT(cluster.totals().mask_cut_tokens, kEnough) << what;
      EXPECT_GT(cluster.totals().rounds.accepted, kEnough / 2) << what;
      EXPECT_GT(cluster.totals().rounds.rollbacks, kEnough) << what;
    }
}

TEST_P(Grammars, TreesEqualPlainDecoding) {
  for (const TreeShape& shape :
       {TreeShape{.widths = {3, 2, 1}}, TreeShape{.widths = {}, .nodes = 9}, TreeShape{.widths = {1, 1}}}) {
    TestCluster cluster({.target = kTarget,
                         .draft = draft_model(),
                         .drafter = DrafterKind::kModel,
                         .tp_size = GetParam(),
                         .max_num_seqs = 4,
                         .eos_ids = kEnds,
                         .tree = shape});
    expect_same(plainly(), cluster.run(constrained(kMatchRules, "fixed:gamma=3")),
                fmt::format("tp {}, {} widths", GetParam(), shape.widths.size()));
    const bool is_chain = shape.widths.size() == 2;
    EXPECT_GT(cluster.totals().trees.rounds, is_chain ? -1 : kEnough);
    EXPECT_GT(cluster.totals().mask_cut_tokens, kEnough);
  }
}

// The texts do not depend on ranks, on batches or on drafts prepared ahead.
TEST_P(Grammars, TextsOfPqRulesDependOnSeedDrafterAndGammaOnly) {
  for (const QKind q_kind : {QKind::kDense, QKind::kSparse}) {
    ClusterOptions options{.target = kTarget,
                           .draft = draft_model(),
                           .drafter = DrafterKind::kModel,
                           .q_kind = q_kind,
                           .row_bytes = q_kind == QKind::kSparse ? 256 : 0,
                           .eos_ids = kEnds};
    TestCluster one(options);
    const auto expected = one.run(constrained(kPqRules, "fixed:gamma=3"));
    expect_allowed(expected, constrained(kPqRules, ""));
    options.tp_size = GetParam();
    options.max_num_seqs = 6;
    TestCluster cluster(options);
    expect_same(expected, cluster.run(constrained(kPqRules, "fixed:gamma=3")), "p/q rules");
    EXPECT_GT(cluster.totals().rounds.accepted, kEnough);
    EXPECT_EQ(cluster.totals().forced_tokens, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(TensorParallel, Grammars, ::testing::Values(1, 2, 4, 8));

TEST(GrammarsOfSlices, AreKeptWhole) {
  ClusterOptions options{.target = kTarget,
                         .draft = draft_model(),
                         .drafter = DrafterKind::kModel,
                         .tp_size = 2,
                         .max_num_seqs = 4,
                         .eos_ids = kEnds};
  TestCluster dense(options);
  const auto expected = dense.run(constrained(kPqRules, "fixed:gamma=3"));
  options.slices = true;
  options.wire = Wire::kZmqIpc;
  TestCluster cluster(options);
  const auto actual = cluster.run(constrained(kPqRules, "fixed:gamma=3"));
  EXPECT_GT(cluster.totals().slice_bytes, 0);
  EXPECT_EQ(cluster.totals().dropped(DropReason::kSliceMissing), 0);
  expect_allowed(actual, constrained(kPqRules, ""));
}

// Preemption of a sequence and the loss of a target group leave the grammar matcher's tokens unchanged.
TEST(GrammarsOnTheMove, PrefixesPreemptionAndOtherGroupsChangeNoText) {
  ClusterOptions options{.target = kTarget,
                         .draft = draft_model(),
                         .drafter = DrafterKind::kModel,
                         .max_num_seqs = 6,
                         .kv_tokens = 160,
                         .eos_ids = kEnds};
  options.max_context = 100;
  {
    TestCluster cluster(options);
    expect_same(plainly(), cluster.run(constrained(kMatchRules, "fixed:gamma=4")), "little memory");
    EXPECT_GT(cluster.totals().preemptions, 0);
    EXPECT_GT(cluster.totals().prefix_hits, 0);
  }
  options.kv_tokens = 0;
  options.groups = 2;
  TestCluster cluster(options);
  expect_same(plainly(), cluster.run(constrained(kMatchRules, "fixed:gamma=4")), "two groups");
}

TEST(GrammarsOnTheMove, TextsGoOnWhereTheirGroupDied) {
  for (const int results : {0, 3, 20}) {
    TestCluster cluster(
        {.target = kTarget,
         .draft = draft_model(),
         .drafter = DrafterKind::kModel,
         .groups = 2,
         .max_num_seqs = 4,
         .wire = Wire::kZmqIpc,
         .eos_ids = kEnds,
         .target_wire = [results](int group,
                                  std::unique_ptr<Transport> transport) -> std::unique_ptr<Transport> {
           if (group != 1) return transport;
           return std::make_unique<testing::DyingWire<StepResult>>(std::move(transport), results);
         }});
    expect_same(plainly(), cluster.run(constrained(kMatchRules, "fixed:gamma=4")),
                fmt::format("{} results", results));
    EXPECT_GT(cluster.totals().failovers, 0);
  }
}

TEST(GrammarsThatFail, EndTheirRequestAlone) {
  const auto requests = [] {
    auto all = constrained({Rule::kGreedy, Rule::kInvariant, Rule::kToken}, "fixed:gamma=4");
    for (size_t i = 0; i < all.size(); i += 3) {
      testing::PrefixGrammarOptions options{.vocab_size = kVocab, .ends = kEnds, .over_after = 99};
      const auto length = static_cast<int32_t>(i % 4);
      (i % 2 == 0 ? options.empty_after : i % 4 == 1 ? options.error_after : options.limit_after) = length;
      all[i].grammar = make_prefix_grammar(options);
    }
    return all;
  };
  TestCluster cluster(
      {.target = kTarget, .draft = draft_model(), .drafter = DrafterKind::kModel, .max_num_seqs = 8});
  const auto finished = cluster.run(requests());
  size_t failed = 0;
  for (size_t i = 0; i < finished.size(); ++i) {
    if (i % 3 != 0) {
      EXPECT_TRUE(finished[i].error.ok()) << finished[i].error.message();
      continue;
    }
    if (finished[i].error.ok()) continue;  // an end came first
    ++failed;
    const std::string& message = finished[i].error.message();
    EXPECT_TRUE(message.find(i % 2 == 0 ? "allows no token" : "fails here") != std::string::npos) << message;
    EXPECT_EQ(finished[i].ids.size(), i % 4) << "request " << i;
  }
  EXPECT_GT(failed, finished.size() / 6);
}

// A look ahead that meets a limit of the library costs drafts and no text: what ends before it, by a stop id
// or its length, ends as in plain decoding, and what reaches it has the same tokens and the same error.
TEST(GrammarsThatFail, DraftsReachNoLimitThatPlainDecodingDoesNot) {
  const auto requests = [](const std::string& policy) {
    auto all = constrained(kMatchRules, policy);
    for (size_t i = 0; i < all.size(); ++i) {
      testing::PrefixGrammarOptions options{.vocab_size = kVocab, .ends = kEnds, .over_after = 99};
      (i % 2 == 0 ? options.limit_after : options.error_after) = static_cast<int32_t>(3 + i % 5);
      all[i].grammar = make_prefix_grammar(options);
      if (i % 3 != 0) all[i].max_tokens = std::min(all[i].max_tokens, static_cast<int32_t>(1 + i % 8));
    }
    return all;
  };
  TestCluster plain({.target = kTarget, .eos_ids = kEnds});
  const auto expected = plain.run(requests(""));
  size_t whole = 0, failed = 0;
  for (const Finished& one : expected) (one.error.ok() ? whole : failed) += 1;
  EXPECT_GT(whole, expected.size() / 6);
  EXPECT_GT(failed, expected.size() / 6);
  for (const TreeShape& shape : {TreeShape{}, TreeShape{.widths = {3, 2, 1}}}) {
    TestCluster cluster({.target = kTarget,
                         .draft = draft_model(),
                         .drafter = DrafterKind::kModel,
                         .max_num_seqs = 8,
                         .eos_ids = kEnds,
                         .tree = shape});
    const auto what = fmt::format("{} widths", shape.widths.size());
    const auto finished = cluster.run(requests("fixed:gamma=5"));
    ASSERT_EQ(finished.size(), expected.size());
    for (size_t i = 0; i < finished.size(); ++i) {
      EXPECT_EQ(finished[i].ids, expected[i].ids) << what << ", request " << i;
      EXPECT_EQ(finished[i].reason, expected[i].reason) << what << ", request " << i;
      EXPECT_EQ(finished[i].error.message(), expected[i].error.message()) << what << ", request " << i;
    }
    EXPECT_GT(cluster.totals().drafts_used, kEnough) << what;
  }
}

TEST(GrammarsThatFail, ABiasCannotAllowWhatTheyForbidAndMayForbidTheRest) {
  auto requests = constrained({Rule::kGreedy, Rule::kInvariant}, "fixed:gamma=4");
  requests.resize(8);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].grammar = grammar_of(i);
    requests[i].sampling.logit_bias.clear();
    for (int v = 0; v < kVocab; v += 3) requests[i].sampling.logit_bias.emplace_back(TokenId(v), 1e6f);
  }
  TestCluster cluster(
      {.target = kTarget, .draft = draft_model(), .drafter = DrafterKind::kModel, .eos_ids = kEnds});
  auto again = requests;
  expect_allowed(cluster.run(std::move(requests)), std::move(again));

  Request request = constrained({Rule::kGreedy}, "").at(1);
  request.grammar = make_prefix_grammar({.vocab_size = kVocab, .is_even = true});
  for (int v = 0; v < kVocab; ++v) request.sampling.ends.emplace_back(v);
  request.sampling.ends_from = 1000;
  std::vector<Request> one;
  one.push_back(request);
  const auto finished = cluster.run(std::move(one));
  EXPECT_NE(finished[0].error.message().find("min_tokens"), std::string::npos) << finished[0].error.message();
}

TEST(GrammarsThatFail, OtherVocabulariesAreRefused) {
  TestCluster cluster({.target = kTarget});
  Request request = constrained({Rule::kGreedy}, "").at(1);
  request.grammar = make_prefix_grammar({.vocab_size = kVocab - 1});
  std::vector<Request> one;
  one.push_back(request);
  const auto finished = cluster.run(std::move(one));
  EXPECT_EQ(finished[0].error.code(), StatusCode::kInvalidArgument);
}

// ---- the output distribution -----------------------------------------------------------------------------

// Adds the exact distribution of the first tokens under a grammar and top-k: sampling filters see only the
// tokens that the grammar allows.
void extend_law(Model& model, const Grammar& grammar, std::vector<TokenId>& text, size_t prompt,
                size_t length, float temperature, size_t top_k, double mass, testing::Law& law) {
  if (text.size() == prompt + length) {
    std::vector<int32_t> key;
    for (size_t i = prompt; i < text.size(); ++i) key.push_back(text[i].value());
    law[key] += mass;
    return;
  }
  const auto matcher = grammar.matcher();
  for (size_t i = prompt; i < text.size(); ++i) ASSERT_TRUE(matcher->accept(text[i]));
  std::vector<uint32_t> bits(words_of_bits(kVocab));
  ASSERT_TRUE(matcher->allow(bits).ok());
  auto p = testing::law_after(model, text, temperature);
  std::vector<int32_t> order;
  for (int32_t v = 0; v < kVocab; ++v)
    if (bits[static_cast<size_t>(v / 32)] >> v % 32 & 1) order.push_back(v);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return p[static_cast<size_t>(a)] > p[static_cast<size_t>(b)];
  });
  order.resize(std::min(order.size(), top_k));
  double sum = 0;
  for (const int32_t v : order) sum += p[static_cast<size_t>(v)];
  for (const int32_t v : order) {
    text.emplace_back(v);
    extend_law(model, grammar, text, prompt, length, temperature, top_k,
               mass * p[static_cast<size_t>(v)] / sum, law);
    text.pop_back();
  }
}

TEST(GrammarsLaw, EmittedSequencesFollowTheTargetAmongWhatIsAllowed) {
  constexpr size_t kLength = 4, kTopK = 4;
  constexpr float kTemperature = 4.0f;
  const int samples = kSanitized ? 1000 : testing::repeated_law_samples();
  const std::vector<TokenId> prompt{TokenId(11), TokenId(14), TokenId(10)};
  const auto single = make_single_collectives();
  auto model = testing::load_or_die(testing::golden_model(kTarget), {}, *single);
  const auto grammar =
      make_prefix_grammar({.vocab_size = kVocab, .seed = 9, .over_after = 99, .is_even = true});
  testing::Law law;
  auto text = prompt;
  extend_law(*model, *grammar, text, prompt.size(), kLength, kTemperature, kTopK, 1, law);
  const auto follows = [&](TestCluster& cluster, Rule rule) {
    auto requests = testing::seeded_requests(
        prompt, {.rule = rule, .temperature = kTemperature, .top_k = kTopK}, samples);
    for (Request& request : requests) request.grammar = grammar;
    auto seen = testing::count_texts(cluster, std::move(requests));
    testing::expect_follows(law, seen, samples, std::string(rule_name(rule)));
  };
  ClusterOptions options{
      .target = kTarget, .draft = draft_model(), .drafter = DrafterKind::kModel, .max_num_seqs = 8};
  TestCluster cluster(options);
  for (const Rule rule : {Rule::kInvariant, Rule::kNaive, Rule::kToken, Rule::kBlock}) follows(cluster, rule);
  EXPECT_GT(cluster.totals().rounds.rollbacks, 100);
  EXPECT_GT(cluster.totals().mask_cut_tokens, 100);
  options.tree = {.widths = {2, 2, 1}};
  TestCluster trees(options);
  for (const Rule rule : {Rule::kSpecInfer, Rule::kSwor, Rule::kTraversal}) follows(trees, rule);
}

}  // namespace
}  // namespace outrider::grammars_test
