// Whole texts from spec steps on a toy pair of models, against plain decoding and against the target's
// distribution.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "base/hash.h"
#include "kernels/sampling/draft_sampler.h"
#include "target_worker/sharded_verifier.h"
#include "tests/kernels/sampling/reference.h"

namespace outrider {
namespace {

// Logits that depend on all tokens before them; target and draft are alike but not equal.
std::vector<float> toy_logits(const std::vector<TokenId>& context, size_t vocab_size, double disagreement) {
  std::vector<float> row(vocab_size);
  const uint64_t hash = prefix_hash(context);
  for (size_t v = 0; v < vocab_size; ++v) {
    const auto uniform = [&](uint64_t salt) {
      return static_cast<double>(hash_combine(hash, v * 2 + salt) >> 11) * 0x1p-53;
    };
    row[v] = static_cast<float>(4 * uniform(0) + disagreement * uniform(1));
  }
  return row;
}

struct Text {
  std::vector<TokenId> ids;
  int rounds = 0;
  int accepted = 0;
};

struct Toy {
  size_t vocab_size = 50;
  SamplingParams params;
  int32_t row_bytes = 0;
  double disagreement = 2;
};

// Generates `length` tokens after the prompt in rounds of gamma(round) draft tokens on this rank.
template <class Gamma>
Text generate(const Toy& toy, const std::vector<TokenId>& prompt, size_t length, Collectives& group,
              Gamma gamma) {
  const auto single = make_single_collectives();
  DraftSampler drafter(*single);
  ShardedVerifier verifier(group);
  const IndexRange range = vocab_range(static_cast<int64_t>(toy.vocab_size), {group.rank(), group.size()});
  Text text{.ids = prompt};
  TokenCounts counts;
  counts.add_prompt(prompt);
  std::vector<float> shard;
  QRow weights;
  while (text.ids.size() < prompt.size() + length) {
    const Round round(static_cast<uint32_t>(text.rounds++));
    const Position base(static_cast<int32_t>(text.ids.size()));
    std::vector<TokenId> draft, context = text.ids;
    std::vector<QRow> q;
    shard.clear();
    const int planned = gamma(text.rounds);
    for (int i = 0; i <= planned; ++i) {
      const auto target = toy_logits(context, toy.vocab_size, 0);
      shard.insert(shard.end(), target.begin() + range.begin, target.begin() + range.end);
      if (i == planned) break;
      auto logits = toy_logits(context, toy.vocab_size, toy.disagreement);
      const DraftStep step{.sampling = &toy.params,
                           .counts = &counts,
                           .drafted = draft,
                           .position = base + i,
                           .round = round,
                           .row_bytes = toy.row_bytes};
      draft.push_back(*drafter.sample(logits, step, &weights));
      if (needs_q(toy.params.rule)) q.push_back(weights);
      context.push_back(draft.back());
    }
    const VerifyRequest request{.sampling = &toy.params,
                                .round = round,
                                .base = base,
                                .draft = draft,
                                .q_kind = toy.row_bytes > 0 ? QKind::kSparse : QKind::kDense,
                                .q = q,
                                .counts = &counts};
    const LogitsShard logits{TensorView<float, 2>(shard.data(), {planned + 1, range.size()}), range,
                             static_cast<int64_t>(toy.vocab_size)};
    const VerifyResult& result = verifier.verify(std::span(&request, 1), logits).front();
    draft.resize(static_cast<size_t>(result.accepted_count));
    draft.push_back(result.next);
    counts.add_output(draft);
    text.ids.insert(text.ids.end(), draft.begin(), draft.end());
    text.accepted += result.accepted_count;
  }
  text.ids.resize(prompt.size() + length);
  return text;
}

// The match rules print the plain decoder's text whatever the draft, its length and the number of ranks.
TEST(Rounds, MatchRulesPrintThePlainText) {
  std::mt19937_64 rng(3);
  const std::vector<TokenId> prompt{TokenId(3), TokenId(1), TokenId(4)};
  for (Rule rule : {Rule::kGreedy, Rule::kInvariant, Rule::kNaive}) {
    for (int i = 0; i < 8; ++i) {
      Toy toy{.vocab_size = 12, .params = {}, .disagreement = 0.8};
      toy.params.rule = rule;
      toy.params.temperature = rule == Rule::kGreedy ? 0 : 0.5f;
      toy.params.seed = Seed{rng()};
      if (i % 2) toy.params.repetition_penalty = 1.2f, toy.params.frequency_penalty = 0.3f;
      if (i % 4 > 1) toy.params.top_k = 8, toy.params.top_p = 0.9f;
      const auto plain = generate(toy, prompt, 60, *make_single_collectives(), [](int) { return 0; });
      EXPECT_EQ(plain.rounds, 60);
      for (int ranks : {1, 2, 4}) {
        Text text;
        reference::run_ranks(ranks, [&](Collectives& group) {
          Text mine = generate(toy, prompt, 60, group, [&](int round) { return (round * 5 + i) % 7; });
          if (group.rank() == 0) text = mine;
        });
        EXPECT_EQ(text.ids, plain.ids) << rule_name(rule) << " on " << ranks << " ranks";
        EXPECT_GT(text.accepted, 5);  // speculation did happen
        EXPECT_LT(text.rounds, 60);
      }
    }
  }
}

// The joint law of the first three tokens under token and block rules, dense and sparse q, filters on,
// several rounds per text so that rejected positions are drawn again: chi-square on 4^3 - 1 = 63 degrees of
// freedom. 115 is exceeded with probability 7e-5.
TEST(Rounds, SampledTextsFollowTheTarget) {
  constexpr int kTexts = 20000;
  const std::vector<TokenId> prompt{TokenId(2)};
  for (Rule rule : {Rule::kInvariant, Rule::kNaive, Rule::kToken, Rule::kBlock}) {
    for (int32_t row_bytes : {0, 6}) {
      if (row_bytes > 0 && !needs_q(rule)) continue;
      Toy toy{.vocab_size = 4, .params = {}, .row_bytes = row_bytes, .disagreement = 3};
      toy.params.rule = rule;
      toy.params.temperature = 1.5f;
      const auto single = make_single_collectives();
      std::map<std::vector<TokenId>, int> count;
      int accepted = 0;
      for (int i = 0; i < kTexts; ++i) {
        toy.params.seed = Seed{static_cast<uint64_t>(i) * 7 + static_cast<uint64_t>(rule) * 1000003};
        const Text text = generate(toy, prompt, 3, *single, [](int) { return 2; });
        ++count[text.ids];
        accepted += text.accepted;
      }
      double chi_square = 0, mass = 0;
      const std::function<void(std::vector<TokenId>, double)> visit = [&](std::vector<TokenId> ids,
                                                                          double p) {
        if (ids.size() == prompt.size() + 3) {
          const double expected = p * kTexts;
          chi_square += (count[ids] - expected) * (count[ids] - expected) / expected;
          mass += p;
          return;
        }
        const auto row = toy_logits(ids, 4, 0);
        double z = 0;
        for (float logit : row) z += std::exp(logit / 1.5);
        for (int32_t v = 0; v < 4; ++v) {
          auto next = ids;
          next.emplace_back(v);
          visit(next, p * std::exp(row[static_cast<size_t>(v)] / 1.5) / z);
        }
      };
      visit(prompt, 1);
      EXPECT_NEAR(mass, 1, 1e-9);
      EXPECT_LT(chi_square, 115) << rule_name(rule) << " row of " << row_bytes;
      EXPECT_GT(accepted, kTexts / 10);
    }
  }
}

}  // namespace
}  // namespace outrider
