// Later requests reuse the KV blocks of a common prefix, and nothing else changes. Every text, and every
// log-probability to its last bit, equals that of a run in which each prompt is computed whole.
#include <gtest/gtest.h>

#include "tests/end_to_end/request_grid.h"
#include "tests/heads/golden_heads.h"

namespace outrider::prefix_cache_test {
namespace {

using namespace grid;  // NOLINT: the grid's names
using testing::DrafterKind;

std::vector<TokenId> random_ids(std::mt19937& random, int length) {
  std::vector<TokenId> ids;
  for (int i = 0; i < length; ++i) ids.emplace_back(static_cast<int32_t>(random() % 6 + 10));
  return ids;
}

std::vector<TokenId> joined(std::vector<TokenId> ids, const std::vector<TokenId>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

// Prompts that share all, a part of a block, whole blocks, or nothing; some several times, as choices do.
std::vector<std::vector<TokenId>> shared_prompts() {
  std::mt19937 random(29);
  std::vector<std::vector<TokenId>> out;
  for (const int shared : {48, 37, 20, 7}) {
    const auto beginning = random_ids(random, shared);
    out.push_back(beginning);
    for (const int more : {0, 0, 1, 5, 16, 23}) out.push_back(joined(beginning, random_ids(random, more)));
    out.emplace_back(beginning.begin(), beginning.begin() + shared / 2 + 1);
    out.push_back(random_ids(random, shared));
  }
  if (kSanitized) out.resize(9);
  return out;
}

// Twice, so that the second time all of it was there before, if it is there still.
std::vector<Request> shared_requests(const std::vector<Rule>& rules, const std::string& policy) {
  std::vector<Request> requests;
  for (int turn = 0; turn < 2; ++turn)
    for (const Rule rule : rules)
      for (const auto& prompt : shared_prompts()) {
        Request request{.prompt = prompt, .max_tokens = kMaxTokens};
        const auto filters = filter_grid();
        request.sampling = filters[requests.size() % filters.size()].params;
        request.sampling.rule = rule;
        request.sampling.temperature = rule == Rule::kGreedy ? 0.0f : 1.5f;
        request.sampling.seed = Seed{500 + requests.size()};
        request.sampling.logprobs = requests.size() % 3 == 0 ? 2 : -1;
        if (requests.size() % 11 == 10) request.prompt_logprobs = 1;
        if (requests.size() % 7 == 6) request.cache_salt = "of another user";
        if (!policy.empty()) request.gamma = parse_gamma_policy(policy).value();
        requests.push_back(std::move(request));
      }
  return requests;
}

bool same(const PositionLogprobs& a, const PositionLogprobs& b) {
  const auto equal = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.id == y.id && x.logprob == y.logprob;
  };
  return equal(a.chosen, b.chosen) &&
         std::equal(a.top.begin(), a.top.end(), b.top.begin(), b.top.end(), equal);
}

void expect_same_bits(const std::vector<Finished>& expected, const std::vector<Finished>& actual,
                      const std::string& what) {
  expect_same(expected, actual, what);
  for (size_t i = 0; i < std::min(expected.size(), actual.size()); ++i) {
    EXPECT_TRUE(std::equal(expected[i].logprobs.begin(), expected[i].logprobs.end(),
                           actual[i].logprobs.begin(), actual[i].logprobs.end(), same))
        << what << ": log-probabilities of request " << i;
    EXPECT_TRUE(std::equal(expected[i].prompt_logprobs.begin(), expected[i].prompt_logprobs.end(),
                           actual[i].prompt_logprobs.begin(), actual[i].prompt_logprobs.end(), same))
        << what << ": log-probabilities of prompt " << i;
    EXPECT_EQ(expected[i].metrics.cached_tokens, 0);
  }
}

const std::vector<Finished>& computed_whole() {
  static const std::vector<Finished> finished = [] {
    TestCluster plain({.target = kTarget, .prefix_caching = false});
    auto all = plain.run(shared_requests(kMatchRules, ""));
    EXPECT_EQ(plain.totals().prefix_queries, 0);
    return all;
  }();
  return finished;
}

// More than `least_percent` percent of the queried prompt tokens were found in the cache, and not all tokens
// were.
void expect_hits(const TestCluster& cluster, int least_percent, const std::string& what) {
  const Totals& totals = cluster.totals();
  EXPECT_GT(100 * totals.prefix_hits, least_percent * totals.prefix_queries) << what;
  EXPECT_LT(totals.prefix_hits, totals.prefix_queries) << what;
}

class PrefixCache : public ::testing::TestWithParam<int> {};  // tensor-parallel size

TEST_P(PrefixCache, AHitHasTheBitsOfAFreshPrefill) {
  for (const int batch : {1, 3, 8})
    for (const DrafterKind drafter : {DrafterKind::kNone, DrafterKind::kModel}) {
      TestCluster cluster({.target = kTarget,
                           .draft = draft_model(),
                           .drafter = drafter,
                           .tp_size = GetParam(),
                           .max_num_seqs = batch});
      const auto what =
          fmt::format("tp {}, batch {}, drafter {}", GetParam(), batch, static_cast<int>(drafter));
      const auto finished =
          cluster.run(shared_requests(kMatchRules, drafter == DrafterKind::kNone ? "" : "fixed:gamma=4"));
      expect_same_bits(computed_whole(), finished, what);
      expect_hits(cluster, batch == 1 ? 10 : 30, what);  // the cache of a single place is small
      for (size_t i = 10; i < finished.size(); i += 11)
        EXPECT_EQ(finished[i].metrics.cached_tokens, 0) << "every row was asked about";
    }
}

INSTANTIATE_TEST_SUITE_P(TensorParallel, PrefixCache, ::testing::Values(1, 2, 4));

TEST(PrefixCacheToo, PipelinesAndTreesFindTheSame) {
  for (const Pipeline pipeline : {Pipeline::kFanout, Pipeline::kAuto}) {
    TestCluster cluster({.target = kTarget,
                         .draft = draft_model(),
                         .drafter = DrafterKind::kModel,
                         .max_num_seqs = 4,
                         .pipeline = pipeline});
    expect_same_bits(computed_whole(), cluster.run(shared_requests(kMatchRules, "fixed:gamma=4")),
                     "pipeline");
    expect_hits(cluster, 20, "pipeline");
  }
  TestCluster trees({.target = kTarget,
                     .draft = draft_model(),
                     .drafter = DrafterKind::kModel,
                     .tp_size = 2,
                     .max_num_seqs = 4,
                     .tree = {.widths = {3, 2, 1}}});
  expect_same_bits(computed_whole(), trees.run(shared_requests(kMatchRules, "fixed:gamma=3")), "trees");
  expect_hits(trees, 20, "trees");
}

// Drafts, and so their tests, depend on the text alone, whoever computed its beginning.
TEST(PrefixCacheToo, TokenAndBlockRulesGiveTheTextOfARunWithoutIt) {
  ClusterOptions options{
      .target = kTarget, .draft = draft_model(), .drafter = DrafterKind::kModel, .max_num_seqs = 4};
  TestCluster cached(options);
  options.prefix_caching = false;
  TestCluster whole(options);
  expect_same_bits(whole.run(shared_requests(kPqRules, "fixed:gamma=3")),
                   cached.run(shared_requests(kPqRules, "fixed:gamma=3")), "p/q rules");
  expect_hits(cached, 20, "p/q rules");
}

// A head reads the target's hidden states, which lie beside keys and values: its drafts are those of a fresh
// prefill.
TEST(PrefixCacheToo, HeadsReadTheStatesOfWhatWasThere) {
  const std::string pair = (source_dir() / "launch/demo_pair").string();
  for (const int tp_size : testing::runs_whole_grids() ? std::vector{1, 2} : std::vector{2}) {
    ClusterOptions options{.target = pair + "/target", .head = pair + "/eagle3", .tp_size = tp_size};
    TestCluster cached(options);
    options.prefix_caching = false;
    TestCluster whole(options);
    expect_same_bits(whole.run(shared_requests({Rule::kInvariant}, "fixed:gamma=4")),
                     cached.run(shared_requests({Rule::kInvariant}, "fixed:gamma=4")), "a head");
    expect_hits(cached, 10, "a head");
    const RoundSums &with = cached.totals().rounds, &without = whole.totals().rounds;
    EXPECT_GT(with.accepted, kEnough);
    EXPECT_EQ(with.drafted, without.drafted);
    EXPECT_EQ(with.accepted, without.accepted);
  }
}

// A conversation: each turn's prompt is the one before, its answer, and something new. All but the new is
// there.
TEST(PrefixCacheToo, TurnsOfAConversationAreReadOnce) {
  std::mt19937 random(3);
  TestCluster cluster({.target = kTarget, .max_num_seqs = 2});
  std::vector<TokenId> text = random_ids(random, 21);
  for (int turn = 0; turn < 4; ++turn) {
    Request request{.prompt = text, .max_tokens = 7, .ignore_eos = true};
    request.sampling.rule = Rule::kGreedy;
    request.sampling.temperature = 0;
    const auto finished = cluster.run({request});
    // The last token that was generated has no keys and values.
    EXPECT_EQ(finished[0].metrics.cached_tokens, turn == 0 ? 0 : static_cast<int32_t>(text.size()) - 10);
    text = joined(joined(text, finished[0].ids), random_ids(random, 9));
  }
}

// Only the first choice of a request computes the prompt.
TEST(PrefixCacheToo, ChoicesShareTheirPrompt) {
  std::mt19937 random(4);
  const auto prompt = random_ids(random, 60);
  TestCluster cluster({.target = kTarget, .max_num_seqs = 5});
  std::vector<Request> choices;
  for (uint64_t i = 0; i < 5; ++i) {
    Request request{.prompt = prompt, .max_tokens = 9, .ignore_eos = true};
    request.sampling.seed = Seed{i};
    choices.push_back(std::move(request));
  }
  const int64_t before = cluster.totals().target_rows;
  const auto finished = cluster.run(choices);
  for (size_t i = 0; i < finished.size(); ++i) EXPECT_EQ(finished[i].metrics.cached_tokens, i == 0 ? 0 : 48);
  EXPECT_EQ(cluster.totals().target_rows - before, 60 + 4 * 12 + 5 * 8);
}

// The KV cache has room for one or two of the five texts. The youngest sequence is preempted, recomputed when
// there is room, and continues with the same bits, under p/q rules too.
TEST(MemoryByNeed, SequencesThatGiveTheirPlaceUpGoOnAsIfNothingHadBeen) {
  for (const bool prefix_caching : {true, false})
    for (const DrafterKind drafter : {DrafterKind::kNone, DrafterKind::kModel}) {
      ClusterOptions options{.target = kTarget,
                             .draft = draft_model(),
                             .drafter = drafter,
                             .tp_size = drafter == DrafterKind::kNone ? 2 : 1,
                             .max_num_seqs = 5,
                             .prefix_caching = prefix_caching};
      options.kv_tokens = 11 * kBlockTokens;
      TestCluster tight(options);
      const std::string policy = drafter == DrafterKind::kNone ? "" : "fixed:gamma=4";
      const auto what = fmt::format("prefix cache {}, drafter {}", prefix_caching, static_cast<int>(drafter));
      expect_same_bits(computed_whole(), tight.run(shared_requests(kMatchRules, policy)), what);
      EXPECT_GT(tight.totals().preemptions, 5) << what;
      if (drafter == DrafterKind::kNone) continue;
      options.kv_tokens = 0;
      options.prefix_caching = false;
      TestCluster roomy(options);
      expect_same_bits(roomy.run(shared_requests(kPqRules, "fixed:gamma=3")),
                       tight.run(shared_requests(kPqRules, "fixed:gamma=3")), what + ", p/q rules");
      EXPECT_EQ(roomy.totals().preemptions, 0);
    }
}

TEST(MemoryByNeed, ATextThatCanNeverFitIsRefusedAtOnce) {
  TestCluster cluster({.target = kTarget, .max_num_seqs = 2, .kv_tokens = 3 * kBlockTokens});
  std::mt19937 random(6);
  const auto refused = cluster.run({Request{.prompt = random_ids(random, 60), .max_tokens = 4}});
  EXPECT_EQ(refused[0].error.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused[0].error.message().find("KV cache of 48"), std::string::npos)
      << refused[0].error.message();
  // One that ends there is cut, as at the end of the context.
  const auto cut =
      cluster.run({Request{.prompt = random_ids(random, 40), .max_tokens = 30, .ignore_eos = true}});
  EXPECT_EQ(cut[0].reason, FinishReason::kLength);
  EXPECT_EQ(cut[0].ids.size(), 8u);
}

TEST(PrefixCacheToo, SaltsShareNothing) {
  std::mt19937 random(5);
  const auto prompt = random_ids(random, 50);
  TestCluster cluster({.target = kTarget, .max_num_seqs = 4});
  const auto cached = [&](const std::string& salt) {
    Request request{.prompt = prompt, .max_tokens = 2, .ignore_eos = true, .cache_salt = salt};
    return cluster.run({request})[0].metrics.cached_tokens;
  };
  EXPECT_EQ(cached(""), 0);
  EXPECT_EQ(cached("a"), 0);
  EXPECT_EQ(cached("b"), 0);
  EXPECT_EQ(cached(""), 49);
  EXPECT_EQ(cached("a"), 49);
  EXPECT_EQ(cached("c"), 0);
}

}  // namespace
}  // namespace outrider::prefix_cache_test
