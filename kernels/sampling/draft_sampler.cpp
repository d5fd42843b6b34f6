#include "kernels/sampling/draft_sampler.h"

#include <algorithm>

#include "base/log.h"
#include "base/philox.h"
#include "base/q_row.h"
#include "kernels/sampling/compact_row.h"
#include "kernels/sampling/gumbel.h"
#include "kernels/sampling/penalties.h"

namespace outrider {

void make_integer_weights(std::span<const float> processed, float max, int64_t row_bytes, QRow& q,
                          std::vector<uint32_t>& scratch) {
  q.ids.clear();
  q.rest = q.id_end = 0;
  q.weights.resize(processed.size());
  fill_draft_weights(processed, max, q.weights);
  if (row_bytes > 0) return compact_row(row_bytes, q, scratch);
  q.sum = shorten_weights(q.weights);
}

// The listed tokens come first, then the others.
TokenId draw_token(const QRow& q, uint64_t bits) {
  CHECK(q.sum > 0, "a draft distribution of {} weights without mass", q.weights.size());
  uint64_t target = multiply_high(bits, q.sum);
  for (size_t i = 0; i < q.weights.size(); ++i) {
    if (target < q.weights[i]) return TokenId(static_cast<int32_t>(q.ids.empty() ? i : q.ids[i]));
    target -= q.weights[i];
  }
  uint64_t id = target / q.rest;
  for (const uint32_t listed : q.ids) id += listed <= id;
  return TokenId(static_cast<int32_t>(id));
}

// Among ids without a place of their own the listed ones and those that are gone are passed over.
std::optional<TokenId> draw_token_without(const QRow& q, std::span<const TokenId> gone, uint64_t bits) {
  uint64_t sum = q.sum;
  for (const TokenId id : gone) sum -= weight_in(q, id);
  if (sum == 0) return std::nullopt;
  const auto is_gone = [&](uint64_t id) {
    return std::find(gone.begin(), gone.end(), TokenId(static_cast<int32_t>(id))) != gone.end();
  };
  uint64_t target = multiply_high(bits, sum);
  for (size_t i = 0; i < q.weights.size(); ++i) {
    const uint64_t id = q.ids.empty() ? i : q.ids[i];
    if (q.weights[i] == 0 || is_gone(id)) continue;
    if (target < q.weights[i]) return TokenId(static_cast<int32_t>(id));
    target -= q.weights[i];
  }
  std::vector<uint32_t> passed(q.ids.begin(), q.ids.end());
  for (const TokenId id : gone) {
    const auto v = static_cast<uint32_t>(id.value());
    if (!std::binary_search(q.ids.begin(), q.ids.end(), v)) passed.push_back(v);
  }
  std::sort(passed.begin(), passed.end());
  uint64_t id = target / q.rest;
  for (const uint32_t listed : passed) id += listed <= id;
  return TokenId(static_cast<int32_t>(id));
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
  row.max = max_ = best.value();
  ShardRow* const rows[] = {&row};
  const bool takes_best = rule == Rule::kGreedy || rule == Rule::kNaive;  // which no filter removes
  if (!takes_best && has_filters(params)) filters_.apply(rows);
  return best;
}

bool DraftSampler::weigh(std::span<float> logits, const DraftStep& step, QRow& q) {
  if (!process(logits, step)) return false;
  make_integer_weights(logits, max_, step.row_bytes, q, scratch_);
  return true;
}

std::optional<TokenId> DraftSampler::sample(std::span<float> logits, const DraftStep& step, QRow* q) {
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
  make_integer_weights(logits, max_, step.row_bytes, *q, scratch_);
  return draw_token(*q, draw_u64(params.seed, Purpose::kDraft, step.position, step.round));
}

}  // namespace outrider
