#include "heads/cuda/device_sampler.h"

#include <algorithm>

#include "heads/cuda/head_rows.h"
#include "transformer/sampling/penalties.h"

namespace outrider::cuda {
namespace {

DrawLimits limits_of(const HeadSamplerPlan& plan) {
  constexpr int64_t kBiases = 300, kLongestDraft = 16;
  return {.rows = plan.rows,
          .steps = 1,
          .width = plan.vocab_size,
          .stride = plan.vocab_size,
          .q_rows = plan.rows,
          .counted = plan.counted + plan.rows * kLongestDraft,
          .biases = kBiases * plan.rows};
}

DeviceBuffer<int32_t> places_of(const HeadSamplerPlan& plan, StreamView stream) {
  if (plan.target_ids.empty()) return {};
  std::vector<int32_t> own_of(static_cast<size_t>(plan.vocab_size), -1);
  for (size_t i = 0; i < plan.target_ids.size(); ++i)
    own_of[static_cast<size_t>(plan.target_ids[i].value())] = static_cast<int32_t>(i);
  DeviceBuffer<int32_t> places(plan.vocab_size);
  copy(places.data(), own_of.data(), plan.vocab_size, stream);
  stream.synchronize();  // the host's go away
  return places;
}

}  // namespace

DeviceSampler::DeviceSampler(const HeadSamplerPlan& plan, int device, StreamView stream)
    : device_(device),
      stream_(stream),
      limits_(limits_of(plan)),
      own_of_(places_of(plan, stream)),
      logits_(limits_.rows * limits_.stride),
      draws_(limits_, logits_.data()) {
  rows_.reserve(static_cast<size_t>(limits_.rows));
}

int64_t DeviceSampler::bytes_for(const HeadSamplerPlan& plan) {
  const DrawLimits limits = limits_of(plan);
  return DeviceDraws::bytes_for(limits) + 4 * (limits.rows + 1) * limits.stride;
}

bool DeviceSampler::draw(FloatRows logits, std::span<const Row> rows, bool measures) {
  if (static_cast<int64_t>(rows.size()) > limits_.rows) return false;
  rows_.clear();
  for (const Row& row : rows)
    rows_.push_back({.first = row.step, .logits_row = static_cast<int64_t>(rows_.size())});
  if (!draws_.takes(rows_)) return false;
  use_device(device_);
  const RowsAt from{logits.data(), logits.extent(0), logits.extent(1), logits.stride(0)};
  for (size_t first = 0; first < rows.size(); first += RowNumbers::kMost) {
    RowNumbers some;
    while (some.count < RowNumbers::kMost && first + static_cast<size_t>(some.count) < rows.size()) {
      some.rows[some.count] = static_cast<int32_t>(rows[first + static_cast<size_t>(some.count)].row);
      ++some.count;
    }
    spread_rows(stream_, from, some, own_of_.data(),
                {logits_.data() + static_cast<int64_t>(first) * limits_.stride, some.count, limits_.width,
                 limits_.stride});
  }
  const bool wants_q = std::any_of(
      rows.begin(), rows.end(), [](const Row& row) { return needs_q(effective_rule(*row.step.sampling)); });
  draws_.send(rows_, measures, stream_);
  draws_.queue_step(static_cast<int64_t>(rows.size()), stream_);
  draws_.queue_fetch(1, wants_q, stream_);
  stream_.synchronize();
  return true;
}

std::optional<TokenId> DeviceSampler::token(size_t i) const {
  const TokenId id = draws_.token(static_cast<int64_t>(i), 0);
  return id.value() < 0 ? std::nullopt : std::optional(id);
}

DraftConfidence DeviceSampler::confidence(size_t i) const {
  return draws_.confidence(static_cast<int64_t>(i), 0);
}

void DeviceSampler::read_q(size_t i, QRow& q) const { draws_.read_q(static_cast<int64_t>(i), 0, q); }

}  // namespace outrider::cuda
