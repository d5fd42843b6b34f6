// Copies inside one layer's keys and values, and of states into the slots beside them.
#include "base/cuda_device.h"
#include "kernels/cuda/norm_row.h"
#include "kernels/cuda/row_slots.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads)
    copy_block_elements(const KvLayer layer, int32_t from, int32_t to) {
  const int64_t size = layer.block_elements();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= size) return;
  auto *keys = static_cast<T*>(layer.keys), *values = static_cast<T*>(layer.values);
  keys[to * size + i] = keys[from * size + i];
  if (layer.has_values()) values[to * size + i] = values[from * size + i];
}

// Grid: rows, elements.
template <class T>
__global__ void __launch_bounds__(kThreads)
    store_hidden_states(const DeviceBatch batch, const HiddenStateRows hidden_states, int64_t hidden,
                        const float* residual, int64_t first) {
  const int64_t m = blockIdx.x, i = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  constexpr auto kTokens = static_cast<int32_t>(kBlockTokens);
  const int32_t slot = slot_of(batch, m, load_of_others(batch.positions + m));
  const int32_t block = load_of_others(
      batch.tables + load_of_others(batch.row_table + m) * batch.table_stride + slot / kTokens);
  await_inputs();
  if (i < hidden)
    static_cast<T*>(hidden_states.data)[hidden_states.offset(block, slot % kTokens) + first + i] =
        rounded<T>(residual[m * hidden + i]);
}

// Grid: dimensions of all heads, layers. A thread moves one dimension of every token, so a later move finds
// what an earlier one wrote.
template <class T>
__global__ void __launch_bounds__(kThreads) move_tokens(const KvLayer* layers, const KvMoves all) {
  const KvLayer layer = layers[blockIdx.y];
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= layer.kv_heads * layer.head_dim) return;
  const int head = i / layer.head_dim, dim = i % layer.head_dim;
  auto *keys = static_cast<T*>(layer.keys), *values = static_cast<T*>(layer.values);
  for (int m = 0; m < all.count; ++m) {
    const KvMoves::Move& move = all.moves[m];
    keys[layer.key_offset(move.to_block, head, move.to_token, dim)] =
        keys[layer.key_offset(move.from_block, head, move.from_token, dim)];
    if (!layer.has_values()) continue;
    values[layer.value_offset(move.to_block, head, move.to_token, dim)] =
        values[layer.value_offset(move.from_block, head, move.from_token, dim)];
  }
}

}  // namespace

void move_kv_slots(StreamView stream, KvType type, int64_t widest, const KvLayer* layers, int64_t layer_count,
                   const KvMoves& moves) {
  if (widest == 0 || moves.count == 0) return;
  const LaunchShape launch_shape{.grid_x = static_cast<unsigned>((widest + kThreads - 1) / kThreads),
                                 .grid_y = static_cast<unsigned>(layer_count),
                                 .threads = kThreads};
  if (type == KvType::kBFloat16)
    launch(stream, launch_shape, &move_tokens<bf16>, layers, moves);
  else
    launch(stream, launch_shape, &move_tokens<float>, layers, moves);
}

void keep_hidden_states(StreamView stream, const DeviceBatch& batch, const HiddenStateRows& hidden_states,
                        int64_t rows, int64_t hidden, const float* residual, int64_t first) {
  if (rows == 0) return;
  const LaunchShape shape{.grid_x = static_cast<unsigned>(rows),
                          .grid_y = static_cast<unsigned>((hidden + kThreads - 1) / kThreads),
                          .threads = kThreads,
                          .early = true};
  if (hidden_states.type == KvType::kBFloat16)
    launch(stream, shape, &store_hidden_states<bf16>, batch, hidden_states, hidden, residual, first);
  else
    launch(stream, shape, &store_hidden_states<float>, batch, hidden_states, hidden, residual, first);
}

void copy_kv_block(StreamView stream, const KvLayer& layer, int32_t from, int32_t to) {
  const int64_t size = layer.block_elements();
  if (size == 0) return;
  const LaunchShape shape{.grid_x = static_cast<unsigned>((size + kThreads - 1) / kThreads),
                          .threads = kThreads};
  if (layer.type == KvType::kBFloat16)
    launch(stream, shape, &copy_block_elements<bf16>, layer, from, to);
  else
    launch(stream, shape, &copy_block_elements<float>, layer, from, to);
}

}  // namespace outrider::cuda
