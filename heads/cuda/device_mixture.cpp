#include "heads/cuda/device_mixture.h"

namespace outrider::cuda {

DeviceMixture::DeviceMixture(const HeadPart& experts, const ModelConfig& config, int64_t max_rows,
                             WeightType activation, std::function<Products()> products)
    : experts_(experts),
      config_(config),
      plan_(config_, {}),
      activation_(activation),
      products_(std::move(products)),
      weights_(max_rows * (config_.experts->count + 1)),
      gate_up_(max_rows * 2 * columns(config_)),
      activated_(max_rows * columns(config_) * element_bytes(activation)),
      work_(expert_work_size(layer())) {}

int64_t DeviceMixture::working_bytes(const ModelConfig& config, int64_t max_rows, WeightType activation) {
  return max_rows * (4 * (config.experts->count + 1) + columns(config) * (8 + element_bytes(activation)));
}

void DeviceMixture::forward(Operand x, FloatRows out) {
  CHECK(x.stride == x.columns && (out.extent(0) <= 1 || out.stride(0) == out.extent(1)),
        "rows of {} numbers, {} apart", x.columns, x.stride);
  const LayerParts parts{
      .config = config_, .plan = plan_, .activation = activation_, .products = products_()};
  parts.queue_mixture(layer(), x.data, x.rows,
                      {.weights = weights_.data(),
                       .gate_up = gate_up_.data(),
                       .activated = activated_.data(),
                       .work = work_.data()},
                      out.data());
}

}  // namespace outrider::cuda
