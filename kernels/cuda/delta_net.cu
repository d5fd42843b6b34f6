// Gated delta nets. A block has 32 columns of the state of one value head, in registers, from the first token
// of a pass to the last: four threads share a column, each with every fourth group of four keys. A few tokens
// at a time are brought into the form that states take (prepare), a warp taking the query, the key or the
// values of one token, and then update the columns one after the other without a barrier.
#include <algorithm>
#include <bit>

#include "base/cuda_device.h"
#include "kernels/cuda/delta_ops.h"
#include "kernels/cuda/norm_row.h"
#include "kernels/cuda/row_slots.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / static_cast<int>(kWarp);
constexpr int kColumns = 32;                  // of a block
constexpr int kParts = kThreads / kColumns;   // threads of a column
constexpr auto kTokens = static_cast<int32_t>(kBlockTokens);

__device__ __forceinline__ float as_float(float value) { return value; }
__device__ __forceinline__ float as_float(bf16 value) { return to_float(value); }
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }

// Four neighbouring numbers, read and written at once.
struct alignas(16) Four {
  float x, y, z, w;
};

// Keys of a thread, for keys of up to key_dim dimensions.
constexpr int keys_of_thread(int64_t key_dim) {
  for (int keys = 16; keys < kMostDeltaKeyDim / kParts; keys *= 2)
    if (key_dim <= int64_t{keys} * kParts) return keys;
  return kMostDeltaKeyDim / kParts;
}

// Shared memory of a block.
template <int kKeys>
struct Room {
  static constexpr int kDims = kKeys * kParts;         // of a key, padded with zeros
  static constexpr int kSteps = kKeys <= 32 ? 8 : 4;   // tokens that are prepared together
  alignas(16) float q[kSteps][kDims];
  alignas(16) float k[kSteps][kDims];
  Four base[kKeys / 4][kThreads];  // the state that branches of a tree begin with
  float v[kSteps][kColumns];
  float decay[kSteps], beta[kSteps];
  DeltaStep steps[kSteps];
  int32_t count;
};

__device__ __forceinline__ DeltaSequence sequence_at(const DeltaSequence* from) {
  const auto* const ints = reinterpret_cast<const int32_t*>(from);
  return {.place = load_of_others(ints),
          .held = load_of_others(ints + 1),
          .hold = load_of_others(ints + 2),
          .first_row = load_of_others(ints + 3),
          .rows = load_of_others(ints + 4),
          .chain_rows = load_of_others(ints + 5),
          .chain_end = load_of_others(ints + 6),
          .tree_begin = load_of_others(ints + 7)};
}

// The rows that a layer keeps of the tokens on a path.
template <class T>
struct KeptRows {
  const KvLayer& layer;
  const int32_t* table;
  RowSlots slots;

  struct Place {
    int64_t block = 0;
    int32_t token = 0;
  };
  __device__ __forceinline__ Place place(int32_t position) const {
    const int32_t slot =
        position < slots.tail_begin ? position : load_of_others(slots.tail + (position - slots.tail_begin));
    return {load_of_others(table + slot / kTokens), slot % kTokens};
  }
  __device__ __forceinline__ float at(const Place& place, int32_t channel) const {
    return as_float(static_cast<const T*>(
        layer.keys)[layer.key_offset(place.block, 0, place.token, channel)]);
  }
  // sums[j] = convolution of channel first + lane + 32 * j, for channels below `end`.
  template <int kCount>
  __device__ __forceinline__ void convolve(const DeltaNetArguments& a, int32_t position, int32_t first,
                                           int32_t end, float (&sums)[kCount]) const {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    OUTRIDER_UNROLL
    for (int j = 0; j < kCount; ++j) sums[j] = 0;
    OUTRIDER_UNROLL_BY(4)
    for (int32_t tap = 0; tap < a.taps; ++tap) {
      const int32_t from = position - (a.taps - 1) + tap;
      if (from < 0) continue;
      const Place row = place(from);
      OUTRIDER_UNROLL
      for (int j = 0; j < kCount; ++j) {
        const int32_t channel = first + lane + j * static_cast<int32_t>(kWarp);
        if (channel < end)
          sums[j] = fmaf(a.conv[int64_t{tap} * a.channels() + channel], at(row, channel), sums[j]);
      }
    }
  }
};

