// Every CPU op of the forward pass, with formula and shapes. All arithmetic is fp32.
//
// Contract: a row of any output depends on that row of the inputs alone. Neither the number of rows, nor how
// the work is split over threads, nor which columns this rank owns, changes one bit. Each op is compiled for
// several instruction sets; results are bit-identical within one instruction set (isa_name).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bfloat16.h"
#include "base/kv_shape.h"
#include "base/tensor_view.h"
#include "base/thread_pool.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/packed_matrix.h"

namespace outrider {

// Rows of activations are padded to a multiple of this many floats, and the padding holds zeros or garbage
// that no result reads; vector code may touch it.
constexpr int64_t kRowPadding = 16;

// Scratch of matmul: the inputs rounded or quantised the way the weights want them. One per model.
struct MatmulScratch {
  Buffer<uint32_t> words;
  Buffer<float> scales;
  Buffer<int32_t> offsets;
  Buffer<float> sums;
};

// out[m, n] = sum over k of x[m, k] * weight[n, k], leaf by leaf, leaves added in one balanced tree.
// x [M, k], out [M, n]. With bf16 weights x is rounded to bf16 first; with int8 or int4 weights to int8, one
// scale per row and group of columns. With codes of published checkpoints x is rounded to bf16 or quantised
// to int8, as the matrix was packed for, and each run of columns that share a scale is summed before it is
// scaled (matmul_codes.cpp and matmul_codes_int8.cpp say the order).
void matmul(ThreadPool& pool, MatmulScratch& scratch, TensorView<const float, 2> x,
            const PackedMatrix& weight, TensorView<float, 2> out);

// As matmul(), for the first out.extent(1) outputs: a multiple of kTileColumns, or all outputs.
void matmul_first(ThreadPool& pool, MatmulScratch& scratch, TensorView<const float, 2> x,
                  const PackedMatrix& weight, TensorView<float, 2> out);

// The same without the tree: out[m, leaf * n + i] is leaf's part of output i. out [M, leaves * n]
void matmul_leaves(ThreadPool& pool, MatmulScratch& scratch, TensorView<const float, 2> x,
                   const PackedMatrix& weight, TensorView<float, 2> out);

// out[m, :] = x[m, :] / sqrt(mean(x[m, :]^2) + epsilon) * weight       (Zhang & Sennrich 2019)
void rms_norm(TensorView<const float, 2> x, std::span<const float> weight, float epsilon,
              TensorView<float, 2> out);

// The same norm over a row that several ranks hold a part of each (OLMo 2): first every rank's sum of
// squares, by leaves as matmul has them, then, with the sum over ranks, its part of the row.
float sum_of_squares(std::span<const float> part, std::span<const int64_t> leaf_ends);
// part[i] *= weight[i] / sqrt(mean_square + epsilon)
void norm_part(std::span<float> part, std::span<const float> weight, float mean_square, float epsilon);

// Rotary embedding (Su et al. 2021): pair i, dimensions (i, i + d/2) or neighbours (2i, 2i + 1), turns by
// position * frequency[i].
class RopeTable {
 public:
  RopeTable() = default;
  // frequencies: one per pair, of the head's first dimensions; amplitude: of cosine and sine.
  RopeTable(std::span<const float> frequencies, int64_t positions, float amplitude = 1,
            bool interleaved = false);
  // Rotates one head in place.
  void rotate(std::span<float> head, int64_t position) const;

