// Latent attention, but for the attention itself: norms and rotations of what is cached, and the products of
// single heads.
#include "base/cuda_device.h"
#include "kernels/cuda/latent_ops.h"
#include "kernels/cuda/norm_row.h"
#include "kernels/cuda/row_slots.h"

namespace outrider::cuda {
namespace {

constexpr int kThreads = kNormThreads;

__device__ __forceinline__ bool is_finite(bf16 value) { return (value.bits & 0x7f80) != 0x7f80; }

// The pair i of a rotated part at `position`.
struct TurnedPair {
  float low, high;

  __device__ __forceinline__ TurnedPair(const LatentTurns& turns, int32_t position, const float* part,
                                        int i) {
    const float x = part[turns.interleaved ? 2 * i : i],
                y = part[turns.interleaved ? 2 * i + 1 : turns.pairs + i];
    const int64_t at = static_cast<int64_t>(position) * turns.pairs + i;
    const float cosine = turns.cosines[at], sine = turns.sines[at];
    low = x * cosine - y * sine;
    high = y * cosine + x * sine;
  }
};

template <class T>
__device__ __forceinline__ void norm_query_latent(const LatentArguments& a, int64_t m, float* sums) {
  const float* from = a.latents + m * a.stride;
  const NormWeights weights(a.q_norm, a.q_rank);
  norm_row(
      a.q_rank, a.epsilon, weights, sums, static_cast<T*>(a.q_latent) + m * a.q_rank,
      [&](int64_t i) { return from[i]; }, [](int64_t, float) {});
}

template <class T>
__device__ __forceinline__ void store_latent(const DeviceBatch& batch, const KvLayer& layer,
                                             const LatentArguments& a, int64_t m, float* sums) {
  const int latent_dim = layer.latent_dim, thread = static_cast<int>(threadIdx.x);
  const float* latent = a.latents + m * a.stride + a.kv_begin;
  const float* part = latent + latent_dim;
  constexpr auto kTokens = static_cast<int32_t>(kBlockTokens);
  const int32_t position = batch.positions[m], slot = slot_of(batch, m, position), token = slot % kTokens;
  const int32_t block = batch.tables[batch.row_table[m] * batch.table_stride + slot / kTokens];
  const auto value = [&](int64_t i) { return latent[i]; };
  float held[kNormHeld];
  hold(latent_dim, held, value);
  const float scale = norm_scale(latent_dim, a.epsilon, sums, held, value);
  const auto normed = [&](int i) { return latent[i] * scale * a.kv_norm[i]; };
  bool is_lost = false;
  if (sizeof(T) == sizeof(bf16)) {
    float lost = 0;
    for (int i = thread; i < latent_dim; i += kThreads)
      if (!is_finite(to_bf16(normed(i)))) lost = 1;
    for (int i = thread; i < 2 * a.turns.pairs; i += kThreads)
      if (!is_finite(to_bf16(part[i]))) lost = 1;
    is_lost = sum_of_block(lost, sums + kNormWarps) != 0;
  }
  const auto store = [&](int i, float number) {
    static_cast<T*>(layer.keys)[layer.key_offset(block, 0, token, i)] = rounded<T>(number);
  };
  for (int i = thread; i < latent_dim; i += kThreads) store(i, is_lost ? 0.0f : normed(i));
  for (int i = thread; i < a.turns.pairs; i += kThreads) {
    const TurnedPair pair(a.turns, position, part, i);
    store(latent_dim + i, is_lost ? NAN : pair.low);
    store(latent_dim + a.turns.pairs + i, is_lost ? NAN : pair.high);
  }
}

// Grid: rows, then what is cached and, where there is one, the latent of queries. T: of the cache, A: of
// activations.
template <class T, class A>
__global__ void __launch_bounds__(kThreads)
    store_latent_rows(const DeviceBatch batch, const KvLayer layer, const LatentArguments a) {
  await_inputs();
  auto* sums = shared_memory<float>();
  if (blockIdx.y == 0)
    store_latent<T>(batch, layer, a, blockIdx.x, sums);
  else
    norm_query_latent<A>(a, blockIdx.x, sums);
}

__global__ void __launch_bounds__(kThreads) turn_query_parts(const DeviceBatch batch, const QueryTurns a) {
  await_inputs();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= a.rows * a.heads * a.turns.pairs) return;
  const int i = static_cast<int>(at % a.turns.pairs);
  const int64_t head = at / a.turns.pairs % a.heads, m = at / a.turns.pairs / a.heads;
  const TurnedPair pair(a.turns, batch.positions[m], a.q + m * a.stride + head * a.each + a.from, i);
  float* to = a.queries + (m * a.heads + head) * a.to_each + a.to;
  to[i] = pair.low;
  to[a.turns.pairs + i] = pair.high;
}

constexpr int kHeadWarps = 4;
constexpr int kHeadThreads = kHeadWarps * static_cast<int>(kWarp);
constexpr int kHeldSteps = 8;  // of weights, fetched before the inputs are there

__device__ __forceinline__ uint32_t pair_of(const bf16* x) { return *reinterpret_cast<const uint32_t*>(x); }
__device__ __forceinline__ uint32_t pair_of(const float* x) {
  return to_bf16(x[0]).bits | static_cast<uint32_t>(to_bf16(x[1]).bits) << 16;
}

// Grid: row tiles of a head, heads, tokens. A warp has one row tile, for kColumns tiles of 8 tokens. X: of
// inputs, O: of outputs.
template <class X, class O, int kColumns>
__global__ void __launch_bounds__(kHeadThreads)
    multiply_head_tiles(const HeadProduct p, const MatrixView weight) {
  const int lane = static_cast<int>(threadIdx.x % kWarp), head = static_cast<int>(blockIdx.y);
  const int tiles = static_cast<int>(head_rows(p.n)) / kTileRows;
  const int tile = static_cast<int>(blockIdx.x) * kHeadWarps + static_cast<int>(threadIdx.x / kWarp);
  const int first_token = static_cast<int>(blockIdx.z) * kColumns * 8, steps = weight.slices.steps();
  const bool exists = tile < tiles;
  const uint4* words = static_cast<const uint4*>(weight.data) +
                       (static_cast<int64_t>(head) * tiles + tile) * steps * static_cast<int64_t>(kWarp) +
                       lane;
  uint4 held[kHeldSteps] = {};
  OUTRIDER_UNROLL
  for (int j = 0; j < kHeldSteps; ++j)
    if (exists && j < steps) held[j] = words[j * static_cast<int>(kWarp)];
  await_inputs();
  if (!exists) return;
  float sums[kColumns][4] = {};
  const auto add = [&](int step, const uint4& word) {
    const uint32_t a[4] = {word.x, word.y, word.z, word.w};
    const int own = step * kStep + lane % 4 * 4, left = weight.slices.k() - own;  // as PairWeights has them
    OUTRIDER_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      const int token = first_token + c * 8 + lane / 4;
      const X* x = static_cast<const X*>(p.x) + token * p.x_stride + head * p.x_each + own;
      const bool inside = token < p.rows;
      const uint32_t b[2] = {inside && left > 0 ? pair_of(x) : 0u, inside && left > 2 ? pair_of(x + 2) : 0u};
      mma_16x8x16(sums[c], a, b);
    }
  };
  OUTRIDER_UNROLL
  for (int j = 0; j < kHeldSteps; ++j)
    if (j < steps) add(j, held[j]);
  OUTRIDER_UNROLL_BY(4)
  for (int step = kHeldSteps; step < steps; ++step) add(step, words[step * static_cast<int>(kWarp)]);
  OUTRIDER_UNROLL
  for (int c = 0; c < kColumns; ++c) OUTRIDER_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int token = first_token + c * 8 + lane % 4 * 2 + i % 2;
    const int row = tile * kTileRows + lane / 4 + (i >= 2 ? 8 : 0);
    if (token < p.rows && row < p.n)
      static_cast<O*>(p.out)[token * p.out_stride + head * p.out_each + row] = rounded<O>(sums[c][i]);
  }
}

