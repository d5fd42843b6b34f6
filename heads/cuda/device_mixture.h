// HeadMixture on a CUDA device, with the kernels of a model's.
#pragma once

#include <functional>

#include "heads/head_compute.h"
#include "model/cuda/layer_parts.h"

namespace outrider::cuda {

class DeviceMixture final : public HeadMixture {
 public:
  // On the current device. experts: a DeviceLayer. products: at any time.
  DeviceMixture(const HeadPart& experts, const ModelConfig& config, int64_t max_rows, WeightType activation,
                std::function<Products()> products);

  static int64_t columns(const ModelConfig& config) { return expert_columns(*config.experts, {}).size(); }
  // Without the list of what rows chose, which is short.
  static int64_t working_bytes(const ModelConfig& config, int64_t max_rows, WeightType activation);

  void forward(Operand x, FloatRows out) override;

 private:
  const DeviceLayer& layer() const { return *static_cast<const DeviceLayer*>(experts_.packed.get()); }

  const HeadPart experts_;
  const ModelConfig config_;
  const ShardPlan plan_;  // of one rank
  const WeightType activation_;
  const std::function<Products()> products_;
  DeviceBuffer<float> weights_, gate_up_;
  DeviceBuffer<std::byte> activated_;
  DeviceBuffer<int32_t> work_;
};

}  // namespace outrider::cuda
