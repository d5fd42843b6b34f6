// Kernels behind matmul(): internal to transformer/ops.
//
// A kernel multiplies one leaf: a block of rows by a few tiles, over the columns of that leaf, in order, one
// accumulator per output. So neither the number of rows nor of tiles can change a bit. The driver
// (matmul.cpp) adds leaves.
#pragma once

#include <cstdint>

#include "transformer/ops/cpu_ops.h"
#include "transformer/ops/packed_matrix.h"

namespace outrider {

constexpr int kMaxBlockRows = 16;
constexpr int kMaxStreams = 4;
// rows * tiles of one kernel call: what the registers of the widest instruction set hold.
constexpr int kMaxOutputs = 24;

// How inputs of a block of R rows are laid out, as 32-bit words:
//   kFloats  [k][R] fp32             kPairs   [k / 2][R] of two bf16
//   kBytes   [k / 4][R] of four int8         kShorts  [k / 4][2][R] of int16 columns 0 and 2, then 1 and 3
enum class InputLayout : uint8_t { kFloats, kPairs, kBytes, kShorts };

// Words of one row that hold `columns` columns.
constexpr int64_t input_words(InputLayout layout, int64_t columns) {
  return layout == InputLayout::kFloats ? columns : layout == InputLayout::kBytes ? columns / 4 : columns / 2;
}

struct LeafJob {
  const std::byte* tile = nullptr;   // of the first stream, at the leaf's first column
  int64_t stream_stride = 0;         // bytes from one stream's tile to the next one's
  const uint32_t* inputs = nullptr;  // of the block, at the leaf's first column
  int64_t columns = 0;               // of the leaf, with its padding
  float* sums = nullptr;             // [streams][rows][16], written
  // Quantised weights only, from the leaf's first group on:
  const std::byte* scales = nullptr;       // of the first stream: [group][16] of bf16
  const float* input_scales = nullptr;     // [group][R]
  const int32_t* input_offsets = nullptr;  // [group][R]: takes back what storing weights + 128 (or 8) adds
};
using LeafKernel = void (*)(const LeafJob&);

// The kernels of one weight type and instruction set.
struct KernelSet {
  InputLayout layout = InputLayout::kFloats;
  int max_rows = 0;                           // rows of one block
  int streams[kMaxBlockRows + 1] = {};        // how many tiles many[rows] reads side by side
  LeafKernel many[kMaxBlockRows + 1] = {};    // by rows
  LeafKernel single[kMaxBlockRows + 1] = {};  // the same for one tile
};

const KernelSet& kernel_set(WeightType type);  // for the instruction set in use

const KernelSet& highway_kernels(WeightType type);
const KernelSet& highway_integer_kernels(WeightType type);
const KernelSet& avx512_bf16_kernels();                 // kBFloat16; only where isa_has_avx512_bf16()
const KernelSet& avx512_vnni_kernels(WeightType type);  // kInt8, kInt4; only where isa_has_avx512_vnni()

// matmul() with given kernels: for tests and benches that compare them.
void matmul_with(const KernelSet& kernels, ThreadPool& pool, MatmulScratch& scratch,
                 TensorView<const float, 2> x, const PackedMatrix& weight, TensorView<float, 2> out);

// Subnormals count as zero, as they do for the bf16 dot product of AVX-512; so every kernel gives the same
// bits.
class FlushSubnormals {
 public:
  FlushSubnormals();
  ~FlushSubnormals();
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  unsigned saved_ = 0;
};

}  // namespace outrider
