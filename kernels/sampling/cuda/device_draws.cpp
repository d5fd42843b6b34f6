#include "kernels/sampling/cuda/device_draws.h"

#include <algorithm>

#include "base/log.h"
#include "base/short_weight.h"

namespace outrider::cuda {
DeviceDraws::DeviceDraws(const DrawLimits& limits, float* logits)
    : limits_(limits),
      inputs_(limits),
      memory_(limits.rows, limits.width),
      q_parts_(limits.rows * kMaxParts),
      moment_parts_(2 * limits.rows * kMaxParts),
      q_(limits.q_rows * limits.q_row_bytes()),
      ranks_(limits.rows * limits.width),
      zeros_(limits.rows * kMaxParts),
      entries_(2 * limits.rows * limits.most_entries()),
      unit_looks_(limits.rows * DrawBatch::kUnitLooks),
      compact_choices_(limits.rows),
      drawn_on_device_(limits.rows * limits.steps),
      host_q_(q_.size()),
      drawn_(drawn_on_device_.size()) {
  memory_.set(batch_);
  inputs_.set(batch_);
  batch_.logits = logits;
  batch_.stride = limits.stride;
  batch_.q = q_.data();
  batch_.q_parts = q_parts_.data();
  batch_.moment_parts = moment_parts_.data();
  batch_.drawn = drawn_on_device_.data();
  batch_.drawn_stride = static_cast<int32_t>(limits.rows);
  batch_.ranks = ranks_.data();
  batch_.zeros = zeros_.data();
  batch_.entries = entries_.data();
  batch_.most_entries = static_cast<int32_t>(limits.most_entries());
  batch_.unit_looks = unit_looks_.data();
  batch_.compact = compact_choices_.data();
}

int64_t DeviceDraws::bytes_for(const DrawLimits& limits) {
  constexpr int64_t kWord = sizeof(uint64_t);
  const int64_t per_row = kWord * 4 * kMaxParts + sizeof(DrawBatch::Choice) + DrawBatch::kUnitLooks +
                          limits.steps * sizeof(Drawn) + limits.width * sizeof(float) +
                          8 * limits.most_entries();
  return RowMemory::bytes_for(limits.rows) + DrawInputs::bytes_for(limits) + limits.rows * per_row +
         limits.q_rows * limits.q_row_bytes();
}

void DeviceDraws::send(std::span<const DrawRow> rows, bool measures, StreamView stream) {
  measures_ = measures;
  inputs_.send(rows, measures, stream);
}

DrawBatch DeviceDraws::batch_of(int64_t rows) const {
  DrawBatch batch = batch_;
  batch.rows = batch.requests = static_cast<int32_t>(rows);
  return batch;
}

void DeviceDraws::queue_step(int64_t rows, StreamView stream) {
  DrawBatch batch = batch_of(rows);
  queue_processing(inputs_, batch, stream);
  const SearchTask noisy = inputs_.noisy(rows);
  batch.noisy_rows = noisy.rows;
  batch.noisy_count = noisy.count;
  if (noisy.count > 0) rank_with_noise(stream, batch);
  if (limits_.q_rows > 0) weigh_rows(stream, batch);
  if (inputs_.compact(rows).count > 0) queue_compact(rows, stream);
  if (measures_) measure_rows(stream, batch);
  draw_rows(stream, batch, measures_);
}

void DeviceDraws::queue_compact(int64_t rows, StreamView stream) {
  const SearchTask task = inputs_.compact(rows);
  DrawBatch batch = batch_of(rows);
  batch.compact_count = task.count;
  rank_weights(stream, batch);
  RowBatch selection = batch;
  selection.row = batch.selections;
  selection.logits = batch.ranks;
  selection.stride = limits_.width;
  queue_cut(task, selection, stream);
  draw_compact_rows(stream, batch);
}

void DeviceDraws::queue_feed(int64_t rows, int32_t* tokens, int32_t* positions, StreamView stream) {
  feed_rows(stream, batch_of(rows), tokens, positions);
}

void DeviceDraws::queue_fetch(int64_t steps, bool wants_q, StreamView stream) {
  copy(drawn_.data(), drawn_on_device_.data(), steps * limits_.rows, stream);
  if (wants_q && inputs_.q_bytes() > 0) copy(host_q_.data(), q_.data(), inputs_.q_bytes(), stream);
}

DraftConfidence DeviceDraws::confidence(int64_t row, int64_t step) const {
  const Drawn& d = drawn(row, step);
  return confidence_of({.mass = d.mass, .moment = d.moment, .drawn = d.weight});
}

DeviceRow DeviceDraws::device_row(int64_t row, int64_t step) const {
  const DrawState& state = inputs_.state(row);
  const QHead& head = drawn(row, step).q;
  return {reinterpret_cast<const uint16_t*>(q_.data() + state.first_q + step * state.q_stride), head.sum,
          head.drawn};
}

void DeviceDraws::read_q(int64_t row, int64_t step, QRow& q) const {
  const DrawState& state = inputs_.state(row);
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