// Query or key of one token, of length 1 but for `factor`, by one warp.
template <class T, int kDims>
__device__ __forceinline__ void prepare_key(const KeptRows<T>& kept, const DeltaNetArguments& a,
                                            int32_t position, int32_t first, float factor,
                                            float (&to)[kDims]) {
  constexpr int kCount = kDims / static_cast<int>(kWarp);
  constexpr float kEpsilon = 1e-6f;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  float sums[kCount], squares = 0;
  kept.convolve(a, position, first, first + a.key_dim, sums);
  OUTRIDER_UNROLL
  for (int j = 0; j < kCount; ++j) {
    sums[j] = silu(sums[j]);
    squares = fmaf(sums[j], sums[j], squares);
  }
  const float by = 1.0f / sqrtf(sum_of_warp(squares) + kEpsilon);
  OUTRIDER_UNROLL
  for (int j = 0; j < kCount; ++j) to[lane + j * static_cast<int>(kWarp)] = sums[j] * by * factor;
}

// Values of one token in the block's columns, its decay and its beta, by one warp.
template <class T, class OfBlock>
__device__ __forceinline__ void prepare_values(const KeptRows<T>& kept, const DeltaNetArguments& a,
                                               int32_t position, int32_t head, int32_t column, int step,
                                               OfBlock& room) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int32_t first = 2 * a.key_heads * a.key_dim + head * a.value_dim;
  float sum[1];
  kept.convolve(a, position, first + column, first + a.value_dim, sum);
  room.v[step][lane] = silu(sum[0]);
  if (lane != 0) return;
  const auto own = kept.place(position);
  const float b = kept.at(own, a.channels() + head),
              x = kept.at(own, a.channels() + a.value_heads + head) + a.dt_bias[head];
  const float softplus = x > 20 ? x : log1pf(expf(x));
  room.beta[step] = sigmoid(b);
  room.decay[step] = expf(a.rate[head] * softplus);
}

// A thread's part of a column: keys 4 * (kParts * i + part) and the three behind, for i < kKeys / 4.
template <int kKeys>
struct StatePart {
  float numbers[kKeys];

  __device__ __forceinline__ void clear() {
    OUTRIDER_UNROLL
    for (float& number : numbers) number = 0;
  }
  __device__ __forceinline__ void set(int i, const Four& four) {
    numbers[4 * i] = four.x;
    numbers[4 * i + 1] = four.y;
    numbers[4 * i + 2] = four.z;
    numbers[4 * i + 3] = four.w;
  }
  __device__ __forceinline__ Four get(int i) const {
    return {numbers[4 * i], numbers[4 * i + 1], numbers[4 * i + 2], numbers[4 * i + 3]};
  }
  // From where an earlier pass may have left it, while its multiprocessor's cache had what was there before.
  __device__ __forceinline__ void read(const float* tile) {
    OUTRIDER_UNROLL
    for (int i = 0; i < kKeys / 4; ++i)
      set(i, std::bit_cast<Four>(load_of_others(static_cast<const void*>(
                 reinterpret_cast<const Four*>(tile) + i * kThreads + static_cast<int>(threadIdx.x)))));
  }
  __device__ __forceinline__ void write(float* tile) const {
    OUTRIDER_UNROLL
    for (int i = 0; i < kKeys / 4; ++i)
      reinterpret_cast<Four*>(tile)[i * kThreads + static_cast<int>(threadIdx.x)] = get(i);
  }
};

__device__ __forceinline__ float sum_of_column(float value) {
  OUTRIDER_UNROLL
  for (int lanes = 1; lanes < kParts; lanes *= 2) value = value + shuffle_xor(value, lanes);
  return value;
}

