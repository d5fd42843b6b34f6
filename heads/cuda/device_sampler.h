// HeadSampler on a CUDA device: rows of a head become rows of the target's vocabulary, from which DeviceDraws
// draws.
#pragma once

#include <optional>
#include <vector>

#include "base/cuda.h"
#include "heads/head_compute.h"
#include "transformer/sampling/cuda/device_draws.h"

namespace outrider::cuda {

class DeviceSampler final : public HeadSampler {
 public:
  // On the current device, which is `device`.
  DeviceSampler(const HeadSamplerPlan& plan, int device, StreamView stream);
  static int64_t bytes_for(const HeadSamplerPlan& plan);

  bool draw(FloatRows logits, std::span<const Row> rows, bool measures) override;
  std::optional<TokenId> token(size_t i) const override;
  DraftConfidence confidence(size_t i) const override;
  void read_q(size_t i, QRow& q) const override;

 private:
  const int device_;
  const StreamView stream_;
  const DrawLimits limits_;
  DeviceBuffer<int32_t> own_of_;  // [vocabulary]: a token's place in a head's row, -1: none; empty: its own
  DeviceBuffer<float> logits_;    // [rows, vocabulary]
  DeviceDraws draws_;
  std::vector<DrawRow> rows_;
};

}  // namespace outrider::cuda
