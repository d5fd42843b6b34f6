// The inputs of a matmul the way its kernels want them: internal to kernels.
#pragma once

#include <cstdint>

#include "base/shard.h"
#include "base/tensor_view.h"
#include "kernels/cpu/matmul_kernels.h"

namespace outrider {

// Rows in blocks of equal size, the last perhaps smaller.
struct RowBlocks {
  RowBlocks(int64_t row_count, int max_rows)
      : rows(row_count), count((rows + max_rows - 1) / max_rows), size((rows + count - 1) / count) {}
  int64_t first(int64_t block) const { return block * size; }
  int64_t rows_of(int64_t block) const { return rows - first(block) < size ? rows - first(block) : size; }

  int64_t rows, count, size;
};

// Writes columns [begin, end) of every row of one leaf, begin even, rounded to bf16 if asked; a missing odd
// column is zero. Block b starts at words + first(b) * row_words(layout, packed_k).
void lay_out_inputs(TensorView<const float, 2> x, const PackedMatrix& weight, IndexRange columns,
                    const RowBlocks& blocks, InputLayout layout, uint32_t* words);

// The inputs of quantised weights: every row is quantised to int8 over the columns of one group of weights,
// scale = largest magnitude / 127. Block b starts at first(b) * (groups of the matrix) of scales and offsets.
struct QuantizedInputs {
  uint32_t* words = nullptr;
  float* scales = nullptr;
  int32_t* offsets = nullptr;
};
void quantize_inputs(TensorView<const float, 2> x, const PackedMatrix& weight, IndexRange groups,
                     const RowBlocks& blocks, InputLayout layout, const QuantizedInputs& to);

// The inputs of codes, in the order of their columns in a tile, rounded to bf16, zero where a run is filled
// up; and, where the layout has_input_sums(), the sum of every run's inputs: sixteen sums, of columns i % 16
// of the run in order, then halves added to halves. Item i of [0, blocks.count * runs) is run i % runs of
// block i / runs. Block b starts at first(b) * runs of the sums.
struct CodeInputs {
  uint32_t* words = nullptr;
  float* sums = nullptr;
};
void lay_out_code_inputs(TensorView<const float, 2> x, const PackedMatrix& weight, IndexRange items,
                         const RowBlocks& blocks, InputLayout layout, const CodeInputs& to);

// The inputs of codes that take int8: every row is quantised over the columns of one run, scale = largest
// magnitude / 127, and laid out as kBytes. Items and places as in lay_out_code_inputs(); integer_sums are the
// sums of each run's integers (with zero_taken as LeafJob::input_offsets says), sums those times the scale.
struct QuantizedCodeInputs {
  uint32_t* words = nullptr;
  float* scales = nullptr;
  int32_t* integer_sums = nullptr;
  float* sums = nullptr;
};
void quantize_code_inputs(TensorView<const float, 2> x, const PackedMatrix& weight, IndexRange items,
                          const RowBlocks& blocks, int zero_taken, const QuantizedCodeInputs& to);

}  // namespace outrider