__device__ __forceinline__ float sum_of(const Four& four) { return (four.x + four.y) + (four.z + four.w); }

__device__ __forceinline__ void add_products(Four& sum, const Four& a, const Four& b) {
  sum = {fmaf(a.x, b.x, sum.x), fmaf(a.y, b.y, sum.y), fmaf(a.z, b.z, sum.z), fmaf(a.w, b.w, sum.w)};
}

// decay * S, then + k (beta (v - S^T k))^T. Returns the column's S^T q, if it is wanted.
template <int kKeys>
__device__ __forceinline__ float update(StatePart<kKeys>& state, const float* key, const float* query, float v,
                                        float decay, float beta, bool wants_output) {
  const int part = static_cast<int>(threadIdx.x) % kParts;
  const auto keys = [&](int i) { return reinterpret_cast<const Four*>(key)[i * kParts + part]; };
  Four sum = {};
  OUTRIDER_UNROLL
  for (float& number : state.numbers) number = number * decay;
  OUTRIDER_UNROLL
  for (int i = 0; i < kKeys / 4; ++i) add_products(sum, state.get(i), keys(i));
  const float change = (v - sum_of_column(sum_of(sum))) * beta;
  OUTRIDER_UNROLL
  for (int i = 0; i < kKeys / 4; ++i) {
    Four four = state.get(i);
    add_products(four, keys(i), {change, change, change, change});
    state.set(i, four);
  }
  if (!wants_output) return 0;
  sum = {};
  OUTRIDER_UNROLL
  for (int i = 0; i < kKeys / 4; ++i)
    add_products(sum, state.get(i), reinterpret_cast<const Four*>(query)[i * kParts + part]);
  return sum_of_column(sum_of(sum));
}

// One thread's view of a pass through a block's columns.
template <int kKeys, class T>
struct DeltaBlock {
  const DeviceBatch& batch;
  const KvLayer& layer;
  const DeltaNetArguments& a;
  Room<kKeys>& room;
  int32_t head, column;  // the block's first column

  __device__ __forceinline__ KeptRows<T> kept_on(const DeltaStep& step, int32_t sequence) const {
    return {layer, batch.tables + sequence * batch.table_stride,
            step.path < 0 ? RowSlots{} : slots_of(batch, step.path)};
  }

  // The next steps in shared memory; by one thread.
  __device__ __forceinline__ void plan(DeltaWalk& walk) const {
    const auto position_of = [&](int32_t row) { return load_of_others(batch.positions + row); };
    const auto follows = [&](int32_t row) {
      const RowSlots own = slots_of(batch, row), before = slots_of(batch, row - 1);
      const int32_t parent = position_of(row) - 1;
      return position_of(row - 1) == parent &&
             load_of_others(own.tail + (parent - own.tail_begin)) ==
                 load_of_others(before.tail + (parent - before.tail_begin));
    };
    int32_t count = 0;
    while (count < Room<kKeys>::kSteps && walk.next(room.steps[count], position_of, follows)) ++count;
    room.count = count;
  }

  __device__ __forceinline__ void prepare(int32_t sequence) const {
    const float query_factor = 1.0f / sqrtf(static_cast<float>(a.key_dim));
    const int32_t key_head = a.keys[head];
    for (int job = static_cast<int>(threadIdx.x / kWarp); job < 3 * room.count; job += kWarps) {
      const int j = job / 3, kind = job % 3;
      const DeltaStep step = room.steps[j];
      const KeptRows<T> kept = kept_on(step, sequence);
      if (kind == 2)
        prepare_values(kept, a, step.position, head, column, j, room);
      else if (kind == 1)
        prepare_key(kept, a, step.position, (a.key_heads + key_head) * a.key_dim, 1.0f, room.k[j]);
      else
        prepare_key(kept, a, step.position, key_head * a.key_dim, query_factor, room.q[j]);
    }
  }

