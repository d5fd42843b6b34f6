// Rows of activations on the host, planned at start-up. Each is padded: vector code may go over its end.
#pragma once

#include <span>

#include "base/buffer.h"
#include "base/tensor_view.h"
#include "kernels/cpu/cpu_ops.h"

namespace outrider {

struct ActivationRows {
  ActivationRows(int64_t row_count, int64_t column_count)
      : columns(column_count), stride(round_up(column_count, kRowPadding)), data(row_count * stride) {}
  TensorView<float, 2> rows(int64_t count) { return {data.data(), {count, columns}, {stride, 1}}; }
  // Columns [first, first + count) of the first `rows` rows.
  TensorView<float, 2> slice(int64_t row_count, int64_t first, int64_t count) {
    return {data.data() + first, {row_count, count}, {stride, 1}};
  }
  // The rows with their padding: contiguous.
  std::span<float> flat(int64_t count) { return {data.data(), static_cast<size_t>(count * stride)}; }

  int64_t columns, stride;
  Buffer<float> data;
};

}  // namespace outrider
