// Kernels for rows of heads, beside those of cuda_ops.h, whose contract they keep. Rows may stand apart, and
// views of one buffer be read and written: strides are in numbers.
#pragma once

#include "kernels/cuda/cuda_ops.h"

namespace outrider::cuda {

struct RowsAt {
  float* data = nullptr;
  int64_t rows = 0, columns = 0, stride = 0;
};

// out[m, :] = x[m, :] / sqrt(mean(x[m, :]^2) + epsilon) * weight, rounded to `type`; without weight x itself.
// `out` may be x.
struct NormedRows {
  RowsAt x;
  const float* weight = nullptr;  // [columns]
  float epsilon = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  WeightType type = WeightType::kFloat32;
};
void norm_rows(StreamView stream, const NormedRows& arguments);

// x[m, :] += bias.
void add_bias(StreamView stream, const RowsAt& x, const float* bias);
// x[m, :] += added[m, :] + bias, which may be null.
void add_rows(StreamView stream, const RowsAt& x, const RowsAt& added, const float* bias);
// x[m, :] += silu(added[m, :] + bias), which may be null.
void add_silu(StreamView stream, const RowsAt& x, const RowsAt& added, const float* bias);
// x[m, :] *= sigmoid(gate[m, :]), rounded to x's type.
struct GatedRows {
  void* data = nullptr;
  int64_t stride = 0;
  WeightType type = WeightType::kFloat32;
};
void gate_rows(StreamView stream, const RowsAt& gate, const GatedRows& x);
// x[m, :] = bf16 of it.
void round_rows(StreamView stream, const RowsAt& x);
// to[m, :] = from[m, :], rows one behind the other.
void widen_rows(StreamView stream, const bf16* from, const RowsAt& to);
// The other way round, rounded. finite[m]: whether row m is, as a number; in memory that the host may read.
void narrow_rows(StreamView stream, const RowsAt& from, bf16* to, uint32_t* finite);
// to[m, :] = the state of slot tokens[m].
struct HiddenStateSlots {
  static constexpr int32_t kMost = 64;
  int64_t tokens[kMost];  // block * kBlockTokens + token of the block
  int32_t count = 0;
};
void gather_hidden_states(StreamView stream, const HiddenStateRows& hidden_states,
                          const HiddenStateSlots& slots, const RowsAt& to);

// to[m, v] = x[numbers.rows[m], own_of[v]], -inf where that is -1. Without own_of, v itself.
struct RowNumbers {
  static constexpr int32_t kMost = 64;
  int32_t rows[kMost];
  int32_t count = 0;
};
void spread_rows(StreamView stream, const RowsAt& x, const RowNumbers& numbers, const int32_t* own_of,
                 const RowsAt& to);

// to[m, :] = row tokens[m] of a table of fp32 or bf16. Starts when all in front of it has ended: kernels
// behind it may read positions, which change in front of it, before they wait for anything.
void read_table(StreamView stream, const MatrixView& table, const int32_t* tokens, const RowsAt& to);

// One more, for each of the first rows.
void advance_rows(StreamView stream, int32_t* positions, int32_t* sees, int64_t rows);

}  // namespace outrider::cuda