  __device__ __forceinline__ void take(StatePart<kKeys>& state, float* kept_state) const {
    const int own = static_cast<int>(threadIdx.x) / kParts, part = static_cast<int>(threadIdx.x) % kParts;
    auto* const base = reinterpret_cast<float*>(room.base);
    for (int32_t j = 0; j < room.count; ++j) {
      const DeltaStep& step = room.steps[j];
      if (step.saves) state.write(base);
      if (step.restarts) {
        OUTRIDER_UNROLL
        for (int i = 0; i < kKeys / 4; ++i) state.set(i, room.base[i][threadIdx.x]);
      }
      const float out = update(state, room.k[j], room.q[j], room.v[j][own], room.decay[j], room.beta[j],
                               step.out_row >= 0);
      if (step.out_row >= 0 && part == 0 && column + own < a.value_dim)
        a.projected[step.out_row * a.stride + head * a.value_dim + column + own] = out;
      if (step.commits) state.write(kept_state);
    }
  }
};

// Grid: columns of every value head in tiles of kColumns, sequences in turns.
template <int kKeys, class T>
__global__ void __launch_bounds__(kThreads)
    update_states(const DeviceBatch batch, const KvLayer layer, const DeltaNetArguments a) {
  const int32_t tiles = (a.value_dim + kColumns - 1) / kColumns, tile = static_cast<int32_t>(blockIdx.x);
  const DeltaBlock<kKeys, T> block{batch,
                                   layer,
                                   a,
                                   *shared_memory<Room<kKeys>>(),
                                   tile / tiles,
                                   tile % tiles * kColumns};
  bool waits = true;
  for (auto i = static_cast<int32_t>(blockIdx.y); i < a.rows; i += static_cast<int32_t>(gridDim.y)) {
    const DeltaSequence sequence = sequence_at(batch.sequences + i);
    if (sequence.rows == 0) break;
    float* const kept_state =
        a.states + sequence.place * a.state_stride + int64_t{tile} * (kColumns * kParts * kKeys);
    StatePart<kKeys> state;
    if (sequence.place >= 0 && sequence.held > 0)
      state.read(kept_state);
    else
      state.clear();
    if (waits) await_inputs();
    waits = false;
    DeltaWalk walk(sequence);
    do {
      sync_block();  // what the steps before have read is free
      if (threadIdx.x == 0) block.plan(walk);
      sync_block();
      block.prepare(i);
      sync_block();
      block.take(state, kept_state);
    } while (block.room.count == Room<kKeys>::kSteps);
  }
  if (waits) await_inputs();
}

// Grid: rows, channels.
template <class T>
__global__ void __launch_bounds__(kThreads)
    store_rows(const DeviceBatch batch, const KvLayer layer, const DeltaNetArguments a) {
  const int64_t m = blockIdx.x;
  const int c = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  const int32_t slot = slot_of(batch, m, load_of_others(batch.positions + m));
  const int32_t block = load_of_others(
      batch.tables + load_of_others(batch.row_table + m) * batch.table_stride + slot / kTokens);
  await_inputs();
  if (c >= a.kept()) return;
  static_cast<T*>(layer.keys)[layer.key_offset(block, 0, slot % kTokens, c)] =
      rounded<T>(a.projected[m * a.stride + c]);
}

// A warp has one head of one row.
template <class T>
__global__ void __launch_bounds__(kThreads) gate_outputs(const DeltaNetArguments a) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const bool exists = unit < a.rows * a.value_heads;
  const int64_t m = exists ? unit / a.value_heads : 0, head = exists ? unit % a.value_heads : 0;
  await_inputs();
  if (!exists) return;
  const float* const o = a.projected + m * a.stride + head * a.value_dim;
  const float* const gate = o + a.kept();
  T* const to = static_cast<T*>(a.out) + (m * a.value_heads + head) * a.value_dim;
  float squares = 0;
  for (int c = lane; c < a.value_dim; c += static_cast<int>(kWarp)) squares = fmaf(o[c], o[c], squares);
  const float by =
      1.0f / sqrtf(sum_of_warp(squares) / static_cast<float>(a.value_dim) + a.epsilon);
  for (int c = lane; c < a.value_dim; c += static_cast<int>(kWarp))
    to[c] = rounded<T>(a.norm[c] * (o[c] * by) * silu(gate[c]));
}