// Grid: rows of a head, heads, tokens.
__global__ void __launch_bounds__(kHeadThreads)
    multiply_head_floats(const HeadProduct p, const MatrixView weight) {
  await_inputs();
  const int row = static_cast<int>(blockIdx.x * kHeadThreads + threadIdx.x);
  const int64_t head = blockIdx.y, m = blockIdx.z;
  if (row >= p.n) return;
  const float* x = static_cast<const float*>(p.x) + m * p.x_stride + head * p.x_each;
  const float* w = static_cast<const float*>(weight.data) + head * head_rows(p.n) + row;
  float sum = 0;
  for (int k = 0; k < weight.slices.k(); ++k)
    sum = fmaf(w[static_cast<int64_t>(k) * weight.padded_n], x[k], sum);
  static_cast<float*>(p.out)[m * p.out_stride + head * p.out_each + row] = sum;
}

template <class X, class O, int kColumns>
void launch_heads(StreamView stream, const HeadProduct& p, const MatrixView& weight) {
  const int64_t tiles = head_rows(p.n) / kTileRows;
  launch(stream,
         {.grid_x = static_cast<unsigned>((tiles + kHeadWarps - 1) / kHeadWarps),
          .grid_y = static_cast<unsigned>(p.heads),
          .grid_z = static_cast<unsigned>((p.rows + kColumns * 8 - 1) / (kColumns * 8)),
          .threads = kHeadThreads,
          .early = true},
         &multiply_head_tiles<X, O, kColumns>, p, weight);
}

}  // namespace

