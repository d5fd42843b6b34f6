#include "transformer/model/rope.h"

#include <cmath>
#include <numbers>

namespace outrider {

std::vector<float> rope_frequencies(const ModelConfig& config) {
  std::vector<float> frequencies;
  for (int64_t i = 0; i < config.head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(config.head_dim);
    float frequency = 1.0f / std::pow(static_cast<float>(config.rope_theta), exponent);
    if (config.rope_scaling) {
      const Llama3RopeScaling& scaling = *config.rope_scaling;
      const auto original = static_cast<float>(scaling.original_max_position_embeddings);
      const auto factor = static_cast<float>(scaling.factor);
      const auto low = static_cast<float>(scaling.low_freq_factor),
                 high = static_cast<float>(scaling.high_freq_factor);
      const float wavelength = 2 * std::numbers::pi_v<float> / frequency;
      if (wavelength > original / low) {
        frequency /= factor;
      } else if (wavelength >= original / high) {
        const float smooth = (original / wavelength - low) / (high - low);
        frequency = (1 - smooth) * frequency / factor + smooth * frequency;
      }
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

}  // namespace outrider