int64_t tiles_of(const DeltaNetArguments& a) {
  return int64_t{a.value_heads} * ((a.value_dim + kColumns - 1) / kColumns);
}

void check(const KvLayer& layer, const DeltaNetArguments& a) {
  CHECK(layer.kv_heads == 1 && layer.head_dim == a.kept() && !layer.has_values(),
        "a layer of {} heads of {} for rows of {}", layer.kv_heads, layer.head_dim, a.kept());
}

template <int kKeys>
void launch_updates(StreamView stream, const DeviceBatch& batch, const KvLayer& layer,
                    const DeltaNetArguments& a) {
  // Two blocks for each multiprocessor keep it busy; further sequences take turns.
  const int64_t turns = std::max<int64_t>(1, (2 * a.multiprocessors + tiles_of(a) - 1) / tiles_of(a));
  const LaunchShape shape{.grid_x = static_cast<unsigned>(tiles_of(a)),
                          .grid_y = static_cast<unsigned>(std::min(a.rows, turns)),
                          .threads = kThreads,
                          .shared_bytes = sizeof(Room<kKeys>),
                          .early = true};
  const bool is_bf16 = layer.type == KvType::kBFloat16;
  launch(stream, shape, is_bf16 ? &update_states<kKeys, bf16> : &update_states<kKeys, float>, batch, layer, a);
}

template <int kKeys>
void allow_shared_bytes_of() {
  if (sizeof(Room<kKeys>) <= 48 * 1024) return;
  allow_shared_bytes(&update_states<kKeys, bf16>, sizeof(Room<kKeys>));
  allow_shared_bytes(&update_states<kKeys, float>, sizeof(Room<kKeys>));
}

}  // namespace

int64_t delta_state_floats(int64_t value_heads, int64_t key_dim, int64_t value_dim) {
  return value_heads * ((value_dim + kColumns - 1) / kColumns) * kColumns * kParts * keys_of_thread(key_dim);
}

void prepare_delta_nets() {
  allow_shared_bytes_of<32>();
  allow_shared_bytes_of<64>();
}

void store_delta_rows(StreamView stream, const DeviceBatch& batch, const KvLayer& layer,
                      const DeltaNetArguments& arguments) {
  if (arguments.rows == 0 || arguments.value_heads == 0) return;
  check(layer, arguments);
  const LaunchShape shape{.grid_x = static_cast<unsigned>(arguments.rows),
                          .grid_y = static_cast<unsigned>((arguments.kept() + kThreads - 1) / kThreads),
                          .threads = kThreads,
                          .early = true};
  const bool is_bf16 = layer.type == KvType::kBFloat16;
  launch(stream, shape, is_bf16 ? &store_rows<bf16> : &store_rows<float>, batch, layer, arguments);
}

void update_delta_states(StreamView stream, const DeviceBatch& batch, const KvLayer& layer,
                         const DeltaNetArguments& arguments) {
  if (arguments.rows == 0 || arguments.value_heads == 0) return;
  check(layer, arguments);
  switch (keys_of_thread(arguments.key_dim)) {
    case 16:
      return launch_updates<16>(stream, batch, layer, arguments);
    case 32:
      return launch_updates<32>(stream, batch, layer, arguments);
    default:
      return launch_updates<64>(stream, batch, layer, arguments);
  }
}

void gate_delta_outputs(StreamView stream, const DeltaNetArguments& arguments) {
  const int64_t units = arguments.rows * arguments.value_heads;
  if (units == 0) return;
  const LaunchShape shape{
      .grid_x = static_cast<unsigned>((units + kWarps - 1) / kWarps), .threads = kThreads, .early = true};
  const bool is_bf16 = arguments.type == WeightType::kBFloat16;
  launch(stream, shape, is_bf16 ? &gate_outputs<bf16> : &gate_outputs<float>, arguments);
}

}  // namespace outrider::cuda
