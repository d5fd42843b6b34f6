// Kernels behind matmul(): internal to kernels.
//
// A kernel multiplies one leaf: a block of rows by a few tiles, over the columns of that leaf, in order, one
// accumulator per output. So neither the number of rows nor of tiles can change a bit. The driver
// (matmul.cpp) adds leaves.
#pragma once

#include <cstdint>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/packed_matrix.h"

namespace outrider {

constexpr int kMaxBlockRows = 16;
constexpr int kMaxStreams = 4;
constexpr int kMaxOutputs = 64;  // rows * tiles of one kernel call

// How inputs of a block of R rows are laid out, as 32-bit words:
//   kFloats  [k][R] fp32             kPairs   [k / 2][R] of two bf16
//   kBytes   [k / 4][R] of four int8         kShorts  [k / 4][2][R] of int16 columns 0 and 2, then 1 and 3
//   kPairRows  [R][row_words] of two bf16    kByteRows  [R][row_words] of four int8
enum class InputLayout : uint8_t { kFloats, kPairs, kBytes, kShorts, kPairRows, kByteRows };

constexpr bool keeps_rows(InputLayout layout) { return layout >= InputLayout::kPairRows; }

// Words of one row that hold `columns` columns.
constexpr int64_t input_words(InputLayout layout, int64_t columns) {
  switch (layout) {
    case InputLayout::kFloats:
      return columns;
    case InputLayout::kBytes:
    case InputLayout::kByteRows:
      return columns / 4;
    default:
      return columns / 2;
  }
}

// From one row to the next, where rows stay whole: an odd number of lines, so that the rows of a block do not
// all fall into one set of the cache.
constexpr int64_t row_words(InputLayout layout, int64_t columns) {
  constexpr int64_t kLineWords = 16;
  const int64_t words = input_words(layout, columns);
  return keeps_rows(layout) ? ((words + kLineWords - 1) / kLineWords | 1) * kLineWords : words;
}

struct LeafJob {
  const std::byte* tile = nullptr;   // of the first stream, at the leaf's first column
  int64_t stream_stride = 0;         // bytes from one stream's tile to the next one's
  const uint32_t* inputs = nullptr;  // of the block, at the leaf's first column
  int64_t row_stride = 0;            // words, where the layout keeps rows whole
  int rows = 0;                      // of the block
  int64_t columns = 0;               // of the leaf, with its padding
  float* sums = nullptr;             // [streams][rows][16], written
  // Quantised weights only, from the leaf's first group on:
  const std::byte* scales = nullptr;       // of the first stream: [group][16] of bf16
  const float* input_scales = nullptr;     // [group][R]
  const int32_t* input_offsets = nullptr;  // [group][R]: takes back what storing weights + 128 (or 8) adds
  // Kernels of codes only: the leaf's runs of columns. Then `scales` is the start of the first stream's tile,
  // and input_scales are the sums of the inputs, [run][R].
  const CodeLayout* codes = nullptr;
  const CodeLayout::Run* runs = nullptr;
  int64_t run_count = 0;
  // Codes with int8 inputs only: input_scales and input_offsets are the scale and the sum of the integers of
  // each run, these are their product. [run][R]. With KernelSet::zero_taken the offsets hold two numbers of
  // 16 bits: -zero_taken * the sums of columns 0, 1, 4, 5, 8, ... and of the columns between.
  const float* input_sums = nullptr;
};
using LeafKernel = void (*)(const LeafJob&);

// The kernels of one weight type and instruction set.
struct KernelSet {
  InputLayout layout = InputLayout::kFloats;
  int max_rows = 0;                           // rows of one block
  int streams[kMaxBlockRows + 1] = {};        // how many tiles many[rows] reads side by side
  LeafKernel many[kMaxBlockRows + 1] = {};    // by rows
  LeafKernel single[kMaxBlockRows + 1] = {};  // the same for one tile
  int zero_taken = 0;                         // from every code, by LeafJob::input_offsets
  bool of_codes = false;                      // takes kInt4 as PackedMatrix::int4_codes()
  void (*finish)() = nullptr;                 // by every thread after its last leaf of a matmul
};

// For the instruction set in use.
const KernelSet& kernel_set(WeightType type, int64_t rows);
const KernelSet& code_kernels(const CodeLayout& codes);  // of kCodes

const KernelSet& highway_code_kernels(const QuantScheme& scheme);
const KernelSet& highway_int8_code_kernels(const CodeLayout& codes);
const KernelSet* highway_int4_code_kernels();  // null where highway_integer_kernels() are as fast
const KernelSet& avx512_vnni_code_kernels(const CodeLayout& codes);    // only where isa_has_avx512_vnni()
const KernelSet& avx512_bf16_code_kernels(const QuantScheme& scheme);  // only where isa_has_avx512_bf16()
const KernelSet& highway_kernels(WeightType type);
const KernelSet& highway_integer_kernels(WeightType type);
const KernelSet& amx_kernels(WeightType type);          // kBFloat16, kInt8; only where isa_has_amx()
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
