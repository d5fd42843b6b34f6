#include "target_worker/sharded_verifier.h"

#include <algorithm>

#include "kernels/sampling/gumbel.h"
#include "kernels/sampling/penalties.h"

namespace outrider {
namespace {

QView q_of(const VerifyRequest& request, size_t i, IndexRange range) {
  const QRow& row = request.q[i];
  const int64_t begin = request.q_kind == QKind::kSlices ? range.begin : 0;
  return {row.ids, row.weights, row.sum, begin, row.rest, row.id_end};
}

// The maximum over ranks of packed tokens, in one collective.
void reduce_max(Collectives& group, std::vector<RankedToken>& tokens) {
  static_assert(sizeof(RankedToken) == sizeof(uint64_t));
  if (!tokens.empty()) group.all_reduce_max(std::span(&tokens.front().packed, tokens.size()));
}

}  // namespace

ShardedVerifier::ShardedVerifier(Collectives& group)
    : group_(group), filters_(group), sampler_(group), logprobs_(group) {}

const std::vector<VerifyResult>& ShardedVerifier::verify(std::span<const VerifyRequest> requests,
                                                         const PlacedLogits& logits) {
  const auto* shard = std::get_if<LogitsShard>(&logits);
  CHECK(shard, "the logits are in device memory");
  lay_out(requests, *shard);
  process_rows();
  reduce_best();
  filter_rows();
  sum_tested_rows();
  sum_block_residuals();
  choose_tokens();
  report_logprobs();
  return results_;
}

void ShardedVerifier::lay_out(std::span<const VerifyRequest> requests, const LogitsShard& logits) {
  const Chunks chunks{logits.vocab_range};
  const auto chunk_count = static_cast<size_t>(chunks.count());
  const auto width = static_cast<size_t>(logits.vocab_range.size());
  entry_count_ = requests.size();
  entries_.resize(std::max(entries_.size(), entry_count_));
  results_.resize(entry_count_);
  rows_.clear();
  size_t raw_rows = 0, row_count = 0;
  for (const VerifyRequest& request : requests) row_count += request.draft.size() + 1;
  chunk_max_.resize(row_count * chunk_count);
  for (size_t e = 0; e < entry_count_; ++e) {
    const VerifyRequest& request = requests[e];
    Entry& entry = entries_[e];
    entry.request = &request;
    entry.rule = chain_rule(effective_rule(*request.sampling));
    entry.first_row = rows_.size();
    entry.first_raw = raw_rows;
    entry.gamma = static_cast<int>(request.draft.size());
    entry.rows = entry.gamma + 1;
    CHECK(!entry.tests_q() || request.q.size() == request.draft.size(), "{} q rows for {} draft tokens",
          request.q.size(), request.draft.size());
    for (size_t i = 0; i <= request.draft.size(); ++i)
      rows_.push_back({.logits = logits.logits.row(request.first_row + static_cast<int64_t>(i)),
                       .chunks = chunks,
                       .chunk_max = std::span(chunk_max_).subspan(rows_.size() * chunk_count, chunk_count),
                       .params = request.sampling});
    if (request.sampling->logprobs >= 0) raw_rows += request.draft.size() + 1;
  }
  raw_.resize(raw_rows * width);
}

// Penalties, bias and temperature, and this rank's best token of every row.
void ShardedVerifier::process_rows() {
  best_.resize(rows_.size());
  for (Entry& entry : std::span(entries_).first(entry_count_)) {
    const VerifyRequest& request = *entry.request;
    for (int i = 0; i < entry.rows; ++i) {
      ShardRow& row = rows_[entry.first_row + static_cast<size_t>(i)];
      if (request.sampling->logprobs >= 0)
        std::copy(row.logits.begin(), row.logits.end(),
                  raw_.begin() + static_cast<std::ptrdiff_t>((entry.first_raw + static_cast<size_t>(i)) *
                                                             row.logits.size()));
      apply_penalties(row.logits, row.chunks.range, *request.sampling, request.counts,
                      request.draft.first(static_cast<size_t>(i)));
      forbid_ends(row.logits, row.chunks.range, *request.sampling, request.base + i);
      if (const TokenSet* const allowed = allowed_at(request, i))
        forbid_others(row.logits, row.chunks.range, *allowed);
      const bool nan =
          scale_and_scan(row.logits, row.chunks, inverse_temperature(*request.sampling), row.chunk_max);
      RankedToken& best = best_[entry.first_row + static_cast<size_t>(i)];
      best = best_logit(row, nan);
      // Without filters the noise decides at once. A row that is not finite keeps the key that says so.
      if (best.is_finite() && !has_filters(*request.sampling)) best = local_choice(entry, row, i);
    }
  }
}

// This rank's candidate token at a row, under a rule that needs a maximum only.
RankedToken ShardedVerifier::local_choice(const Entry& entry, const ShardRow& row, int index) const {
  if (entry.rule != Rule::kInvariant) return best_logit(row, false);
  return gumbel_argmax(row.logits, row.chunks, row.chunk_max, entry.request->sampling->seed,
                       entry.request->base + index);
}

void ShardedVerifier::reduce_best() {
  reduce_max(group_, best_);
  for (size_t e = 0; e < entry_count_; ++e) {
    Entry& entry = entries_[e];
    const auto best = std::span(best_).subspan(entry.first_row, static_cast<size_t>(entry.rows));
    for (size_t i = 0; i < best.size(); ++i) rows_[entry.first_row + i].max = best[i].value();
    const auto bad = std::find_if(best.begin(), best.end(), [](RankedToken b) { return !b.is_finite(); });
    entry.rows = static_cast<int>(bad - best.begin());
    entry.gamma = std::min(entry.gamma, entry.rows);
    results_[e].status = entry.failed() ? VerdictStatus::kNonFinite : VerdictStatus::kOk;
    results_[e].accepted_count = 0;
    results_[e].next = TokenId();
    results_[e].logprobs.clear();
  }
}

void ShardedVerifier::filter_rows() {
  filtered_.clear();
  for (Entry& entry : std::span(entries_).first(entry_count_)) {
    if (entry.failed() || !has_filters(*entry.request->sampling)) continue;
    for (int i = 0; i < entry.rows; ++i)
      filtered_.push_back(&rows_[entry.first_row + static_cast<size_t>(i)]);
  }
  filters_.apply(filtered_);

  // Under the invariant rule the noise now decides among what is left.
  noisy_.clear();
  const auto for_each_noisy_row = [this](auto&& use) {
    for (Entry& entry : std::span(entries_).first(entry_count_)) {
      if (entry.failed() || entry.rule != Rule::kInvariant || !has_filters(*entry.request->sampling))
        continue;
      for (int i = 0; i < entry.rows; ++i) use(entry, entry.first_row + static_cast<size_t>(i), i);
    }
  };
  for_each_noisy_row([&](const Entry& entry, size_t row, int index) {
    noisy_.push_back(local_choice(entry, rows_[row], index));
  });
  reduce_max(group_, noisy_);
  size_t next = 0;
  for_each_noisy_row([&](const Entry&, size_t row, int) { best_[row] = noisy_[next++]; });
}

RowWeights ShardedVerifier::weights_of_row(const Entry& entry, int index) const {
  const ShardRow& row = rows_[entry.first_row + static_cast<size_t>(index)];
  return {.logits = row.logits, .range = row.chunks.range, .max = row.max};
}

RowWeights ShardedVerifier::residual_of_row(const Entry& entry, int index, double ratio) const {
  RowWeights weights = weights_of_row(entry, index);
  weights.residual = true;
  weights.q = q_of(*entry.request, static_cast<size_t>(index), weights.range);
  weights.total = entry.totals[static_cast<size_t>(index)];
  weights.ratio = ratio;
  return weights;
}

// Z of every tested row and W of its draft token: with q and the uniforms that is all an accept test needs.
void ShardedVerifier::sum_tested_rows() {
  integers_.clear();
  for (Entry& entry : std::span(entries_).first(entry_count_)) {
    if (entry.failed() || !entry.tests_q()) continue;
    for (int i = 0; i < entry.gamma; ++i) {
      const RowWeights row = weights_of_row(entry, i);
      const int64_t x = entry.request->draft[static_cast<size_t>(i)].value();
      integers_.push_back(sampler_.local_mass(row));
      integers_.push_back(row.range.contains(x)
                              ? weight_of(row.logits[static_cast<size_t>(x - row.range.begin)], row.max)
                              : 0);
    }
  }
  if (integers_.empty()) return;
  group_.all_reduce_sum(std::span(integers_));
  const uint64_t* sum = integers_.data();
  for (Entry& entry : std::span(entries_).first(entry_count_)) {
    if (entry.failed() || !entry.tests_q()) continue;
    const VerifyRequest& request = *entry.request;
    entry.tests.clear();
    entry.totals.clear();
    for (int i = 0; i < entry.gamma; ++i, sum += 2) {
      const double q_x = probability_of_draft(request, static_cast<size_t>(i));
      stats_.q_zero_draws += q_x == 0;
      entry.totals.push_back(sum[0]);
      entry.tests.push_back(
          {.p = static_cast<double>(sum[1]) / static_cast<double>(sum[0]),
           .q = q_x,
           .u = draw_uniform(request.sampling->seed, Purpose::kAccept, request.base + i, request.round)});
    }
  }
}

// S[i] of every tested row of the block rule.
void ShardedVerifier::sum_block_residuals() {
  integers_.clear();
  for (Entry& entry : std::span(entries_).first(entry_count_)) {
    if (entry.failed() || !entry.tests_q() || entry.rule != Rule::kBlock) continue;
    block_ratios(entry.tests, entry.ratios);
    for (int i = 0; i < entry.gamma; ++i)
      integers_.push_back(
          sampler_.local_mass(residual_of_row(entry, i, entry.ratios[static_cast<size_t>(i)])));
  }
  if (integers_.empty()) return;
  group_.all_reduce_sum(std::span(integers_));
  const uint64_t* sum = integers_.data();
  for (Entry& entry : std::span(entries_).first(entry_count_)) {
    if (entry.failed() || !entry.tests_q() || entry.rule != Rule::kBlock) continue;
    entry.residual_mass.clear();
    for (int i = 0; i < entry.gamma; ++i)
      entry.residual_mass.push_back(static_cast<double>(*sum++) * 0x1p-60);
  }
}

// Draws every token that is not a maximum: the target's own samples (naive, plain) and recovery or bonus
// tokens.
void ShardedVerifier::choose_tokens() {
  draws_.clear();
  for (size_t e = 0; e < entry_count_; ++e) {
    Entry& entry = entries_[e];
    if (entry.failed()) continue;
    const VerifyRequest& request = *entry.request;
    const Seed seed = request.sampling->seed;
    entry.first_draw = draws_.size();
    if (entry.draws_whole_rows()) {
      for (int i = 0; i < entry.rows; ++i)
        draws_.push_back({.row = weights_of_row(entry, i),
                          .bits = draw_u64(seed, Purpose::kPlain, request.base + i, Round(0))});
    } else if (entry.tests_q()) {
      const bool block = entry.rule == Rule::kBlock;
      const int n = block ? count_block_accepted(entry.tests, entry.ratios, entry.residual_mass)
                          : count_token_accepted(entry.tests);
      const double ratio = block ? entry.ratios[static_cast<size_t>(n)] : 1.0;
      results_[e].accepted_count = n;
      if (n < entry.rows)
        draws_.push_back(
            {.row = n == entry.gamma ? weights_of_row(entry, n) : residual_of_row(entry, n, ratio),
             .bits = draw_u64(seed, Purpose::kResidual, request.base + n, request.round)});
    }
  }
  stats_.residual_fallbacks += static_cast<uint64_t>(sampler_.draw(draws_));
  for (size_t e = 0; e < entry_count_; ++e) {
    Entry& entry = entries_[e];
    if (entry.failed()) continue;
    VerifyResult& result = results_[e];
    if (!entry.tests_q())
      finish_matches(entry, result);
    else if (result.accepted_count < entry.rows)
      result.next = draws_[entry.first_draw].token;
    if (result.accepted_count == entry.rows)  // its last token stands, and nothing is known behind it
      result.next = entry.request->draft[static_cast<size_t>(--result.accepted_count)];
  }
}

// The target's own choice of every row is known: keep the draft tokens that agree.
void ShardedVerifier::finish_matches(Entry& entry, VerifyResult& result) {
  targets_.clear();
  for (int i = 0; i < entry.rows; ++i)
    targets_.push_back(entry.draws_whole_rows() ? draws_[entry.first_draw + static_cast<size_t>(i)].token
                                                : best_[entry.first_row + static_cast<size_t>(i)].id());
  result.accepted_count =
      count_matches(entry.request->draft.first(static_cast<size_t>(entry.gamma)), targets_);
  if (result.accepted_count < entry.rows) result.next = targets_[static_cast<size_t>(result.accepted_count)];
}

void ShardedVerifier::report_logprobs() {
  queries_.clear();
  for (size_t e = 0; e < entry_count_; ++e) {
    const Entry& entry = entries_[e];
    if (entry.failed() || entry.request->sampling->logprobs < 0) continue;
    const VerifyResult& result = results_[e];
    const size_t width = rows_[entry.first_row].logits.size();
    for (int i = 0; i <= result.accepted_count; ++i)
      queries_.push_back(
          {.raw = std::span(raw_).subspan((entry.first_raw + static_cast<size_t>(i)) * width, width),
           .chosen = chosen_at(*entry.request, result, i),
           .top = entry.request->sampling->logprobs});
  }
  if (queries_.empty()) return;
  auto row = logprobs_.compute(queries_, rows_.front().chunks).begin();
  auto query = queries_.begin();
  for (size_t e = 0; e < entry_count_; ++e) {
    if (entries_[e].failed() || entries_[e].request->sampling->logprobs < 0) continue;
    for (int i = 0; i <= results_[e].accepted_count; ++i, ++row, ++query) {
      PositionLogprobs& position = results_[e].logprobs.emplace_back();
      position.chosen = {query->chosen, row->chosen};
      for (const auto& [id, logprob] : row->top) position.top.push_back({id, logprob});
    }
  }
}

}  // namespace outrider
