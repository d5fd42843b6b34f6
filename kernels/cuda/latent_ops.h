// Ops of latent attention (latent_attention.h), beside the ops of cuda_ops.h. The contract of cuda_ops.h
// holds here, too.
#pragma once

#include "kernels/cuda/cuda_ops.h"

namespace outrider::cuda {

// How neighbouring or distant numbers of a rotated part turn, by tables of [positions, pairs].
struct LatentTurns {
  int32_t pairs = 0;
  bool interleaved = true;  // neighbours turn together, and become halves
  const float* cosines = nullptr;
  const float* sines = nullptr;
};

// Norms latents and stores what is cached. Of row m of `latents`: numbers [0, q_rank) are normed into
// q_latent, where q_rank is above 0; from kv_begin on lie layer.latent_dim numbers, which are normed, and a
// rotated part, which turns: together they are the row's key. With a cache in bf16, whose rows share tiles, a
// latent that is not finite is stored as zeros and a rotated part of NaN, which reach the rows that attend to
// it alone.
struct LatentArguments {
  const float* latents = nullptr;  // [rows, stride]
  int64_t stride = 0;
  int64_t kv_begin = 0;
  const float* kv_norm = nullptr;  // [latent_dim]
  int64_t q_rank = 0;
  const float* q_norm = nullptr;  // [q_rank]
  void* q_latent = nullptr;       // [rows, q_rank] of `type`
  WeightType type = WeightType::kFloat32;
  int64_t rows = 0;
  float epsilon = 0;
  LatentTurns turns;
};
void store_latents(StreamView stream, const DeviceBatch& batch, const KvLayer& layer,
                   const LatentArguments& arguments);

// queries[m, h, to + i] = the rotated part that begins at q[m, h, from], turned.
struct QueryTurns {
  const float* q = nullptr;  // [rows, stride]: of each head `each` numbers
  int64_t stride = 0;
  int32_t each = 0, from = 0;
  float* queries = nullptr;  // [rows, heads, to_each]
  int32_t to_each = 0, to = 0;
  int32_t heads = 0;
  int64_t rows = 0;
  LatentTurns turns;
};
void turn_queries(StreamView stream, const DeviceBatch& batch, const QueryTurns& arguments);

// Rows of a head's matrix among those of all heads, one below the other: whole tiles.
constexpr int64_t head_rows(int64_t n) { return (n + kTileRows - 1) / kTileRows * kTileRows; }

// out[m, h, i] = sum over k of x[m, h, k] * weight[h * head_rows(n) + i, k], for each head by itself, in one
// chain along k. Weights are fp32, or bf16 with inputs rounded to it.
struct HeadProduct {
  const void* x = nullptr;  // [rows, x_stride]: head h's from x_each * h on
  int64_t x_stride = 0, x_each = 0;
  bool is_x_float = true;  // else of activation_type(weight.type), as what comes out then is
  void* out = nullptr;     // [rows, out_stride]: head h's from out_each * h on
  int64_t out_stride = 0, out_each = 0;
  int64_t rows = 0, heads = 0, n = 0;
};
void multiply_heads(StreamView stream, const HeadProduct& product, const MatrixView& weight);

}  // namespace outrider::cuda
