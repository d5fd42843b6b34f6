#include "transformer/sampling/draft_sampler.h"

#include <algorithm>
#include <functional>

#include "base/log.h"
#include "base/short_weight.h"
#include "transformer/sampling/gumbel.h"
#include "transformer/sampling/penalties.h"

namespace outrider {
namespace {

// Packed like RankedToken: the larger weight first, then the lower id.
uint64_t rank_by_weight(uint32_t weight, size_t id) {
  return static_cast<uint64_t>(weight) << 32 | (0xFFFFFFFF - static_cast<uint32_t>(id));
}
uint32_t weight_of_rank(uint64_t ranked) { return static_cast<uint32_t>(ranked >> 32); }
uint32_t id_of_rank(uint64_t ranked) { return 0xFFFFFFFF - static_cast<uint32_t>(ranked); }

// A weight that at least m tokens reach: the m-th best of the chunks' best. 1 if there are too few chunks.
uint32_t weight_floor(std::span<const uint32_t> weights, size_t m, std::vector<uint64_t>& scratch) {
  const size_t chunk = kChunkTokens;
  if (weights.size() / chunk <= m) return 1;
  scratch.clear();
  for (size_t begin = 0; begin < weights.size(); begin += chunk) {
    const auto part = weights.subspan(begin, std::min(chunk, weights.size() - begin));
    scratch.push_back(*std::max_element(part.begin(), part.end()));
  }
  const auto nth = scratch.begin() + static_cast<std::ptrdiff_t>(m - 1);
  std::nth_element(scratch.begin(), nth, scratch.end(), std::greater<>());
  return std::max(static_cast<uint32_t>(*nth), 1u);
}

void keep_best(size_t m, IntegerWeights& q, std::vector<uint64_t>& scratch) {
  const uint32_t floor = weight_floor(q.weights, m, scratch);
  scratch.clear();
  for (size_t v = 0; v < q.weights.size(); ++v)
    if (q.weights[v] >= floor) scratch.push_back(rank_by_weight(q.weights[v], v));
  if (scratch.size() > m) {
    std::nth_element(scratch.begin(), scratch.begin() + static_cast<std::ptrdiff_t>(m), scratch.end(),
                     std::greater<>());
    scratch.resize(m);
  }
  std::sort(scratch.begin(), scratch.end(),
            [](uint64_t a, uint64_t b) { return id_of_rank(a) < id_of_rank(b); });
  q.weights.clear();
  for (uint64_t ranked : scratch) {
    q.ids.push_back(id_of_rank(ranked));
    q.weights.push_back(weight_of_rank(ranked));
  }
}

}  // namespace

void make_integer_weights(std::span<const float> processed, float max, int32_t sparse_m, IntegerWeights& q,
                          std::vector<uint64_t>& scratch) {
  q.ids.clear();
  q.weights.resize(processed.size());
  fill_draft_weights(processed, max, q.weights);
  for (uint32_t& weight : q.weights) weight = round_to_short_weight(weight);
  if (sparse_m > 0) keep_best(static_cast<size_t>(sparse_m), q, scratch);
  q.sum = 0;
  for (uint32_t weight : q.weights) q.sum += weight;
}

TokenId draw_token(const IntegerWeights& q, uint64_t bits) {
  CHECK(q.sum > 0, "a draft distribution of {} weights without mass", q.weights.size());
  uint64_t target = mulhi64(bits, q.sum);
  size_t i = 0;
  while (target >= q.weights[i]) target -= q.weights[i++];
  return TokenId(static_cast<int32_t>(q.ids.empty() ? i : q.ids[i]));
}

std::optional<RankedToken> DraftSampler::process(std::span<float> logits, const DraftStep& step) {
  const SamplingParams& params = *step.sampling;
  const Rule rule = effective_rule(params);
  const Chunks chunks{{0, static_cast<int64_t>(logits.size())}};
  chunk_max_.resize(static_cast<size_t>(chunks.count()));
  ShardRow row{.logits = logits, .chunks = chunks, .chunk_max = chunk_max_, .params = &params};

  apply_penalties(logits, chunks.range, params, step.counts, step.drafted);
  const bool nan = scale_and_scan(logits, chunks, inverse_temperature(params), chunk_max_);
  const RankedToken best = best_logit(row, nan);
  if (!best.is_finite()) return std::nullopt;
  row.max = best.value();
  ShardRow* const rows[] = {&row};
  const bool takes_best = rule == Rule::kGreedy || rule == Rule::kNaive;  // which no filter removes
  if (!takes_best && has_filters(params)) filters_.apply(rows);
  return best;
}

std::optional<TokenId> DraftSampler::sample(std::span<float> logits, const DraftStep& step,
                                            IntegerWeights* q) {
  const SamplingParams& params = *step.sampling;
  const Rule rule = effective_rule(params);
  const auto best = process(logits, step);
  if (!best) return std::nullopt;
  // Naive accepts an argmax more often than a sample: p(argmax q) against the sum of p q.
  if (rule == Rule::kGreedy || rule == Rule::kNaive) return best->id();
  if (rule == Rule::kInvariant) {
    const Chunks chunks{{0, static_cast<int64_t>(logits.size())}};
    return gumbel_argmax(logits, chunks, chunk_max_, params.seed, step.position).id();
  }
  CHECK(q != nullptr, "the {} rule needs q", rule_name(rule));
  make_integer_weights(logits, best->value(), step.sparse_m, *q, ranked_);
  return draw_token(*q, draw_u64(params.seed, Purpose::kDraft, step.position, step.round));
}

}  // namespace outrider
