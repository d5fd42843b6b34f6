// The inputs of a matmul the way its kernels want them: internal to transformer/ops.
#pragma once

#include <cstdint>

#include "base/tensor_view.h"
#include "transformer/ops/matmul_kernels.h"

namespace outrider {

// Rows in blocks of equal size, the last perhaps smaller.
struct RowBlocks {
  RowBlocks(int64_t row_count, int max_rows)
      : rows(row_count), count((rows + max_rows - 1) / max_rows), size((rows + count - 1) / count) {}
  int64_t first(int64_t block) const { return block * size; }
  int64_t rows_of(int64_t block) const { return rows - first(block) < size ? rows - first(block) : size; }

  int64_t rows, count, size;
};

// Writes columns [begin, end) of every row, end even or the last, rounded to bf16 if asked; a missing odd
// column is zero. Block b starts at words + first(b) * padded_k * (1 for kFloats, 1/2 for kPairs).
void lay_out_inputs(TensorView<const float, 2> x, int64_t begin, int64_t end, const RowBlocks& blocks,
                    int64_t padded_k, InputLayout layout, bool round, uint32_t* words);

}  // namespace outrider
