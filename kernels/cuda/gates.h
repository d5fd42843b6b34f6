// How a gate and its up become one number, for every kernel that has both. Included by kernels only.
#pragma once

#include "base/cuda_device.h"
#include "kernels/cuda/mma_ring.h"

namespace outrider::cuda {

struct Silu {
  __device__ __forceinline__ static float of(float gate) { return gate / (1.0f + expf(-gate)); }
};
struct GeluTanh {
  __device__ __forceinline__ static float of(float gate) {
    const float inner = 0.7978845608028654f * (gate + gate * gate * gate * 0.044715f);  // sqrt(2 / pi)
    return 0.5f * gate * (1.0f + tanhf(inner));
  }
};

// For a product with paired rows: combines the sums of row `row` (of a tile's first eight) and of the row 8
// behind it.
__device__ __forceinline__ void store_gated(const MmaArguments& a, int token, int tile, int row, float gate,
                                            float up) {
  const int columns = a.n / 2, i = tile * (kTileRows / 2) + row;
  if (a.gated.bias) {
    gate = gate + a.gated.bias[i];
    up = up + a.gated.bias[columns + i];
  }
  const float activated = a.gated.kind == GateKind::kSilu ? Silu::of(gate) : GeluTanh::of(gate);
  a.gated.out[token * a.out_stride + i] = to_bf16(activated * up);
}

}  // namespace outrider::cuda
