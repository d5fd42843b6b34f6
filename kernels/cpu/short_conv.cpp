// Short convolutions. Every channel is summed by itself, from the oldest row to the row's own, so neither the
// place where a shard ends nor the vector width can matter.
#include <algorithm>

#include "kernels/cpu/cpu_ops.h"

namespace outrider {
namespace {

// The numbers that a layer keeps of the token in `slot` of a row's sequence.
template <class T>
const T* kept_row(const KvLayerView& layer, const AttentionRow& row, int64_t slot) {
  const int64_t block = row.block_table[slot / kBlockTokens];
  return reinterpret_cast<const T*>(layer.values) +
         (block * kBlockTokens + slot % kBlockTokens) * layer.value_stride();
}

float as_float(float value) { return value; }
float as_float(bf16 value) { return to_float(value); }

template <class T>
void convolve(std::span<const float> gate, const KvLayerView& layer, std::span<const float> taps,
              const AttentionRow& row, std::span<float> out) {
  const auto channels = static_cast<int64_t>(out.size());
  const int64_t count = static_cast<int64_t>(taps.size()) / channels;
  std::fill(out.begin(), out.end(), 0.0f);
  for (int64_t tap = 0; tap < count; ++tap) {
    const int64_t position = row.position - (count - 1) + tap;
    if (position < 0) continue;
    const T* const from = kept_row<T>(layer, row, row.slot(position));
    const float* const weights = taps.data() + tap * channels;
    float* const to = out.data();
    for (int64_t c = 0; c < channels; ++c) to[c] += weights[c] * as_float(from[c]);
  }
  for (size_t c = 0; c < out.size(); ++c) out[c] *= gate[c];
}

}  // namespace

void short_convolution(ThreadPool& pool, TensorView<const float, 2> gate, const KvLayerView& layer,
                       std::span<const float> taps, std::span<const AttentionRow> rows,
                       TensorView<float, 2> out) {
  if (out.extent(1) == 0) return;
  constexpr int64_t kRowsOfThread = 4;
  pool.parallel_for(static_cast<int64_t>(rows.size()), kRowsOfThread, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      const AttentionRow& row = rows[static_cast<size_t>(m)];
      layer.type == KvType::kBFloat16 ? convolve<bf16>(gate.row(m), layer, taps, row, out.row(m))
                                      : convolve<float>(gate.row(m), layer, taps, row, out.row(m));
    }
  });
}

}  // namespace outrider
