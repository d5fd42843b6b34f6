#include "kernels/sampling/confidence.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/sampling/row_kernels.h"

namespace outrider {

DraftConfidence confidence_of(const RowMoments& moments) {
  const auto mass = static_cast<double>(moments.mass);
  const double entropy = std::log(mass * 0x1p-44) + static_cast<double>(moments.moment) / mass;
  return {.entropy = std::max(0.0, entropy), .probability = static_cast<double>(moments.drawn) / mass};
}

DraftConfidence confidence_of(std::span<const float> processed, TokenId drawn) {
  constexpr size_t kBlock = 1024;
  std::array<uint64_t, kBlock> weights;
  const float max = *std::max_element(processed.begin(), processed.end());
  RowMoments moments{.drawn = weight_of(processed[static_cast<size_t>(drawn.value())], max)};
  for (size_t begin = 0; begin < processed.size(); begin += kBlock) {
    const auto block = processed.subspan(begin, std::min(kBlock, processed.size() - begin));
    fill_weights(block, max, std::span(weights).first(block.size()));
    for (size_t i = 0; i < block.size(); ++i) {
      moments.mass += weights[i];
      moments.moment += entropy_moment(weights[i], block[i], max);
    }
  }
  return confidence_of(moments);
}

}  // namespace outrider
