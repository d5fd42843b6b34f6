// Device memory that the steps of row_steps.h work in, on one rank, and what they are queued as.
#pragma once

#include "base/cuda.h"
#include "kernels/sampling/cuda/draw_inputs.h"
#include "kernels/sampling/cuda/row_steps.h"

namespace outrider::cuda {

class RowMemory {
 public:
  // Memory for rows of `width` tokens.
  RowMemory(int64_t rows, int64_t width);
  static int64_t bytes_for(int64_t rows);
  // Where everything will be, and into how many parts a row is cut.
  void set(RowBatch& batch) const;

 private:
  const int32_t width_;
  DeviceBuffer<uint64_t> part_values_, best_, bins_, ties_;
  DeviceBuffer<float> max_;
  DeviceBuffer<int32_t> finite_rows_;
  DeviceBuffer<Search> searches_;
};

// From raw logits to the tokens that filters leave, of the first batch.rows rows of `inputs`. What noise adds
// to filtered rows comes behind it.
void queue_processing(const DrawInputs& inputs, RowBatch batch, StreamView stream);
// The search of `task` for a cut, and the cut.
void queue_cut(const SearchTask& task, const RowBatch& batch, StreamView stream);

}  // namespace outrider::cuda
