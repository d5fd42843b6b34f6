// Skinny matrix products on the device. bf16: tensor cores with the weights as the 16-row operand and tokens
// as columns, so that 1 and 16 tokens cost the same instructions; a column of an instruction depends on its
// own token only, and so the number of tokens changes no bit. fp32: one output per thread, for exact
// fixtures.
#include "base/cuda_device.h"
#include "transformer/ops/cuda_ops.h"

namespace outrider::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * static_cast<int>(kWarp);
constexpr int kTileBytes = kTileElements * 2;
// Distance between columns of a partial result in shared memory: lanes of a warp hit 32 banks.
constexpr int kPartialStride = 20;

// Per number of column tiles (of 8 tokens) in one pass over the weights.
template <int kColumns>
struct MmaShape {
  // Weight tiles in flight for each warp. 11 x 512 B x 8 warps keep 45 KB on their way per block, above the
  // 26 KB per multiprocessor that 4.8 TB/s and 0.7 us of latency ask for; wide passes are for prompts.
  static constexpr int kStages = kColumns <= 2 ? 12 : 6;
  static constexpr int kPartialFloats = kWarps * kColumns * 8 * kPartialStride;
  static constexpr size_t kSharedBytes =
      static_cast<size_t>(kWarps) * kStages * kTileBytes + kPartialFloats * sizeof(float);
};

struct MmaArguments {
  const uint4* weights = nullptr;  // tiles, see tiled_offset
  Slices slices;
  int32_t n = 0;
  int32_t tiles = 0;  // of 16 rows
  const bf16* x = nullptr;
  int64_t x_stride = 0;
  int32_t rows = 0;  // tokens
  float* out = nullptr;
  int64_t out_stride = 0;
};

// Two neighbouring activations, or zeros outside the slice and beyond the last token.
__device__ __forceinline__ uint32_t load_pair(const bf16* x, bool inside) {
  return inside ? *reinterpret_cast<const uint32_t*>(x) : 0u;
}

// Operand b of one step for every column tile.
template <int kColumns>
__device__ __forceinline__ void load_tokens(const MmaArguments& a, int first_token, int slice, int step,
                                            uint32_t (&b)[kColumns][2]) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int end = a.slices.begin[slice + 1];
  const int column = a.slices.begin[slice] + step * kStep + lane % 4 * 2;
  OUTRIDER_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    const int token = first_token + c * 8 + lane / 4;
    const bf16* x = a.x + token * a.x_stride + column;
    b[c][0] = load_pair(x, token < a.rows && column < end);
    b[c][1] = load_pair(x + 8, token < a.rows && column + 8 < end);
  }
}

// A block's eight warps take the slices of 8 / slices row tiles; blocks stride over the tiles. Each lane
// copies and reads its own 16 bytes of every tile, so the ring of copies needs no barrier.
template <int kColumns>
__global__ void __launch_bounds__(kThreads) matmul_mma(const MmaArguments a) {
  constexpr int kStages = MmaShape<kColumns>::kStages;
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  uint4* ring = shared_memory<uint4>() + warp * kStages * static_cast<int>(kWarp) + lane;
  float* partials =
      reinterpret_cast<float*>(shared_memory<uint4>() + kWarps * kStages * static_cast<int>(kWarp));

  const int slice = warp % a.slices.count;
  const int tiles_per_block = kWarps / a.slices.count;
  const int stride = static_cast<int>(gridDim.x) * tiles_per_block;
  const int steps = a.slices.first_step[slice + 1] - a.slices.first_step[slice];
  const int first_token = static_cast<int>(blockIdx.y) * kColumns * 8;
  const int first_tile = static_cast<int>(blockIdx.x) * tiles_per_block;

  // The tile and step that is fetched next, kStages - 1 ahead of the one that is multiplied.
  int fetch_tile = first_tile + warp / a.slices.count, fetch_step = 0;
  const uint4* slice_weights = a.weights + static_cast<int64_t>(a.slices.first_step[slice]) * kWarp + lane;
  const auto fetch = [&](int stage) {
    if (fetch_tile < a.tiles && steps > 0) {
      const int64_t tile = static_cast<int64_t>(fetch_tile) * a.slices.steps() + fetch_step;
      copy_async_16(ring + stage * static_cast<int>(kWarp), slice_weights + tile * kWarp);
      if (++fetch_step == steps) {
        fetch_step = 0;
        fetch_tile += stride;
      }
    }
    copy_async_commit();
  };
  OUTRIDER_UNROLL
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(stage);

  uint32_t b[kColumns][2], next_b[kColumns][2] = {};
  if (steps > 0) load_tokens<kColumns>(a, first_token, slice, 0, next_b);
  int stage = 0;
  for (int base = first_tile; base < a.tiles; base += stride) {
    float sum[kColumns][4] = {};
    const bool has_tile = base + warp / a.slices.count < a.tiles;
    for (int step = 0; has_tile && step < steps; ++step) {
      OUTRIDER_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        b[c][0] = next_b[c][0];
        b[c][1] = next_b[c][1];
      }
      load_tokens<kColumns>(a, first_token, slice, step + 1 == steps ? 0 : step + 1, next_b);
      copy_async_wait<kStages - 2>();
      const uint4 words = ring[stage * static_cast<int>(kWarp)];
      const uint32_t tile[4] = {words.x, words.y, words.z, words.w};
      OUTRIDER_UNROLL
      for (int c = 0; c < kColumns; ++c) mma_16x8x16(sum[c], tile, b[c]);
      fetch(stage == 0 ? kStages - 1 : stage - 1);  // the stage that was read before this one
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    OUTRIDER_UNROLL
    for (int c = 0; c < kColumns; ++c) OUTRIDER_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int column = c * 8 + lane % 4 * 2 + i % 2, row = lane / 4 + (i >= 2 ? 8 : 0);
      partials[(warp * kColumns * 8 + column) * kPartialStride + row] = sum[c][i];
    }
    sync_block();
    for (int o = static_cast<int>(threadIdx.x); o < tiles_per_block * kColumns * 8 * kTileRows;
         o += kThreads) {
      const int row = o % kTileRows, column = o / kTileRows % (kColumns * 8);
      const int tile = o / (kTileRows * kColumns * 8);
      const int n = (base + tile) * kTileRows + row, token = first_token + column;
      if (n >= a.n || token >= a.rows) continue;
      float values[kMaxSlices];
      OUTRIDER_UNROLL
      for (int s = 0; s < kMaxSlices; ++s)
        values[s] =
            s < a.slices.count
                ? partials[((tile * a.slices.count + s) * kColumns * 8 + column) * kPartialStride + row]
                : 0.0f;
      a.out[token * a.out_stride + n] = tree_sum(values, a.slices.count);
    }
    sync_block();
  }
  copy_async_wait<0>();
}

