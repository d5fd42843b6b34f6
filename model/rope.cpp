#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace outrider {
namespace {

float scaled(const Llama3RopeScaling& scaling, float frequency) {
  const auto original = static_cast<float>(scaling.original_max_position_embeddings);
  const auto factor = static_cast<float>(scaling.factor);
  const auto low = static_cast<float>(scaling.low_freq_factor),
             high = static_cast<float>(scaling.high_freq_factor);
  const float wavelength = 2 * std::numbers::pi_v<float> / frequency;
  if (wavelength > original / low) return frequency / factor;
  if (wavelength < original / high) return frequency;
  const float smooth = (original / wavelength - low) / (high - low);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

// The (fractional) index of the pair that makes `turns` full turns within the trained length.
double pair_of_turns(double turns, double dims, double theta, double length) {
  return dims * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

std::vector<float> yarn_frequencies(const YarnRopeScaling& yarn, double theta, int64_t dims) {
  const auto length = static_cast<double>(yarn.original_max_position_embeddings);
  double low = pair_of_turns(yarn.beta_fast, static_cast<double>(dims), theta, length);
  double high = pair_of_turns(yarn.beta_slow, static_cast<double>(dims), theta, length);
  if (yarn.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dims - 1));
  if (low == high) high += 0.001;
  std::vector<float> frequencies;
  for (int64_t i = 0; i < dims; i += 2) {
    const float power = std::pow(static_cast<float>(theta), static_cast<float>(i) / static_cast<float>(dims));
    const float kept = 1.0f / power, slowed = 1.0f / (static_cast<float>(yarn.factor) * power);
    const float ramp = (static_cast<float>(i / 2) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float share = 1 - std::clamp(ramp, 0.0f, 1.0f);  // of what is kept
    frequencies.push_back(slowed * (1 - share) + kept * share);
  }
  return frequencies;
}

}  // namespace

std::vector<float> rope_frequencies(const RopeConfig& rope, int64_t head_dim) {
  const int64_t dims = rope.dims > 0 ? rope.dims : head_dim;
  if (const auto* yarn = std::get_if<YarnRopeScaling>(&rope.scaling))
    return yarn_frequencies(*yarn, rope.theta, dims);
  const auto* llama3 = std::get_if<Llama3RopeScaling>(&rope.scaling);
  const auto* linear = std::get_if<LinearRopeScaling>(&rope.scaling);
  const auto* proportional = std::get_if<ProportionalRopeScaling>(&rope.scaling);
  const auto turning =
      proportional ? static_cast<int64_t>(proportional->share * static_cast<double>(dims)) / 2 : dims / 2;
  const auto* by_pair = std::get_if<LongRopeScaling>(&rope.scaling);
  double theta = rope.theta;
  if (const auto* ntk = std::get_if<NtkAlphaRopeScaling>(&rope.scaling))
    theta *= std::pow(ntk->alpha, static_cast<double>(dims) / static_cast<double>(dims - 2));
  std::vector<float> frequencies;
  for (int64_t i = 0; i < dims; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(dims);
    const float power = std::pow(static_cast<float>(theta), exponent);
    float frequency = 1.0f / power;
    if (llama3) frequency = scaled(*llama3, frequency);
    if (proportional) frequency = i / 2 < turning ? frequency / static_cast<float>(proportional->factor) : 0;
    if (linear) frequency /= static_cast<float>(linear->factor);
    if (by_pair)
      frequency = 1.0f / (static_cast<float>(by_pair->factors[static_cast<size_t>(i / 2)]) * power);
    frequencies.push_back(frequency);
  }
  return frequencies;
}

}  // namespace outrider
