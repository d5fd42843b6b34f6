#include "lab/synth/random_weights.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace outrider {
namespace {

constexpr size_t kQuantiles = 65536;

// Quantiles (i + 0.5) / 65536 of the upper half, from the median outwards: each is the start of the next
// Newton iteration on the distribution function.
std::vector<double> upper_quantiles() {
  std::vector<double> quantiles;
  double x = 0;
  for (size_t i = kQuantiles / 2; i < kQuantiles; ++i) {
    const double upper_tail = 1 - (static_cast<double>(i) + 0.5) / kQuantiles;
    for (int step = 0; step < 4; ++step) {
      const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
      x += (0.5 * std::erfc(x / std::numbers::sqrt2) - upper_tail) / density;
    }
    quantiles.push_back(x);
  }
  return quantiles;
}

}  // namespace

NormalTable::NormalTable(double standard_deviation) {
  static const std::vector<double> upper = upper_quantiles();
  values_.resize(kQuantiles);
  for (size_t i = 0; i < upper.size(); ++i) {
    const auto value = static_cast<float>(standard_deviation * upper[i]);
    values_[kQuantiles / 2 + i] = to_bf16(value);
    values_[kQuantiles / 2 - 1 - i] = to_bf16(-value);
  }
}

void fill_normal(const NormalTable& table, Seed seed, int32_t tensor, int64_t first, std::span<bf16> out) {
  for (size_t i = 0; i < out.size(); i += kWeightsPerDraw) {
    const auto draw = static_cast<uint64_t>(first / kWeightsPerDraw) + i / kWeightsPerDraw;
    const auto words = draw_block(seed, Purpose::kSynth, Position(tensor),
                                  Round(static_cast<uint32_t>(draw >> 32)), static_cast<uint32_t>(draw));
    const size_t count = std::min<size_t>(kWeightsPerDraw, out.size() - i);
    for (size_t j = 0; j < count; ++j) out[i + j] = table[words[j / 2] >> (16 * (j % 2)) & 0xffff];
  }
}

}  // namespace outrider