template <int kColumns>
void launch_mma(StreamView stream, const MatmulShape& shape, const MmaArguments& arguments) {
  const int tiles_per_block = kWarps / arguments.slices.count;
  const auto blocks = static_cast<unsigned>((arguments.tiles + tiles_per_block - 1) / tiles_per_block);
  const auto resident = static_cast<unsigned>(3 * shape.multiprocessors);  // 58 KB each of 228 KB
  launch(stream,
         {.grid_x = blocks < resident ? blocks : resident,
          .grid_y = static_cast<unsigned>((shape.rows + kColumns * 8 - 1) / (kColumns * 8)),
          .threads = kThreads,
          .shared_bytes = MmaShape<kColumns>::kSharedBytes},
         &matmul_mma<kColumns>, arguments);
}

constexpr int kFloatThreads = 128;
constexpr int kFloatRows = 4;  // tokens that share a read of the weights

__global__ void __launch_bounds__(kFloatThreads)
    matmul_float(const MatrixView w, const float* x, int64_t x_stride, int32_t rows, float* out,
                 int64_t out_stride) {
  const int n = static_cast<int>(blockIdx.x * kFloatThreads + threadIdx.x);
  if (n >= w.n) return;
  const int first = static_cast<int>(blockIdx.y) * kFloatRows;
  const auto* column = static_cast<const float*>(w.data) + n;
  float values[kFloatRows][kMaxSlices] = {};
  OUTRIDER_UNROLL
  for (int s = 0; s < kMaxSlices; ++s) {
    if (s >= w.slices.count) continue;
    for (int k = w.slices.begin[s]; k < w.slices.begin[s + 1]; ++k) {
      const float weight = column[static_cast<int64_t>(k) * w.padded_n];
      OUTRIDER_UNROLL
      for (int m = 0; m < kFloatRows; ++m)
        if (first + m < rows) values[m][s] = fmaf(weight, x[(first + m) * x_stride + k], values[m][s]);
    }
  }
  OUTRIDER_UNROLL
  for (int m = 0; m < kFloatRows; ++m)
    if (first + m < rows) out[(first + m) * out_stride + n] = tree_sum(values[m], w.slices.count);
}

__device__ __forceinline__ int64_t element_offset(const MatrixView& m, int32_t row, int32_t column) {
  return m.type == WeightType::kBFloat16 ? tiled_offset(m.slices, row, column)
                                         : transposed_offset(m.padded_n, row, column);
}

// One element per thread: loading only.
template <class T>
__global__ void pack_elements(const MatrixView to, int64_t first_row, int64_t rows, const T* staged) {
  const int64_t k = to.slices.k();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * k) return;
  const auto row = static_cast<int32_t>(first_row + i / k), column = static_cast<int32_t>(i % k);
  static_cast<T*>(to.data)[element_offset(to, row, column)] = staged[i];
}