void store_latents(StreamView stream, const DeviceBatch& batch, const KvLayer& layer,
                   const LatentArguments& arguments) {
  if (arguments.rows == 0 || layer.kv_heads == 0) return;
  CHECK(layer.kv_heads == 1 && layer.latent_dim + 2 * arguments.turns.pairs == layer.head_dim,
        "{} KV heads of {} with a latent of {} and {} pairs", layer.kv_heads, layer.head_dim,
        layer.latent_dim, arguments.turns.pairs);
  const LaunchShape shape{.grid_x = static_cast<unsigned>(arguments.rows),
                          .grid_y = arguments.q_rank > 0 ? 2u : 1u,
                          .threads = kThreads,
                          .shared_bytes = 2 * kNormWarps * sizeof(float),
                          .early = true};
  const bool is_bf16_kv = layer.type == KvType::kBFloat16, is_bf16 = arguments.type == WeightType::kBFloat16;
  launch(stream, shape,
         is_bf16_kv ? is_bf16 ? &store_latent_rows<bf16, bf16> : &store_latent_rows<bf16, float>
         : is_bf16 ? &store_latent_rows<float, bf16>
                    : &store_latent_rows<float, float>,
         batch, layer, arguments);
}

void turn_queries(StreamView stream, const DeviceBatch& batch, const QueryTurns& arguments) {
  const int64_t count = arguments.rows * arguments.heads * arguments.turns.pairs;
  if (count == 0) return;
  launch(stream,
         {.grid_x = static_cast<unsigned>((count + kThreads - 1) / kThreads),
          .threads = kThreads,
          .early = true},
         &turn_query_parts, batch, arguments);
}

void multiply_heads(StreamView stream, const HeadProduct& p, const MatrixView& weight) {
  if (p.rows == 0 || p.heads == 0) return;
  CHECK(weight.n == p.heads * head_rows(p.n) && weight.slices.count == 1,
        "{} rows in {} slices, {} heads of {}", weight.n, weight.slices.count, p.heads, p.n);
  if (weight.type == WeightType::kFloat32) {
    launch(stream,
           {.grid_x = static_cast<unsigned>((p.n + kHeadThreads - 1) / kHeadThreads),
            .grid_y = static_cast<unsigned>(p.heads),
            .grid_z = static_cast<unsigned>(p.rows),
            .threads = kHeadThreads,
            .early = true},
           &multiply_head_floats, p, weight);
    return;
  }
  CHECK(weight.type == WeightType::kBFloat16 && weight.slices.k() % 2 == 0 && p.x_stride % 2 == 0 &&
            p.x_each % 2 == 0,
        "{} columns at a stride of {}, heads {} apart", weight.slices.k(), p.x_stride, p.x_each);
  constexpr int kFew = 2, kMany = 4;
  const bool is_few = p.rows <= kFewRows;
  if (p.is_x_float && is_few)
    launch_heads<float, float, kFew>(stream, p, weight);
  else if (p.is_x_float)
    launch_heads<float, float, kMany>(stream, p, weight);
  else if (is_few)
    launch_heads<bf16, bf16, kFew>(stream, p, weight);
  else
    launch_heads<bf16, bf16, kMany>(stream, p, weight);
}

}  // namespace outrider::cuda
