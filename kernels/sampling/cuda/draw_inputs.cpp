#include "kernels/sampling/cuda/draw_inputs.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "kernels/sampling/compact_units.h"
#include "kernels/sampling/penalties.h"

namespace outrider::cuda {
namespace {

bool draws_from_weights(const SamplingParams& params) { return needs_q(effective_rule(params)); }
// The best token survives every filter.
bool takes_best(const SamplingParams& params) {
  const Rule rule = effective_rule(params);
  return rule == Rule::kGreedy || rule == Rule::kNaive;
}
CompactBudget budget_of(const DrawRow& row, int64_t width) {
  return compact_budget(row.first.row_bytes, static_cast<uint64_t>(width));
}

// Room for the committed tokens, unless a row of the same text was in front, and for all that will have been
// drafted.
int64_t counted_of(const DrawRow& row, const TokenCounts*& before) {
  if (!needs_counts(*row.first.sampling)) return 0;
  const bool is_known = std::exchange(before, row.first.counts) == row.first.counts;
  return static_cast<int64_t>((is_known ? 0 : row.first.counts->entries().size()) +
                              row.first.drafted.size()) +
         row.steps;
}

CountedToken counted_token(const TokenCounts::Entry& entry) {
  return {.local = entry.id.value(),
          .id = entry.id.value(),
          .in_prompt = entry.in_prompt,
          .in_output = entry.in_output};
}

}  // namespace

DrawInputs::DrawInputs(const DrawLimits& limits)
    : limits_(limits),
      rows_(limits.rows),
      requests_(limits.rows),
      states_(limits.rows),
      counted_(limits.counted),
      biases_(limits.biases),
      top_k_(limits.rows),
      top_p_(limits.rows),
      min_p_(limits.rows),
      noisy_(limits.rows),
      compact_(limits.rows),
      selections_(limits.rows) {}

int64_t DrawInputs::bytes_for(const DrawLimits& limits) {
  constexpr int64_t kPerRow =
      2 * sizeof(RowInput) + sizeof(RequestInput) + sizeof(DrawState) + 5 * sizeof(int32_t);
  return limits.rows * kPerRow + limits.counted * static_cast<int64_t>(sizeof(CountedToken)) +
         limits.biases * static_cast<int64_t>(sizeof(Bias));
}

void DrawInputs::set(DrawBatch& batch) const {
  batch.row = batch.inputs = rows_.device.data();
  batch.request = requests_.device.data();
  batch.counted = batch.all_counted = counted_.device.data();
  batch.biases = biases_.device.data();
  batch.state = states_.device.data();
  batch.compact_rows = compact_.device.data();
  batch.selections = selections_.device.data();
}

int64_t DrawInputs::q_bytes_of(const DrawRow& row) const {
  if (!draws_from_weights(*row.first.sampling)) return 0;
  if (row.first.row_bytes == 0) return limits_.q_row_bytes();
  return 8 * static_cast<int64_t>(budget_of(row, limits_.width).entries);
}

bool DrawInputs::takes(std::span<const DrawRow> rows) const {
  int64_t q = 0, counted = 0, biases = 0;
  const TokenCounts* before = nullptr;
  for (const DrawRow& row : rows) {
    const int64_t q_bytes = q_bytes_of(row);
    if (row.steps > limits_.steps || q_bytes > limits_.q_row_bytes()) return false;
    q += row.steps * q_bytes;
    counted += counted_of(row, before);
    biases += static_cast<int64_t>(row.first.sampling->logit_bias.size());
  }
  return static_cast<int64_t>(rows.size()) <= limits_.rows && q <= limits_.q_rows * limits_.q_row_bytes() &&
         counted <= limits_.counted && biases <= limits_.biases;
}

void DrawInputs::clear() {
  for (auto* list : {&top_k_, &top_p_, &min_p_, &noisy_, &compact_}) list->size = 0;
  rows_.size = requests_.size = states_.size = counted_.size = biases_.size = selections_.size = 0;
  q_bytes_ = 0;
  last_counts_ = nullptr;
}

void DrawInputs::send(std::span<const DrawRow> rows, bool measured, StreamView stream) {
  CHECK(takes(rows), "{} rows to draw from; planned {}", rows.size(), limits_.rows);
  clear();
  for (const DrawRow& row : rows) add_row(row, measured);
  rows_.send(stream);
  requests_.send(stream);
  states_.send(stream);
  counted_.send(stream);
  biases_.send(stream);
  for (const auto* list : {&top_k_, &top_p_, &min_p_, &noisy_, &compact_}) list->send(stream);
  if (compact_.size > 0) selections_.send(stream);
}

void DrawInputs::add_row(const DrawRow& row, bool measured) {
  const SamplingParams& params = *row.first.sampling;
  const auto r = static_cast<int32_t>(rows_.size);
  RowInput input{.logits_row = row.logits_row,
                 .seed = params.seed.value,
                 .request = r,
                 .position = row.first.position.value(),
                 .round = row.first.round.value(),
                 .drafted = static_cast<int32_t>(row.first.drafted.size()),
                 .scale = inverse_temperature(params),
                 .top_k = params.top_k,
                 .top_p = params.top_p,
                 .min_p = params.min_p,
                 .noisy = effective_rule(params) == Rule::kInvariant,
                 .filtered = has_filters(params) && !takes_best(params)};
  // Noise that decides at once hides the row's maximum.
  if (measured && input.noisy) input.filtered = 1;
  if (input.filtered) {
    if (params.top_k > 0) top_k_.push(r);
    if (params.top_p < 1) top_p_.push(r);
    if (params.min_p > 0) min_p_.push(r);
    if (input.noisy) noisy_.push(r);
  }
  RequestInput request{.first_row = r};
  add_penalties(row, request);
  rows_.push(input);
  requests_.push(request);
  add_q(row);
}

void DrawInputs::add_q(const DrawRow& row) {
  const auto r = static_cast<int32_t>(states_.size);
  DrawState state{.first_q = q_bytes_, .q_stride = q_bytes_of(row)};
  RowInput selection{.logits_row = r, .request = r};
  if (state.q_stride > 0 && row.first.row_bytes > 0) {
    const CompactBudget budget = budget_of(row, limits_.width);
    state.kept = KeptQ::kCompact;
    state.budget_bits = budget.bits;
    state.most_entries = selection.top_k = static_cast<int32_t>(budget.entries);
    compact_.push(r);
  } else if (state.q_stride > 0) {
    state.kept = KeptQ::kDense;
  }
  states_.push(state);
  selections_.push(selection);
  q_bytes_ += row.steps * state.q_stride;
}

// Committed tokens, then every drafted one with its committed counts and room for those to come; the bias.
void DrawInputs::add_penalties(const DrawRow& row, RequestInput& request) {
  const SamplingParams& params = *row.first.sampling;
  if (needs_counts(params)) {
    request.penalised = 1;
    request.factors = penalty_factors(params);
    add_counts(*row.first.counts, request);
    request.first_drafted = static_cast<int32_t>(counted_.size);
    for (TokenId id : row.first.drafted) counted_.push(counted_token(row.first.counts->find(id)));
    for (int32_t i = 0; i < row.steps; ++i) counted_.push({});
  }
  request.first_bias = static_cast<int32_t>(biases_.size);
  for (const auto& [id, value] : params.logit_bias)
    if (id.value() >= 0 && id.value() < limits_.width) biases_.push({id.value(), value});
  request.biases = static_cast<int32_t>(biases_.size) - request.first_bias;
}

// Rows of one text, as nodes of a tree are, have them together.
void DrawInputs::add_counts(const TokenCounts& counts, RequestInput& request) {
  if (std::exchange(last_counts_, &counts) != &counts) {
    last_first_count_ = static_cast<int32_t>(counted_.size);
    for (const auto& entry : counts.entries())
      if (entry.id.value() >= 0 && entry.id.value() < limits_.width) counted_.push(counted_token(entry));
    last_count_ = static_cast<int32_t>(counted_.size) - last_first_count_;
  }
  request.first_count = last_first_count_;
  request.counts = last_count_;
}

SearchTask DrawInputs::task_of(const Sent<int32_t>& list, int64_t rows, bool by_mass) {
  const int32_t* begin = list.host.data();
  const auto count = std::lower_bound(begin, begin + list.size, static_cast<int32_t>(rows)) - begin;
  return {list.device.data(), static_cast<int32_t>(count), by_mass};
}

}  // namespace outrider::cuda