// Finaliser of splitmix64, as in base/hash.h.
__device__ __forceinline__ uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Uniform in (-scale, scale), by (row, column): independent of layout.
__global__ void noise_elements(const MatrixView to, uint64_t seed, float scale) {
  const int64_t k = to.slices.k();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= to.n * k) return;
  const auto word = static_cast<uint32_t>(mix(seed ^ mix(static_cast<uint64_t>(i))) >> 32);
  const float value = (static_cast<float>(word) * 0x1p-31f - 1.0f) * scale;
  const int64_t at = element_offset(to, static_cast<int32_t>(i / k), static_cast<int32_t>(i % k));
  if (to.type == WeightType::kBFloat16)
    static_cast<bf16*>(to.data)[at] = to_bf16(value);
  else
    static_cast<float*>(to.data)[at] = value;
}

LaunchShape one_thread_each(int64_t elements) {
  return {.grid_x = static_cast<unsigned>((elements + kThreads - 1) / kThreads), .threads = kThreads};
}

}  // namespace

int64_t DeviceMatrix::bytes_for(WeightType type, int64_t n, const Slices& slices) {
  return type == WeightType::kBFloat16
             ? round_up(n, kTileRows) / kTileRows * slices.steps() * kTileBytes
             : round_up(n, kWarp) * slices.k() * static_cast<int64_t>(sizeof(float));
}

DeviceMatrix::DeviceMatrix(WeightType type, int64_t n, const Slices& slices)
    : memory_(bytes_for(type, n, slices)) {
  CHECK(type == WeightType::kFloat32 || slices.k() % 2 == 0, "{} columns: bf16 comes in pairs", slices.k());
  view_ = {.type = type,
           .data = memory_.data(),
           .n = static_cast<int32_t>(n),
           .padded_n = static_cast<int32_t>(round_up(n, kWarp)),
           .slices = slices};
}

void prepare_matmul() {
  allow_shared_bytes(&matmul_mma<1>, MmaShape<1>::kSharedBytes);
  allow_shared_bytes(&matmul_mma<2>, MmaShape<2>::kSharedBytes);
  allow_shared_bytes(&matmul_mma<8>, MmaShape<8>::kSharedBytes);
}

void pack_rows(StreamView stream, const MatrixView& to, int64_t first_row, int64_t rows, const void* staged) {
  CHECK(first_row >= 0 && first_row + rows <= to.n, "rows [{}, {}) of {}", first_row, first_row + rows, to.n);
  if (rows * to.slices.k() == 0) return;
  const LaunchShape shape = one_thread_each(rows * to.slices.k());
  if (to.type == WeightType::kBFloat16)
    launch(stream, shape, &pack_elements<bf16>, to, first_row, rows, static_cast<const bf16*>(staged));
  else
    launch(stream, shape, &pack_elements<float>, to, first_row, rows, static_cast<const float*>(staged));
}

void fill_noise(StreamView stream, const MatrixView& to, uint64_t seed, float scale) {
  if (to.n * to.slices.k() == 0) return;
  launch(stream, one_thread_each(static_cast<int64_t>(to.n) * to.slices.k()), &noise_elements, to, seed,
         scale);
}

void matmul(StreamView stream, const MatmulShape& shape, const void* x, const MatrixView& weight,
            float* out) {
  if (shape.rows == 0 || weight.n == 0) return;
  CHECK(shape.x_stride >= weight.slices.k() && shape.out_stride >= weight.n, "x stride {}, out stride {}",
        shape.x_stride, shape.out_stride);
  if (weight.type == WeightType::kFloat32) {
    launch(stream,
           {.grid_x = static_cast<unsigned>((weight.n + kFloatThreads - 1) / kFloatThreads),
            .grid_y = static_cast<unsigned>((shape.rows + kFloatRows - 1) / kFloatRows),
            .threads = kFloatThreads},
           &matmul_float, weight, static_cast<const float*>(x), shape.x_stride,
           static_cast<int32_t>(shape.rows), out, shape.out_stride);
    return;
  }
  CHECK(shape.x_stride % 2 == 0, "x stride {} is odd", shape.x_stride);
  const MmaArguments arguments{.weights = static_cast<const uint4*>(weight.data),
                               .slices = weight.slices,
                               .n = weight.n,
                               .tiles = (weight.n + kTileRows - 1) / kTileRows,
                               .x = static_cast<const bf16*>(x),
                               .x_stride = shape.x_stride,
                               .rows = static_cast<int32_t>(shape.rows),
                               .out = out,
                               .out_stride = shape.out_stride};
  if (shape.rows <= 8)
    launch_mma<1>(stream, shape, arguments);
  else if (shape.rows <= 16)
    launch_mma<2>(stream, shape, arguments);
  else
    launch_mma<8>(stream, shape, arguments);
}

}  // namespace outrider::cuda