 private:
  int64_t pairs_ = 0;
  bool interleaved_ = false;  // neighbours turn together
  Buffer<float> cos_, sin_;   // [positions, pairs]
};

// gate[m, i] = silu(gate[m, i]) * up[m, i], for i < n; the same with gelu in its tanh form.
void silu_mul(ThreadPool& pool, TensorView<float, 2> gate, TensorView<const float, 2> up, int64_t n);
void gelu_tanh_mul(ThreadPool& pool, TensorView<float, 2> gate, TensorView<const float, 2> up, int64_t n);
// gate[m, i] = g * sigmoid(factor * g) * (u + 1), with g = min(gate[m, i], limit) and u = up[m, i] in
// [-limit, limit] (gpt-oss).
void clamped_swish_mul(ThreadPool& pool, TensorView<float, 2> gate, TensorView<const float, 2> up, int64_t n,
                       float factor, float limit);

// x[m, :] *= factor; x[m, :] = cap * tanh(x[m, :] / cap).
void scale_rows(TensorView<float, 2> x, float factor);
void cap_rows(ThreadPool& pool, TensorView<float, 2> x, float cap);

// x[m, :] += y[m, :]; x[m, :] += y[m, :] * factor; x[m, :] += bias, where there is one.
void add_rows(TensorView<float, 2> x, TensorView<const float, 2> y);
void add_scaled(std::span<float> x, std::span<const float> y, float factor);
void add_bias(TensorView<float, 2> x, std::span<const float> bias);

// One layer's keys and values, paged. A block holds kBlockTokens consecutive slots of one sequence:
//   keys   [block][kv_head][head_dim][kBlockTokens]            (tokens are the vector lanes of a score)
//   values [block][kv_head][kBlockTokens][round_up(head_dim, 16)]
// A layer with a short convolution or a gated delta net keeps one row of each token, as the value of its only
// head, and no keys.
struct KvLayerView {
  KvType type = KvType::kFloat32;
  std::byte* keys = nullptr;
  std::byte* values = nullptr;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  bool has_keys = true;
  int64_t value_stride() const { return round_up(head_dim, 16); }
};

// Writes key and value of one token and one head; block_slot = slot % kBlockTokens.
void store_kv(const KvLayerView& layer, int64_t block, int64_t block_slot, int64_t kv_head,
              std::span<const float> key, std::span<const float> value);

// Writes the row that a layer without keys keeps of one token.
void store_row(const KvLayerView& layer, int64_t block, int64_t block_slot, std::span<const float> row);

// One query row: attends to positions [0, position], whose slots it finds through its sequence's block table.
// Positions are slots, but for a slice with a tree, whose rows all name their tails: positions from
// tail_begin on lie in slots tail_slots[0], tail_slots[1], ..., ascending, the row's own the last.
struct AttentionRow {
  const int32_t* block_table = nullptr;  // block of slots [16 i, 16 i + 16)
  int64_t position = 0;
  int64_t tail_begin = 0;
  const int32_t* tail_slots = nullptr;

  bool has_tail() const { return tail_slots && position >= tail_begin; }
  int64_t slot(int64_t p) const { return tail_slots && p >= tail_begin ? tail_slots[p - tail_begin] : p; }
};

struct AttentionShape {
  int64_t heads = 0;          // query heads of this rank
  int64_t first_head = 0;     // index of its first query head in the whole model
  int64_t first_kv_head = 0;  // index of its first KV head
  int64_t heads_per_kv = 1;
  float scale = 0;               // of scores; 0: 1 / sqrt(head_dim)
  float cap = 0;                 // of scores, above 0: cap * tanh(score / cap)
  int64_t window = 0;            // above 0: a row attends to the last `window` positions, its own included
  const float* sinks = nullptr;  // [heads], or none: a score beside those of the positions, without a value
};

// Room for the scores of a few queries a thread, and the list of what they do.
class AttentionScratch {
 public:
  static constexpr int kQueries = 16;  // that go over keys and values together

  // Rows [row, row + rows) of one text with query heads [head, head + heads) of this rank.
  struct Job {
    int64_t row = 0, rows = 0, kv_head = 0, head = 0, heads = 0;
  };
  std::vector<Job> jobs;

  AttentionScratch() = default;
  AttentionScratch(int threads, int64_t max_positions, int64_t head_dim);
  std::span<float> of_thread(int64_t part) {
    return buffer_.span().subspan(static_cast<size_t>(part * stride_), static_cast<size_t>(stride_));
  }

 private:
  int64_t stride_ = 0;
  Buffer<float> buffer_;
};

// out[m, h, :] = softmax(q[m, h, :] . K * scale, sinks[h]) V. q and out [M, heads * head_dim]. Positions are
// reduced in absolute order, 16 lanes by position % 16, wherever they lie.
void attention(ThreadPool& pool, AttentionScratch& scratch, TensorView<const float, 2> q,
               const KvLayerView& layer, const AttentionShape& shape, std::span<const AttentionRow> rows,
               TensorView<float, 2> out);

// A causal convolution of each channel by itself (LFM2):
// out[m, c] = gate[m, c] * sum over t of taps[t, c] * kept(position - count + 1 + t)[c],
// where kept(p) is what the layer keeps of position p of the row's path, and nothing is added for positions
// in front of the text. gate and out [M, channels], taps [count, channels]. The last of a row's positions is
// its own.
void short_convolution(ThreadPool& pool, TensorView<const float, 2> gate, const KvLayerView& layer,
                       std::span<const float> taps, std::span<const AttentionRow> rows,
                       TensorView<float, 2> out);

}  // namespace outrider
