// Kernels behind matmul(): internal to transformer/ops.
#pragma once

#include <cstdint>
#include <span>

#include "transformer/ops/packed_matrix.h"

namespace outrider {

// A block of rows against a range of tiles. `inputs` holds the rows as the kernel wants them:
//   fp32 weights, and bf16 weights without bf16 instructions: floats, row stride = padded_k
//   bf16 weights with AVX512-BF16: pairs of bf16 in one uint32, row stride = padded_k / 2
struct MatmulJob {
  const PackedMatrix* weight = nullptr;
  const uint32_t* inputs = nullptr;
  int64_t input_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int64_t rows = 0;
};

void matmul_tiles(const MatmulJob& job, int64_t first_tile,
                  int64_t last_tile);  // Highway: fp32 and bf16 weights

bool cpu_has_avx512_bf16();
void matmul_tiles_avx512_bf16(const MatmulJob& job, int64_t first_tile, int64_t last_tile);  // bf16 weights

// Leaves are summed as they come, in the balanced tree ((0+1)+(2+3))+((4+5)+(6+7)), by a binary counter of
// partial sums. Each kernel spells it out: a shared template could not be inlined into code of another
// instruction set. The number of leaves is a power of two, as every rank's share is.
constexpr int kTreeLevels = 4;

}  // namespace outrider
