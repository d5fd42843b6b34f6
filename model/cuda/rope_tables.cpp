#include "model/cuda/rope_tables.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "model/rope.h"

namespace outrider::cuda {
namespace {

// The angle is rounded to fp32 before the cosine.
DeviceBuffer<float> table_of(const std::vector<float>& frequencies, int64_t positions,
                             float (*function)(float), float amplitude, StreamView stream) {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(positions) * frequencies.size());
  for (int64_t p = 0; p < positions; ++p)
    for (float frequency : frequencies)
      values.push_back(function(static_cast<float>(p) * frequency) * amplitude);
  DeviceBuffer<float> table(static_cast<int64_t>(values.size()));
  copy(table.data(), values.data(), table.size(), stream);
  stream.synchronize();
  return table;
}

}  // namespace

RopeTables rope_tables(const ModelConfig& config, LayerRope rope, int64_t positions, StreamView stream) {
  const auto turns_by_it = [&](const LayerKind& layer) { return layer.rope == rope; };
  if (rope != LayerRope::kMain && std::none_of(config.layers.begin(), config.layers.end(), turns_by_it))
    return {};
  const RopeConfig& of = rope == LayerRope::kLocal ? config.local_rope : config.rope;
  const auto frequencies = rope_frequencies(of, config.head_dim);
  const auto amplitude = static_cast<float>(of.amplitude);
  return {.turned = static_cast<int32_t>(frequencies.size()),
          .interleaved = of.interleaved,
          .cosines = table_of(frequencies, positions, &std::cos, amplitude, stream),
          .sines = table_of(frequencies, positions, &std::sin, amplitude, stream)};
}

}  // namespace outrider::cuda
