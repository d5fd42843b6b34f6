#include "target_worker/cuda/verify_inputs.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/log.h"
#include "kernels/sampling/penalties.h"
#include "kernels/sampling/weighted_draw.h"

namespace outrider::cuda {
namespace {

Decision decision_of(const VerifyRequest& request) {
  const Rule rule = chain_rule(effective_rule(*request.sampling));
  if (rule == Rule::kGreedy || rule == Rule::kInvariant) return Decision::kMatchBest;
  if (rule == Rule::kNaive || request.draft.empty()) return Decision::kMatchDrawn;
  return rule == Rule::kToken ? Decision::kToken : Decision::kBlock;
}

int32_t local_index(TokenId id, IndexRange range) {
  return range.contains(id.value()) ? static_cast<int32_t>(id.value() - range.begin) : -1;
}

constexpr size_t aligned(size_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace

void VerifyInputs::clear() {
  rows_.clear();
  tests_.clear();
  requests_.clear();
  decisions_.clear();
  counted_.clear();
  biases_.clear();
  for (auto* list : {&top_k_, &top_p_, &min_p_, &noisy_, &drawn_}) list->clear();
  masks_.clear();
  mask_words_.clear();
  words_.clear();
  word_count_ = 0;
  q_zero_draws_ = 0;
}

// Committed tokens of this rank's slice, then every drafted token with its committed counts, then the bias.
void VerifyInputs::add_penalties(const VerifyRequest& request, IndexRange range, RequestInput& input) {
  const SamplingParams& params = *request.sampling;
  input.first_count = static_cast<int32_t>(counted_.size());
  if (needs_counts(params)) {
    CHECK(request.counts != nullptr, "penalties need the token counts of their sequence");
    input.penalised = 1;
    input.factors = penalty_factors(params);
    const auto add = [&](const TokenCounts::Entry& entry) {
      counted_.push_back({.local = local_index(entry.id, range),
                          .id = entry.id.value(),
                          .in_prompt = entry.in_prompt,
                          .in_output = entry.in_output});
    };
    for (const TokenCounts::Entry& entry : request.counts->entries())
      if (range.contains(entry.id.value())) add(entry);
    input.counts = static_cast<int32_t>(counted_.size()) - input.first_count;
    input.first_drafted = static_cast<int32_t>(counted_.size());
    for (TokenId id : request.draft) add(request.counts->find(id));
  }
  input.first_bias = static_cast<int32_t>(biases_.size());
  for (const auto& [id, value] : params.logit_bias)
    if (range.contains(id.value())) biases_.push_back({local_index(id, range), value});
  if (request.base.value() < params.ends_from)
    for (const TokenId id : params.ends)
      if (range.contains(id.value()))
        biases_.push_back(
            {local_index(id, range), -std::numeric_limits<float>::infinity(), params.ends_from});
  input.biases = static_cast<int32_t>(biases_.size()) - input.first_bias;
}

// This rank's slice of the draft's distribution at one row.
void VerifyInputs::add_q(const VerifyRequest& request, int32_t index, IndexRange range, TestInput& test) {
  const QRow& q = request.q[static_cast<size_t>(index)];
  test.q_sum = static_cast<double>(q.sum);
  test.q_draft = probability_of_draft(request, static_cast<size_t>(index));
  q_zero_draws_ += test.q_draft == 0;
  if (request.q_on_device) {
    test.q_short = request.q_on_device + index * range.size();
    return;
  }
  test.sparse = !q.ids.empty();
  const int64_t skipped = request.q_kind == QKind::kSlices ? range.begin : 0;
  auto begin = static_cast<size_t>(range.begin - skipped), end = static_cast<size_t>(range.end - skipped);
  if (test.sparse) {
    const auto at = [&](int64_t id) {
      return static_cast<size_t>(std::lower_bound(q.ids.begin(), q.ids.end(), static_cast<uint32_t>(id)) -
                                 q.ids.begin());
    };
    begin = at(range.begin);
    end = at(range.end);
    test.q_rest = static_cast<double>(q.rest) / test.q_sum;
    test.q_rest_end = static_cast<int32_t>(std::clamp<int64_t>(q.id_end - range.begin, 0, range.size()));
    test.q_ids = word_count_;
    words_.push_back({std::span(q.ids).subspan(begin, end - begin), static_cast<uint32_t>(range.begin)});
    word_count_ += static_cast<int64_t>(end - begin);
  } else {  // weights end where the rest is 0
    end = std::min(end, q.weights.size());
    begin = std::min(begin, end);
  }
  test.q_count = static_cast<int32_t>(end - begin);
  test.q_weights = word_count_;
  words_.push_back({std::span(q.weights).subspan(begin, end - begin)});
  word_count_ += test.q_count;
}

// Adds the mask of allowed tokens at a row, cut to this rank's slice.
void VerifyInputs::add_mask(const VerifyRequest& request, int32_t index, IndexRange range) {
  const TokenSet* const allowed = allowed_at(request, index);
  if (!allowed || range.size() == 0) return;
  RowMask mask{.row = static_cast<int32_t>(rows_.size()), .first_word = std::ssize(mask_words_)};
  if (allowed->form == TokenSet::Form::kBits) {
    mask.form = RowMask::Form::kBits;
    mask.skipped = static_cast<int32_t>(range.begin % 32);
    const auto first = allowed->bits.begin() + range.begin / 32;
    mask_words_.insert(mask_words_.end(), first, allowed->bits.begin() + (range.end + 31) / 32);
  } else {
    mask.form = allowed->form == TokenSet::Form::kOnly ? RowMask::Form::kOnly : RowMask::Form::kAllBut;
    const auto at = [&](int64_t id) {
      return std::lower_bound(allowed->ids.begin(), allowed->ids.end(), TokenId(static_cast<int32_t>(id)));
    };
    for (auto id = at(range.begin); id != at(range.end); ++id)
      mask_words_.push_back(static_cast<uint32_t>(local_index(*id, range)));
  }
  mask.words = static_cast<int32_t>(std::ssize(mask_words_) - mask.first_word);
  masks_.push_back(mask);
}

void VerifyInputs::add_row(const VerifyRequest& request, int32_t index, IndexRange range) {
  const SamplingParams& params = *request.sampling;
  const bool is_last = static_cast<size_t>(index) == request.draft.size();
  const Decision decision = decisions_.back();
  RowInput row{.logits_row = request.first_row + index,
               .seed = params.seed.value,
               .request = static_cast<int32_t>(requests_.size()) - 1,
               .position = request.base.value() + index,
               .round = request.round.value(),
               .drafted = index,
               .scale = inverse_temperature(params),
               .top_k = params.top_k,
               .top_p = params.top_p,
               .min_p = params.min_p,
               .noisy = effective_rule(params) == Rule::kInvariant,
               .filtered = has_filters(params)};
  const auto r = static_cast<int32_t>(rows_.size());
  if (row.filtered) {
    if (params.top_k > 0) top_k_.push_back(r);
    if (params.top_p < 1) top_p_.push_back(r);
    if (params.min_p > 0) min_p_.push_back(r);
    if (row.noisy) noisy_.push_back(r);
  }
  if (decision != Decision::kMatchBest) drawn_.push_back(r);
  const bool tests_q = decision == Decision::kToken || decision == Decision::kBlock;
  TestInput test{.draft = is_last ? -1 : request.draft[static_cast<size_t>(index)].value()};
  if (tests_q && !is_last) add_q(request, index, range, test);
  add_mask(request, index, range);
  rows_.push_back(row);
  tests_.push_back(test);
}

void VerifyInputs::add_request(const VerifyRequest& request, IndexRange range) {
  const Decision decision = decision_of(request);
  RequestInput input{.first_row = static_cast<int32_t>(rows_.size()),
                     .gamma = static_cast<int32_t>(request.draft.size())};
  const bool tests_q = decision == Decision::kToken || decision == Decision::kBlock;
  CHECK(!tests_q || request.q.size() == request.draft.size(), "{} q rows for {} draft tokens",
        request.q.size(), request.draft.size());
  add_penalties(request, range, input);
  requests_.push_back(input);
  decisions_.push_back(decision);
  for (int32_t i = 0; i <= input.gamma; ++i) add_row(request, i, range);
}

void VerifyInputs::send(std::span<const VerifyRequest> requests, IndexRange range, StreamView stream,
                        VerifyBatch& batch) {
  clear();
  for (const VerifyRequest& request : requests) add_request(request, range);

  size_t bytes = static_cast<size_t>(word_count_) * sizeof(uint32_t);
  const auto count_bytes = [&](const auto&... arrays) {
    ((bytes += aligned(arrays.size() * sizeof(arrays[0]))), ...);
  };
  count_bytes(rows_, tests_, requests_, decisions_, counted_, biases_, top_k_, top_p_, min_p_, noisy_, drawn_,
              masks_, mask_words_);
  make_room(staging_, retired_staging_, static_cast<int64_t>(bytes));
  make_room(memory_, retired_memory_, static_cast<int64_t>(bytes));

  size_t at = 0;
  const auto put = [&](const auto& array, auto*& on_device) {
    const size_t size = array.size() * sizeof(array[0]);
    on_device = reinterpret_cast<std::remove_reference_t<decltype(on_device)>>(memory_.data() + at);
    if (size > 0) std::memcpy(staging_.data() + at, array.data(), size);
    at += aligned(size);
  };
  put(rows_, batch.row);
  put(tests_, batch.test);
  put(requests_, batch.request);
  put(decisions_, batch.decision);
  put(counted_, batch.counted);
  put(biases_, batch.biases);
  put(top_k_, batch.top_k_rows);
  put(top_p_, batch.top_p_rows);
  put(min_p_, batch.min_p_rows);
  put(noisy_, batch.noisy_rows);
  put(drawn_, batch.drawn_rows);
  put(masks_, batch.masks);
  put(mask_words_, batch.mask_words);
  batch.words = reinterpret_cast<const uint32_t*>(memory_.data() + at);
  auto* words = reinterpret_cast<uint32_t*>(staging_.data() + at);
  for (const Words& run : words_)
    words = std::transform(run.from.begin(), run.from.end(), words,
                           [&](uint32_t word) { return word - run.subtract; });

  batch.rows = static_cast<int32_t>(rows_.size());
  batch.requests = static_cast<int32_t>(requests_.size());
  batch.top_k_count = static_cast<int32_t>(top_k_.size());
  batch.top_p_count = static_cast<int32_t>(top_p_.size());
  batch.min_p_count = static_cast<int32_t>(min_p_.size());
  batch.noisy_count = static_cast<int32_t>(noisy_.size());
  batch.drawn_count = static_cast<int32_t>(drawn_.size());
  batch.mask_count = static_cast<int32_t>(masks_.size());
  copy(memory_.data(), staging_.data(), static_cast<int64_t>(bytes), stream);
}

}  // namespace outrider::cuda
