#include "kernels/sampling/cuda/device_ranking.h"

#include <algorithm>

#include "base/log.h"

namespace outrider::cuda {
namespace {

int64_t parts_of(const DrawLimits& limits) {
  return std::max<int64_t>(1, (limits.width + kPartTokens - 1) / kPartTokens);
}

}  // namespace

DeviceRanking::DeviceRanking(const DrawLimits& limits, float* logits)
    : inputs_(limits),
      memory_(limits.rows, limits.width),
      of_parts_(limits.rows * parts_of(limits) * BestTokens::kMost),
      best_(limits.rows * BestTokens::kMost),
      host_best_(best_.size()) {
  DrawBatch batch;
  inputs_.set(batch);
  memory_.set(batch);
  batch_ = batch;
  batch_.logits = logits;
  batch_.stride = limits.stride;
}

int64_t DeviceRanking::bytes_for(const DrawLimits& limits) {
  constexpr int64_t kWord = sizeof(uint64_t);
  return DrawInputs::bytes_for(limits) + RowMemory::bytes_for(limits.rows) +
         kWord * BestTokens::kMost * limits.rows * (parts_of(limits) + 1);
}

void DeviceRanking::queue(std::span<const DrawRow> rows, int32_t most, StreamView stream) {
  CHECK(most > 0 && most <= BestTokens::kMost, "the best {} tokens", most);
  most_ = most;
  inputs_.send(rows, true, stream);  // noise comes behind the filters
  RowBatch batch = batch_;
  batch.rows = batch.requests = static_cast<int32_t>(rows.size());
  queue_processing(inputs_, batch, stream);
  find_best(stream, batch, {.most = most, .of_parts = of_parts_.data(), .best = best_.data()});
  copy(host_best_.data(), best_.data(), batch.rows * BestTokens::kMost, stream);
}

std::span<const RankedToken> DeviceRanking::best(int64_t row) const {
  const std::span all(host_best_.data() + row * BestTokens::kMost, static_cast<size_t>(most_));
  const auto end = std::find(all.begin(), all.end(), RankedToken());
  return all.first(static_cast<size_t>(end - all.begin()));
}

}  // namespace outrider::cuda
