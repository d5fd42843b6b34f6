#include "transformer/sampling/cuda/device_draws.h"

#include <algorithm>

#include "base/log.h"
#include "base/short_weight.h"
#include "transformer/sampling/compact_units.h"
#include "transformer/sampling/cuda/row_steps.h"
#include "transformer/sampling/penalties.h"

namespace outrider::cuda {
namespace {

constexpr int64_t kBins = 256;

bool draws_from_weights(const SamplingParams& params) { return needs_q(effective_rule(params)); }
// The best token survives every filter.
bool takes_best(const SamplingParams& params) {
  const Rule rule = effective_rule(params);
  return rule == Rule::kGreedy || rule == Rule::kNaive;
}
// Of one row of q. Ids are of four bytes where a kernel writes them.
int64_t dense_bytes(int64_t width) { return (2 * width + 7) / 8 * 8; }
int64_t compact_bytes(int64_t entries) { return 8 * entries; }
// What a compact row may list at most, so that it takes no more than a dense one.
int64_t most_entries(int64_t width) { return dense_bytes(width) / compact_bytes(1); }
CompactBudget budget_of(const DrawRow& row, int64_t width) {
  return compact_budget(row.first.row_bytes, static_cast<uint64_t>(width));
}
int64_t q_bytes_of(const DrawRow& row, int64_t width) {
  if (!draws_from_weights(*row.first.sampling)) return 0;
  if (row.first.row_bytes == 0) return dense_bytes(width);
  return compact_bytes(static_cast<int64_t>(budget_of(row, width).entries));
}

// Room for the committed tokens, and for all that will have been drafted.
int64_t counted_of(const DrawRow& row) {
  if (!needs_counts(*row.first.sampling)) return 0;
  return static_cast<int64_t>(row.first.counts->entries().size() + row.first.drafted.size()) + row.steps;
}

CountedToken counted_token(const TokenCounts::Entry& entry) {
  return {.local = entry.id.value(),
          .id = entry.id.value(),
          .in_prompt = entry.in_prompt,
          .in_output = entry.in_output};
}

void queue_cut(const SearchTask& task, const RowBatch& batch, StreamView stream) {
  if (task.count == 0) return;
  for (int byte = 0; byte < kKeyBytes; ++byte) {
    count_bins(stream, batch, task, byte);
    descend(stream, batch, task, byte);
  }
  count_ties(stream, batch, task);
  cut(stream, batch, task);
}

}  // namespace

DeviceDraws::DeviceDraws(const DrawLimits& limits, float* logits)
    : limits_(limits),
      rows_(limits.rows),
      requests_(limits.rows),
      states_(limits.rows),
      counted_(limits.counted),
      biases_(limits.biases),
      filtered_(limits.rows),
      top_k_(limits.rows),
      top_p_(limits.rows),
      noisy_(limits.rows),
      compact_(limits.rows),
      selections_(limits.rows),
      part_values_(limits.rows * kMaxParts),
      q_parts_(limits.rows * kMaxParts),
      moment_parts_(2 * limits.rows * kMaxParts),
      best_(limits.rows),
      bins_(limits.rows * kBins),
      ties_(limits.rows),
      max_(limits.rows),
      failed_(limits.rows),
      tie_ends_(limits.rows),
      searches_(limits.rows),
      q_(limits.q_rows * dense_bytes(limits.width)),
      ranks_(limits.rows * limits.width),
      zeros_(limits.rows * kMaxParts),
      entries_(2 * limits.rows * most_entries(limits.width)),
      compact_choices_(limits.rows),
      drawn_on_device_(limits.rows * limits.steps),
      host_q_(q_.size()),
      drawn_(drawn_on_device_.size()) {
  batch_.width = static_cast<int32_t>(limits.width);
  batch_.parts = std::max(1, (batch_.width + kPartTokens - 1) / kPartTokens);
  CHECK(batch_.parts <= kMaxParts, "a vocabulary of {} tokens", limits.width);
  batch_.logits = logits;
  batch_.stride = limits.stride;
  batch_.row = batch_.inputs = rows_.device.data();
  batch_.request = requests_.device.data();
  batch_.counted = batch_.all_counted = counted_.device.data();
  batch_.biases = biases_.device.data();
  batch_.part_values = part_values_.data();
  batch_.best = best_.data();
  batch_.max = max_.data();
  batch_.failed = failed_.data();
  batch_.searches = searches_.data();
  batch_.bins = bins_.data();
  batch_.ties = batch_.all_ties = ties_.data();
  batch_.tie_ends = tie_ends_.data();
  batch_.state = states_.device.data();
  batch_.q = q_.data();
  batch_.q_parts = q_parts_.data();
  batch_.moment_parts = moment_parts_.data();
  batch_.drawn = drawn_on_device_.data();
  batch_.drawn_stride = static_cast<int32_t>(limits.rows);
  batch_.ranks = ranks_.data();
  batch_.zeros = zeros_.data();
  batch_.entries = entries_.data();
  batch_.most_entries = static_cast<int32_t>(most_entries(limits.width));
  batch_.compact = compact_choices_.data();
  batch_.compact_rows = compact_.device.data();
}

int64_t DeviceDraws::bytes_for(const DrawLimits& limits) {
  constexpr int64_t kWord = sizeof(uint64_t);
  const int64_t per_row = 2 * sizeof(RowInput) + sizeof(RequestInput) + sizeof(DrawState) + sizeof(Search) +
                          sizeof(DrawBatch::Choice) + kWord * (5 * kMaxParts + kBins + 4) +
                          7 * sizeof(int32_t) + limits.steps * sizeof(Drawn) + limits.width * sizeof(float) +
                          compact_bytes(most_entries(limits.width));
  return limits.rows * per_row + limits.q_rows * dense_bytes(limits.width) +
         limits.counted * static_cast<int64_t>(sizeof(CountedToken)) +
         limits.biases * static_cast<int64_t>(sizeof(Bias));
}

bool DeviceDraws::takes(std::span<const DrawRow> rows) const {
  int64_t q = 0, counted = 0, biases = 0;
  for (const DrawRow& row : rows) {
    const int64_t q_bytes = q_bytes_of(row, limits_.width);
    if (row.steps > limits_.steps || q_bytes > dense_bytes(limits_.width)) return false;
    q += row.steps * q_bytes;
    counted += counted_of(row);
    biases += static_cast<int64_t>(row.first.sampling->logit_bias.size());
  }
  return static_cast<int64_t>(rows.size()) <= limits_.rows && q <= q_.size() && counted <= limits_.counted &&
         biases <= limits_.biases;
}

void DeviceDraws::send(std::span<const DrawRow> rows, bool measures, StreamView stream) {
  CHECK(takes(rows), "{} rows to draw from; planned {}", rows.size(), limits_.rows);
  rows_.clear();
  requests_.clear();
  states_.clear();
  counted_.clear();
  biases_.clear();
  for (auto* list : {&filtered_, &top_k_, &top_p_, &noisy_, &compact_}) list->clear();
  selections_.clear();
  measures_ = measures;
  q_used_ = 0;
  for (const DrawRow& row : rows) add_row(row);
  rows_.send(stream);
  requests_.send(stream);
  states_.send(stream);
  counted_.send(stream);
  biases_.send(stream);
  for (const auto* list : {&filtered_, &top_k_, &top_p_, &noisy_, &compact_}) list->send(stream);
  if (compact_.size > 0) selections_.send(stream);
}

void DeviceDraws::add_row(const DrawRow& row) {
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
  if (measures_ && input.noisy) input.filtered = 1;
  if (input.filtered) {
    filtered_.push(r);
    if (params.top_k > 0) top_k_.push(r);
    if (params.top_p < 1) top_p_.push(r);
    if (input.noisy) noisy_.push(r);
  }
  RequestInput request{.first_row = r};
  add_penalties(row, request);
  rows_.push(input);
  requests_.push(request);
  add_q(row);
}

void DeviceDraws::add_q(const DrawRow& row) {
  const auto r = static_cast<int32_t>(states_.size);
  DrawState state{.first_q = q_used_, .q_stride = q_bytes_of(row, limits_.width)};
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
  q_used_ += row.steps * state.q_stride;
}

// Committed tokens, then every drafted one with its committed counts and room for those to come; the bias.
void DeviceDraws::add_penalties(const DrawRow& row, RequestInput& request) {
  const SamplingParams& params = *row.first.sampling;
  request.first_count = static_cast<int32_t>(counted_.size);
  if (needs_counts(params)) {
    request.penalised = 1;
    request.factors = penalty_factors(params);
    for (const auto& entry : row.first.counts->entries())
      if (entry.id.value() < limits_.width) counted_.push(counted_token(entry));
    request.counts = static_cast<int32_t>(counted_.size) - request.first_count;
    request.first_drafted = static_cast<int32_t>(counted_.size);
    for (TokenId id : row.first.drafted) counted_.push(counted_token(row.first.counts->find(id)));
    for (int32_t i = 0; i < row.steps; ++i) counted_.push({});
  }
  request.first_bias = static_cast<int32_t>(biases_.size);
  for (const auto& [id, value] : params.logit_bias)
    if (id.value() >= 0 && id.value() < limits_.width) biases_.push({id.value(), value});
  request.biases = static_cast<int32_t>(biases_.size) - request.first_bias;
}

DrawBatch DeviceDraws::batch_of(int64_t rows) const {
  DrawBatch batch = batch_;
  batch.rows = batch.requests = static_cast<int32_t>(rows);
  return batch;
}

void DeviceDraws::queue_step(int64_t rows, StreamView stream) {
  const DrawBatch batch = batch_of(rows);
  penalise_rows(stream, batch);
  scale_and_rank(stream, batch);
  settle_best(stream, batch);
  if (filtered_.size > 0) queue_filters(rows, stream);
  if (limits_.q_rows > 0) weigh_rows(stream, batch);
  if (compact_.size > 0) queue_compact(rows, stream);
  if (measures_) measure_rows(stream, batch);
  draw_rows(stream, batch, measures_);
}

SearchTask DeviceDraws::task_of(const Sent<int32_t>& list, int64_t rows, bool by_mass) {
  const int32_t* begin = list.host.data();
  const auto count = std::lower_bound(begin, begin + list.size, static_cast<int32_t>(rows)) - begin;
  return {list.device.data(), static_cast<int32_t>(count), by_mass};
}

void DeviceDraws::queue_filters(int64_t rows, StreamView stream) {
  DrawBatch batch = batch_of(rows);
  const SearchTask filtered = task_of(filtered_, rows), noisy = task_of(noisy_, rows);
  batch.filtered_rows = filtered.rows;
  batch.filtered_count = filtered.count;
  batch.noisy_rows = noisy.rows;
  batch.noisy_count = noisy.count;
  queue_cut(task_of(top_k_, rows), batch, stream);
  queue_cut(task_of(top_p_, rows, true), batch, stream);
  if (filtered.count > 0) cut_min_p(stream, batch);
  if (noisy.count > 0) rank_with_noise(stream, batch);
}

void DeviceDraws::queue_compact(int64_t rows, StreamView stream) {
  const SearchTask task = task_of(compact_, rows);
  if (task.count == 0) return;
  DrawBatch batch = batch_of(rows);
  batch.compact_count = task.count;
  rank_weights(stream, batch);
  RowBatch selection = batch;
  selection.row = selections_.device.data();
  selection.logits = batch.ranks;
  selection.stride = limits_.width;
  queue_cut(task, selection, stream);
  draw_compact_rows(stream, batch);
}

void DeviceDraws::queue_feed(int64_t rows, int32_t* tokens, int32_t* positions, StreamView stream) {
  feed_rows(stream, batch_of(rows), tokens, positions);
}

void DeviceDraws::queue_fetch(int64_t steps, StreamView stream) {
  copy(drawn_.data(), drawn_on_device_.data(), steps * limits_.rows, stream);
  if (q_used_ > 0) copy(host_q_.data(), q_.data(), q_used_, stream);
}

DraftConfidence DeviceDraws::confidence(int64_t row, int64_t step) const {
  const Drawn& d = drawn(row, step);
  return confidence_of({.mass = d.mass, .moment = d.moment, .drawn = d.weight});
}

void DeviceDraws::read_q(int64_t row, int64_t step, QRow& q) const {
  const DrawState& state = states_.host.data()[row];
  const std::byte* kept = host_q_.data() + state.first_q + step * state.q_stride;
  const QHead& head = drawn(row, step).q;
  q.sum = head.sum;
  q.rest = head.rest;
  q.id_end = head.id_end;
  if (state.kept == KeptQ::kCompact) {
    const auto* ids = reinterpret_cast<const uint32_t*>(kept);
    const uint32_t* weights = ids + state.most_entries;
    q.ids.assign(ids, ids + head.entries);
    q.weights.assign(weights, weights + head.entries);
    return;
  }
  const std::span packed(reinterpret_cast<const uint16_t*>(kept), static_cast<size_t>(limits_.width));
  q.ids.clear();
  q.weights.resize(packed.size());
  CHECK(unpack_short_weights(packed, q.weights.data()), "weights of a kernel that are none");
}

}  // namespace outrider::cuda
