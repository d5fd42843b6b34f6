// Every CUDA op of the forward pass, with formula and shapes. Pointers are device memory, and the caller
// gives the stream. No op waits or allocates, so every op can be captured in a graph: inputs that change
// between steps (tokens, positions, block tables) are read from DeviceBatch.
//
// Contract, as of cpu_ops.h: a row of any output depends on that row of the inputs alone, bit for bit, for
// any number of rows and any split over ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "base/bfloat16.h"
#include "base/cuda.h"
#include "kernels/cuda/chosen_work.h"
#include "kernels/cuda/device_matrix.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/product_rule.h"

namespace outrider::cuda {

struct PeerView;  // comm/cuda/peer_kernels.h

// Activations that feed a projection are fp32 where the weights are, else bf16; the rest is fp32.
constexpr WeightType activation_type(WeightType weights) {
  return weights == WeightType::kFloat32 ? WeightType::kFloat32 : WeightType::kBFloat16;
}
constexpr int64_t element_bytes(WeightType type) { return weight_bits(type) / 8; }

struct DeltaSequence;  // delta_ops.h

// The rows of one forward. Every pointer stays where it is from step to step.
struct DeviceBatch {
  const int32_t* tokens = nullptr;      // [rows]
  const int32_t* positions = nullptr;   // [rows] absolute
  const int32_t* row_table = nullptr;   // [rows]: which block table
  const int32_t* tables = nullptr;      // [sequences][table_stride]: block of slots [16 i, 16 i + 16)
  const int32_t* tile_rows = nullptr;   // [rows]: of the attention tile that begins here; 0 inside one
  const int32_t* logit_rows = nullptr;  // [logit rows]: which rows
  // [rows]: RowSlots of nodes of trees, kNoTail elsewhere. Null: there are none. The slots are
  // tails[tail_at[row]] and behind.
  const int32_t* tail_begins = nullptr;
  const int32_t* tail_at = nullptr;
  const int32_t* tails = nullptr;
  int64_t table_stride = 0;
  const DeltaSequence* sequences = nullptr;  // [rows], for gated delta nets: sequence i has table i
};

// Once per device, before the first product or attention: raises what a block may have of shared memory.
void prepare_matmul(int64_t shared_bytes);
void prepare_attention(int64_t shared_bytes);

// out[m, n] = sum over k of x[m, k] * weight[n, k], slice by slice, slices added in the tree; codes are
// summed group by group, each sum scaled in fp32. fp16 and published codes are multiplied as the exact
// numbers that they stand for. x: of activation_type; both row-major, strides in elements (x_stride even).
struct SplitRoom {
  float* partials = nullptr;    // null: no product is split over blocks (product_rule.h)
  uint32_t* arrived = nullptr;  // [kSplitCounters], 0 between products
  int64_t floats = 0;           // of partials; the room is of one stream
};

// Output of a product whose matrix has gates and ups with paired rows (MatrixView). Written in place of
// `out`: gated.out[m, i] = gate(sum of row i + bias[i]) * (sum of row columns + i + bias[columns + i]),
// rounded, with silu or gelu in its tanh form.
enum class GateKind : int32_t { kSilu, kGeluTanh };
struct GatedOutput {
  GateKind kind = GateKind::kSilu;
  const float* bias = nullptr;  // [2 * columns], may be null
  bf16* out = nullptr;          // [rows, out_stride]; null: nothing is gated
};

struct MatmulShape {
  int64_t rows = 0;
  int64_t x_stride = 0;
  int64_t out_stride = 0;
  SplitRoom split;
  ChosenWork chosen;
  GatedOutput gated;
  // Properties of the device. No bit depends on them.
  int multiprocessors = 1;
  int64_t shared_bytes = 0;
};
void matmul(StreamView stream, const MatmulShape& shape, const void* x, const MatrixView& weight, float* out);

// out[m, i] = x[m, columns[i]] of a matrix whose columns are not in order, 0 where it has none.
constexpr int64_t kAlignedInputs = 8;  // out_stride is a multiple of this
void gather_columns(StreamView stream, int64_t rows, const bf16* x, int64_t x_stride,
                    const MatrixView& weight, bf16* out, int64_t out_stride);

// residual[m, :] = embedding row of tokens[m] * factor where this rank has it, else +0. The table is a matrix
// as stored for the head.
void embed(StreamView stream, const DeviceBatch& batch, int64_t rows, const MatrixView& table,
           int64_t first_token, int64_t hidden, float factor, float* residual);

// residual[m, :] += (added[m, :] + bias) * factor (added and bias may be null), then
// out[m, :] = residual[m, :] / sqrt(mean(residual[m, :]^2) + epsilon) * weight, rounded to `type`.
// With `added_weight`, added + bias is normed with these weights before it is added (Gemma, OLMo 2). Without
// `weight`, out is the residual. With `rows_from`, row m is read from row rows_from[m] and residual is not
// written.
struct NormArguments {
  float* residual = nullptr;     // [*, hidden]
  const float* added = nullptr;  // [*, hidden]
  const float* bias = nullptr;   // [hidden]
  const float* added_weight = nullptr;
  float factor = 1;
  const float* weight = nullptr;
  const int32_t* rows_from = nullptr;
  void* out = nullptr;  // [rows, hidden]
  WeightType type = WeightType::kFloat32;
  int64_t rows = 0;
  int64_t hidden = 0;
  float epsilon = 0;
};
void add_and_norm(StreamView stream, const NormArguments& arguments);
// all_reduce(kTreeSum) of `added` over the ranks, then add_and_norm, with their bits, as one operation of the
// group; `added` itself stays. The residual is written for the rows that are normed. Not with added_weight.
void sum_and_norm(StreamView stream, const PeerView& view, const NormArguments& arguments);

// out[m, 0] = sum of squares of this rank's part of q, bias added, and out[m, 1] = of k: leaf by leaf, leaves
// added in the tree, which the tree over ranks continues.
struct SquaresArguments {
  const float* qkv = nullptr;  // [rows, stride]: q, then k
  int64_t stride = 0;
  const float* bias = nullptr;  // may be null
  LeafEnds q, k;
  int64_t k_begin = 0;   // column
  float* out = nullptr;  // [rows, 2]
  int64_t rows = 0;
};
void sum_squares(StreamView stream, const SquaresArguments& arguments);

// In qkv [rows, stride], which begins with (q_heads + 2 kv_heads) * head_dim columns: adds the bias;
// normalises q and k where there are norm weights, every head by itself (Qwen3) or all of q and all of k at
// once (OLMo 2); rotates q and k; writes k and v to the cache.
struct RopeArguments {
  float* qkv = nullptr;
  int64_t stride = 0;  // 0: there are no other columns
  int64_t rows = 0;
  int32_t q_heads = 0;
  const float* bias = nullptr;    // may be null
  const float* q_norm = nullptr;  // [head_dim], or with `squares` [q_heads * head_dim]; may be null
  const float* k_norm = nullptr;
  const float* squares = nullptr;  // [rows, 2]: over all ranks, of all of q and k, as sum_squares has them
  int64_t q_size = 0, k_size = 0;  // then: of the whole model
  int32_t turned = 0;              // pairs of dimensions that turn (HeadPairs)
  bool interleaved = false;        // neighbours turn together
  bool norms_rotated = false;      // every head is normalised behind its rotation
  const float* cosines = nullptr;  // [positions, turned]
  const float* sines = nullptr;
  float epsilon = 0;
};
void rotate_and_store(StreamView stream, const DeviceBatch& batch, const KvLayer& layer,
                      const RopeArguments& arguments);

// out[m, h, :] = softmax(q[m, h, :] . K * scale) V over the positions that a row sees, positions[m] the last.
// Scores may be capped: cap * tanh(score / cap). Where there are sinks, the softmax is over sinks[h] too,
// which yields nothing. Splits of kSplitPositions absolute positions are reduced apart, those in front of all
// that a row sees left out, and then combined in an order that depends on the row's position alone. With KV
// in bf16 on tensor cores: q and the softmax weights, each as the sum of two bf16, which keep 16 bits; keys
// and values go through once for the rows of a tile (neighbours of one sequence, positions ascending, or
// nodes of one tree) and all their heads, splits with tails of nodes for each row apart. With KV in fp32 by
// plain kernels, row by row. Values are V's first value_dim() dimensions, where V is K (KvLayer). With a
// gate, out[m, h, :] is multiplied by sigmoid(gate[m, h, :]).
struct AttentionArguments {
  const float* q = nullptr;  // [rows, q_stride]
  int64_t q_stride = 0;
  const float* gate = nullptr;  // [rows, q_stride], may be null
  void* out = nullptr;          // [rows, heads * value_dim] of `out_type`
  WeightType out_type = WeightType::kFloat32;
  int64_t rows = 0;
  int32_t heads = 0;
  int32_t first_head = 0;     // index of the rank's first query head in the whole model
  int32_t first_kv_head = 0;  // index of its first KV head
  int32_t heads_per_kv = 1;
  float scale = 0;               // 0: 1 / sqrt(head_dim)
  float cap = 0;                 // 0: none
  const float* sinks = nullptr;  // [heads], may be null
  int32_t window = 0;            // positions that a row sees; 0: all up to its own
  int32_t max_positions = 0;     // the grid covers this many; splits beyond a row's end return at once
  int32_t tile_rows = 1;         // at most, as in the batch
  int32_t tile_heads = 1;        // at most, as attention_tile says
  int64_t turn_rows = 1;         // rows that share the workspace; more are done in turns. No tile crosses one
  float* workspace = nullptr;    // attention_workspace() floats
  int multiprocessors = 1;       // no bit depends on it
};
// The most rows and heads of a tile, on a device whose blocks may use `shared_bytes` of shared memory, where
// up to `heads` heads share a KV head. Either several rows with all heads, or one row. No rows: shared memory
// is too small.
struct AttentionTile {
  int32_t rows = 0, heads = 0;
};
AttentionTile attention_tile(int64_t heads, const KvLayer& layer, int64_t shared_bytes);
// As many rows as fit a workspace that stays in the cache.
int64_t attention_turn_rows(int64_t heads, int64_t value_dim, int64_t max_positions);
int64_t attention_workspace(int64_t turn_rows, int64_t heads, int64_t value_dim, int64_t max_positions);
void attention(StreamView stream, const DeviceBatch& batch, const KvLayer& layer,
               const AttentionArguments& arguments);

// Where rows are not paired: out[m, i] = silu(gate_up[m, i] + bias[i]) * (gate_up[m, columns + i] +
// bias[columns + i]), rounded to `type`; the same with gelu in its tanh form.
void silu_mul(StreamView stream, const float* gate_up, const float* bias, int64_t rows, int64_t columns,
              WeightType type, void* out);
void gelu_tanh_mul(StreamView stream, const float* gate_up, const float* bias, int64_t rows, int64_t columns,
                   WeightType type, void* out);

// weights[m, e] = what expert e counts for token m, 0 where it is none of the chosen ones, as
// choose_experts() of expert_rows.h has it: of x[m, :] . router[e, :] + bias[e], in fp32, the share in all
// experts' softmax or the sigmoid; the largest are chosen, ties to the lowest id, with corrections counted
// for the choice alone, of the best groups, a group being as good as its best expert, with corrections its
// best two. Then the share in the chosen ones' sum if `renormalise`, times `factor`. And weights[m, experts]
// is the shared MLP's: sigmoid(x[m, :] . shared_gate), or 1 without a gate.
struct ExpertChoices {
  static constexpr int32_t kMost = 512;
  const void* x = nullptr;  // [rows, hidden] of `type`
  WeightType type = WeightType::kFloat32;
  int64_t rows = 0;
  int64_t hidden = 0;
  const float* router = nullptr;       // [experts, hidden]
  const float* bias = nullptr;         // [experts], of the router; may be null
  const float* correction = nullptr;   // [experts], may be null
  bool has_shared = false;             // an MLP that every token goes through
  const float* shared_gate = nullptr;  // [hidden], may be null
  int32_t experts = 0;
  int32_t chosen = 0;
  bool is_sigmoid = false;
  int32_t groups = 1, groups_chosen = 1;  // neighbours
  bool renormalise = true;
  float factor = 1;
  float added = 1e-20f;      // to the sum of chosen sigmoids, by which they are divided
  float* weights = nullptr;  // [rows, experts + 1]
};
void choose_experts(StreamView stream, const ExpertChoices& arguments);

// Computes which parts of a mixture's matrices are needed by rows whose expert shares are `weights`: in
// gate_up the tiles of chosen experts, which gate_experts reads, and in down the steps that read their
// outputs.
struct ChosenExperts {
  const float* weights = nullptr;  // [rows, experts + 1]
  int64_t rows = 0;
  ExpertColumns columns;
  int32_t gate_up_rows = 0;               // of weights: gates, then ups
  Slices down_slices;                     // of the columns of down as they lie
  const int32_t* down_columns = nullptr;  // MatrixView::columns of down
  int32_t* tiles = nullptr;               // [tiles of gate_up]
  int32_t* steps = nullptr;               // [steps of down]
  int32_t* counts = nullptr;              // [1 + kMaxSlices]
};
void list_chosen(StreamView stream, const ChosenExperts& arguments);

// How a gate and an up of an expert become one: silu(gate) * up, or clamped, with gate at most `limit` and up
// within it, gate * sigmoid(factor * gate) * (up + 1).
struct ExpertGate {
  const float* bias = nullptr;  // [2 * columns], of gates, then ups; may be null
  bool is_clamped = false;
  float factor = 1, limit = 0;
};

// out[m, i] = what gate_up[m, i] and gate_up[m, columns + i] become, times the weight of i's expert, rounded
// to `type`.
void gate_experts(StreamView stream, const float* gate_up, const ExpertGate& gate, const float* weights,
                  const ExpertColumns& columns, int64_t rows, WeightType type, void* out);

// residual[m, :] += factor * (sum over e of weights[m, e] * bias[e, :]), the chosen experts ascending.
// weights [rows, experts + 1], bias [experts, hidden]
void add_expert_biases(StreamView stream, const float* weights, const float* bias, int32_t experts,
                       int64_t rows, int64_t hidden, float factor, float* residual);

// x[i] *= factor; then, with a cap above 0, x[i] = cap * tanh(x[i] / cap).
void scale_and_cap(StreamView stream, float* x, int64_t count, float factor, float cap);

// Numbers [first, first + hidden) of the state in each row's slot = residual[m, :].
void keep_hidden_states(StreamView stream, const DeviceBatch& batch, const HiddenStateRows& hidden_states,
                        int64_t rows, int64_t hidden, const float* residual, int64_t first);

// Copies the KV of a block (copy-on-write) in a layer's memory.
void copy_kv_block(StreamView stream, const KvLayer& layer, int32_t from, int32_t to);

// Copies the KV of single tokens, one after the other, in all layers. layers: in device memory, of one type;
// widest: the most dimensions of all heads of a layer.
struct KvMoves {
  static constexpr int32_t kMost = 64;
  struct Move {
    int32_t from_block = 0, from_token = 0, to_block = 0, to_token = 0;
  };
  Move moves[kMost];
  int32_t count = 0;
};
void move_kv_slots(StreamView stream, KvType type, int64_t widest, const KvLayer* layers, int64_t layer_count,
                   const KvMoves& moves);

// Short convolutions (LFM2), for a layer that keeps one row of each token, as the key of its only head.
// `projected` has B, C and x of every row.
struct ShortConvArguments {
  const float* projected = nullptr;  // [rows, 3 * channels]
  int64_t rows = 0;
  int32_t channels = 0;
  const float* taps = nullptr;  // [count, channels], the oldest row's first
  int32_t count = 0;
  void* out = nullptr;  // [rows, channels] of `type`
  WeightType type = WeightType::kFloat32;
};
// Stores B * x of each row in the cache.
void store_conv_rows(StreamView stream, const DeviceBatch& batch, const KvLayer& layer,
                     const ShortConvArguments& arguments);
// out[m, c] = C[m, c] * sum over t of taps[t, c] * kept(position - count + 1 + t)[c], as short_convolution()
// of cpu_ops.h has it. All rows are stored.
void short_convolution(StreamView stream, const DeviceBatch& batch, const KvLayer& layer,
                       const ShortConvArguments& arguments);

}  // namespace outrider::cuda
