// Where kernels find the keys and values of a batch's rows. Before await_inputs() too: the batch was written
// several kernels ago, but perhaps after this multiprocessor last read it. Included by kernels only.
#pragma once

#include "base/cuda_device.h"
#include "kernels/cuda/cuda_ops.h"

namespace outrider::cuda {

__device__ __forceinline__ int32_t tail_begin_of(const DeviceBatch& batch, int64_t row) {
  return batch.tail_begins ? load_of_others(batch.tail_begins + row) : kNoTail;
}

__device__ __forceinline__ RowSlots slots_of(const DeviceBatch& batch, int64_t row) {
  const int32_t begin = tail_begin_of(batch, row);
  return {begin, begin == kNoTail ? nullptr : batch.tails + load_of_others(batch.tail_at + row)};
}

// The row's own slot; `position` is its own.
__device__ __forceinline__ int32_t slot_of(const DeviceBatch& batch, int64_t row, int32_t position) {
  const RowSlots slots = slots_of(batch, row);
  return position < slots.tail_begin ? position : load_of_others(slots.tail + (position - slots.tail_begin));
}

}  // namespace outrider::cuda
