// Skinny matrix products on the device. bf16 and codes: tensor cores with the weights as the
// 16-row operand and tokens as columns, so that 1 and 16 tokens cost the same instructions; a column of an
// instruction depends on its own token only, and so the number of tokens changes no bit. fp32: one output per
// thread, for exact fixtures.
#include "base/cuda_device.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/gates.h"
#include "kernels/cuda/mma_codes.h"
#include "kernels/cuda/mma_ring.h"
#include "kernels/cuda/mma_weights.h"
#include "kernels/cuda/product_rule.h"

namespace outrider::cuda {
namespace {

// Distance between columns of a partial result in shared memory: lanes of a warp hit 32 banks.
constexpr int kPartialStride = 20;

// One compiled form of the product: kColumns tiles of 8 tokens in one pass over the weights.
// Staged: the block keeps all activations in shared memory and its 8 or 16 warps share them. Otherwise they
// come through the caches, and a warp takes two row tiles at a time, so that what it read serves as often;
// that form takes what no other does: any number of tokens, any columns, any device. No bit depends on the
// form.
template <class Weights_, int kColumns_, int kStagedWarps>
struct MmaForm {
  using Weights = Weights_;
  static constexpr int kColumns = kColumns_;
  static constexpr bool kStaged = kStagedWarps > 0;
  static constexpr int kTokens = 8 * kColumns;
  static constexpr int kWarps = kStaged ? kStagedWarps : 8;
  static constexpr int kThreads = kWarps * static_cast<int>(kWarp);
  static constexpr int kTiles = kStaged ? 1 : 2;  // row tiles of a warp at a time
  // Copies in flight, for a block of bf16 or int4: 16 x 7 x 512 B, 8 x 11 x 512 B or 8 x 5 x 1 KB; of eight
  // bits 16 x 3, 8 x 5 or 8 x 2 x 2 times 1 KB; all above the 26 KB that 4.8 TB/s and 0.7 us of latency ask
  // of a multiprocessor.
  static constexpr int kStages = (!kStaged ? 6 : kWarps == 8 ? 12 : 8) / Weights::kWords;
  static constexpr int kPartialFloats = kWarps * kTokens * kPartialStride;  // of one row tile of each warp

  // `columns` of activations, slices in whole steps.
  static constexpr size_t shared_bytes(int64_t columns) {
    return kWarps * size_t{WeightRing<MmaForm>::kBytes} + kPartialFloats * sizeof(float) +
           (kStaged ? static_cast<size_t>(kTokens * staged_stride<Weights>(columns)) * sizeof(bf16) : 0);
  }
  static size_t shared_bytes(const Slices& slices) {
    return shared_bytes(int64_t{slices.steps()} * Weights::kStepColumns);
  }
};

// The tokens of this pass into shared memory, 16 bytes at a time: every slice from a whole step on, zeros
// beyond it and beyond the last token.
template <class Form>
__device__ __forceinline__ void stage_tokens(const MmaArguments& a, int first_token, int stride,
                                             bf16* staged) {
  constexpr int kColumns = Form::Weights::kStepColumns;
  const int groups = a.slices.steps() * (kColumns / 8), last = a.slices.count - 1;
  const bool is_shifted = a.slices.first_step[last] * kColumns != a.slices.begin[last];
  OUTRIDER_UNROLL_BY(8)
  for (int i = static_cast<int>(threadIdx.x); i < Form::kTokens * groups; i += Form::kThreads) {
    const int token = i / groups, to = i % groups * 8;
    int column = to, end = a.slices.k();
    if (is_shifted) {
      int s = 0;
      while (to >= a.slices.first_step[s + 1] * kColumns) ++s;
      column = a.slices.begin[s] + to - a.slices.first_step[s] * kColumns;
      end = a.slices.begin[s + 1];
    }
    const bool inside = first_token + token < a.rows && column < end;
    const bf16* from = a.x + (first_token + token) * a.x_stride + column;
    *reinterpret_cast<uint4*>(staged + token * stride + to) =
        inside ? *reinterpret_cast<const uint4*>(from) : uint4{};
  }
}

// Operand b of one step for every column tile, of activations that are not staged.
template <class Form>
__device__ __forceinline__ void load_step(const MmaArguments& a, int first_token, int slice, int step,
                                          uint32_t (&b)[Form::kColumns][Form::Weights::kInputs]) {
  const int begin = step * Form::Weights::kStepColumns;
  const int columns = a.slices.begin[slice + 1] - a.slices.begin[slice] - begin;
  OUTRIDER_UNROLL
  for (int c = 0; c < Form::kColumns; ++c) {
    const int token = first_token + c * 8 + static_cast<int>(threadIdx.x % kWarp) / 4;
    Form::Weights::load_inputs(a.x + token * a.x_stride + a.slices.begin[slice] + begin,
                               token < a.rows ? columns : 0, a.wide, b[c]);
  }
}

// All steps of the ring's next row tiles, of activations that are not staged.
template <class Form>
__device__ __forceinline__ void multiply_unstaged(const MmaArguments& a, WeightRing<Form>& weights,
                                                  int first_token, int slice,
                                                  float (&sum)[Form::kTiles][Form::kColumns][4]) {
  using Weights = typename Form::Weights;
  uint32_t b[Form::kColumns][Weights::kInputs], next_b[Form::kColumns][Weights::kInputs] = {};
  load_step<Form>(a, first_token, slice, a.step_at(slice, 0), next_b);
  for (int step = 0; step < weights.steps; ++step) {
    OUTRIDER_UNROLL
    for (int c = 0; c < Form::kColumns; ++c) OUTRIDER_UNROLL
    for (int i = 0; i < Weights::kInputs; ++i) b[c][i] = next_b[c][i];
    load_step<Form>(a, first_token, slice, a.step_at(slice, step + 1 == weights.steps ? 0 : step + 1),
                    next_b);
    weights.await();
    OUTRIDER_UNROLL
    for (int r = 0; r < Form::kTiles; ++r)
      Weights::template add<Form::kColumns>(
          a.form, Weights::template load<1>(a.form, weights.words_at(r), weights.scales_at(r)), b, sum[r]);
    weights.advance();
  }
}

// Adds the slices of one row tile of every group of warps. Group g has tile `first_tile` + kTiles g, counted
// among the chosen tiles.
template <class Form>
__device__ __forceinline__ void combine_slices(const MmaArguments& a, const float* partials, int first_tile,
                                               int tiles, int first_token) {
  const int groups = Form::kWarps / a.slices.count, rows = a.gated.out ? kTileRows / 2 : kTileRows;
  for (int o = static_cast<int>(threadIdx.x); o < groups * Form::kTokens * rows; o += Form::kThreads) {
    const int row = o % rows, column = o / rows % Form::kTokens;
    const int group = o / (rows * Form::kTokens);
    const int tile = first_tile + group * Form::kTiles, token = first_token + column;
    if (tile >= tiles || token >= a.rows) continue;
    const int n = a.tile_at(tile) * kTileRows + row;
    if (n >= a.n) continue;
    const auto sum_of = [&](int r) {
      float values[kMaxSlices];
      OUTRIDER_UNROLL
      for (int s = 0; s < kMaxSlices; ++s)
        values[s] =
            s < a.slices.count
                ? partials[((group * a.slices.count + s) * Form::kTokens + column) * kPartialStride + r]
                : 0.0f;
      return tree_sum(values, a.slices.count);
    };
    if (a.gated.out)
      store_gated(a, token, a.tile_at(tile), row, sum_of(row), sum_of(row + kTileRows / 2));
    else
      a.out[token * a.out_stride + n] = sum_of(row);
  }
}

// The warps of a block take the slices of a few row tiles each; blocks stride over the tiles. Grid: passes
// over the tokens, so that neighbours share reads of the weights, and groups of row tiles.
template <class Form>
__global__ void __launch_bounds__(Form::kThreads, 1) matmul_mma(const MmaArguments a) {
  using Weights = typename Form::Weights;
  constexpr int kColumns = Form::kColumns, kTiles = Form::kTiles;
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  auto* partials = reinterpret_cast<float*>(shared_memory() + Form::kWarps * WeightRing<Form>::kBytes);
  bf16* staged = reinterpret_cast<bf16*>(partials + Form::kPartialFloats);

  const int slice = warp % a.slices.count, group = warp / a.slices.count;
  const int block_tiles = Form::kWarps / a.slices.count * kTiles;
  const bool is_chosen = a.chosen.counts != nullptr;
  if (is_chosen) await_inputs();  // which weights to fetch is among them
  const int tiles = a.tile_count();
  const int tile_stride = static_cast<int>(gridDim.y) * block_tiles;
  const int first_tile = static_cast<int>(blockIdx.y) * block_tiles;
  const int first_token = static_cast<int>(blockIdx.x) * Form::kTokens;

  const auto stride =
      static_cast<int>(staged_stride<Weights>(int64_t{a.slices.steps()} * Weights::kStepColumns));

  auto weights =
      ring_of_warp<Form>(a, shared_memory(), slice, first_tile + group * kTiles, tile_stride);
  weights.begin();
  if (!is_chosen) await_inputs();
  if constexpr (Form::kStaged) {
    stage_tokens<Form>(a, first_token, stride, staged);
    sync_block();
  }

  const bf16* const own = staged + lane / 4 * stride + a.slices.first_step[slice] * Weights::kStepColumns +
                          lane % 4 * Weights::kNeighbours;
  for (int base = first_tile; base < tiles; base += tile_stride) {
    float sum[kTiles][kColumns][4] = {};
    if (base + group * kTiles < tiles && weights.steps > 0) {
      if constexpr (Form::kStaged)
        multiply_steps<Form>(a.form, weights, own, 8 * stride, sum[0]);
      else
        multiply_unstaged<Form>(a, weights, first_token, slice, sum);
    }
    OUTRIDER_UNROLL
    for (int r = 0; r < kTiles; ++r) {
      OUTRIDER_UNROLL
      for (int c = 0; c < kColumns; ++c) OUTRIDER_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int column = c * 8 + lane % 4 * 2 + i % 2, row = lane / 4 + (i >= 2 ? 8 : 0);
        partials[(warp * Form::kTokens + column) * kPartialStride + row] = sum[r][c][i] * Weights::kSumUnit;
      }
      sync_block();
      combine_slices<Form>(a, partials, base + r, tiles, first_token);
      sync_block();
    }
  }
  copy_async_wait<0>();
}

template <class Form>
void launch_mma(StreamView stream, const MatmulShape& shape, const MmaArguments& arguments) {
  const int block_tiles = Form::kWarps / arguments.slices.count * Form::kTiles;
  const auto blocks = static_cast<unsigned>((arguments.tiles + block_tiles - 1) / block_tiles);
  const auto resident = static_cast<unsigned>((Form::kStaged ? 1 : 2) * shape.multiprocessors);
  const auto passes = static_cast<unsigned>((shape.rows + Form::kTokens - 1) / Form::kTokens);
  launch(stream,
         {.grid_x = passes,
          .grid_y = blocks < resident ? blocks : resident,
          .threads = Form::kThreads,
          .shared_bytes = Form::shared_bytes(arguments.slices),
          .early = true},
         &matmul_mma<Form>, arguments);
}

static_assert(MmaForm<PairWeights, 2, 8>::shared_bytes(8192) == staged_bytes(WeightType::kBFloat16, 8192));
static_assert(MmaForm<CodeWeights<WeightType::kInt8>, 2, 8>::shared_bytes(200) ==
              staged_bytes(WeightType::kInt8, 200));
static_assert(MmaForm<HalfByteWeights, 2, 8>::shared_bytes(200) == staged_bytes(WeightType::kInt4, 200));

// Where activations do not fit into shared memory, or cannot be moved 16 bytes at a time.
template <class Weights>
void launch_unstaged(StreamView stream, const MatmulShape& shape, const MmaArguments& arguments) {
  launch_mma<MmaForm<Weights, kFewRows / 8, 0>>(stream, shape, arguments);
}

// Staged where that can be. Else more than 8 rows go through the ring of the wide form, piece by piece.
template <class Weights, int kColumns>
void launch_skinny(StreamView stream, const MatmulShape& shape, WeightType type,
                   const MmaArguments& arguments) {
  const bool aligned = arguments.wide && arguments.slices.k() % 8 == 0;
  const auto fits = [&](size_t bytes) { return aligned && bytes <= static_cast<size_t>(shape.shared_bytes); };
  using Large = MmaForm<Weights, kColumns, 16>;
  using Small = MmaForm<Weights, kColumns, 8>;
  // A narrow matrix is spread over twice as many blocks, so that no multiprocessor is idle.
  const int large_blocks = arguments.tiles * arguments.slices.count / Large::kWarps;
  if (large_blocks >= shape.multiprocessors && fits(Large::shared_bytes(arguments.slices)))
    launch_mma<Large>(stream, shape, arguments);
  else if (fits(Small::shared_bytes(arguments.slices)))
    launch_mma<Small>(stream, shape, arguments);
  else if (kColumns == 1 || !matmul_wide(stream, shape, type, arguments))
    launch_unstaged<Weights>(stream, shape, arguments);
}

template <class Weights>
void launch_format(StreamView stream, const MatmulShape& shape, WeightType type,
                   const MmaArguments& arguments) {
  if (shape.rows <= 8)
    launch_skinny<Weights, 1>(stream, shape, type, arguments);
  else if (shape.rows <= kFewRows)
    launch_skinny<Weights, 2>(stream, shape, type, arguments);
  else if (!matmul_wide(stream, shape, type, arguments))
    launch_unstaged<Weights>(stream, shape, arguments);
}

void launch_codes(StreamView stream, const MatmulShape& shape, const MmaArguments& a) {
  if (a.form.unit == 16) return launch_format<QuarterWeights>(stream, shape, WeightType::kCodes, a);
  switch (a.form.code) {
    case CodeType::kUnsigned4:
      return launch_format<PublishedWeights<CodeType::kUnsigned4>>(stream, shape, WeightType::kCodes, a);
    case CodeType::kUnsigned8:
      return launch_format<PublishedWeights<CodeType::kUnsigned8>>(stream, shape, WeightType::kCodes, a);
    case CodeType::kE4m3:
      return launch_format<PublishedWeights<CodeType::kE4m3>>(stream, shape, WeightType::kCodes, a);
    case CodeType::kE2m1:
      return launch_format<PublishedWeights<CodeType::kE2m1>>(stream, shape, WeightType::kCodes, a);
  }
}

template <class Form>
void allow_form(int64_t shared_bytes) {
  allow_shared_bytes(&matmul_mma<Form>,
                     Form::kStaged ? static_cast<size_t>(shared_bytes) : Form::shared_bytes(int64_t{0}));
}

template <class Weights>
void allow_format(int64_t shared_bytes) {
  allow_form<MmaForm<Weights, 1, 8>>(shared_bytes);
  allow_form<MmaForm<Weights, 2, 8>>(shared_bytes);
  allow_form<MmaForm<Weights, 1, 16>>(shared_bytes);
  allow_form<MmaForm<Weights, 2, 16>>(shared_bytes);
  allow_form<MmaForm<Weights, kFewRows / 8, 0>>(shared_bytes);
}

bool starts_at_16_bytes(const Slices& slices, int64_t x_stride) {
  bool all = x_stride % 8 == 0;
  for (int s = 0; s < slices.count; ++s) all = all && slices.begin[s] % 8 == 0;
  return all;
}

constexpr int kFloatThreads = 128;
constexpr int kFloatRows = 4;  // tokens that share a read of the weights

// One output per thread. Only chosen outputs and chosen columns are computed.
__global__ void __launch_bounds__(kFloatThreads)
    matmul_float(const MatrixView w, const float* x, int64_t x_stride, int32_t rows, float* out,
                 int64_t out_stride, const ChosenWork chosen) {
  await_inputs();
  int n = static_cast<int>(blockIdx.x * kFloatThreads + threadIdx.x);
  if (chosen.tiles) {
    if (n / kTileRows >= chosen.counts[0]) return;
    n = chosen.tiles[n / kTileRows] * kTileRows + n % kTileRows;
  }
  if (n >= w.n) return;
  const int first = static_cast<int>(blockIdx.y) * kFloatRows;
  const auto* column = static_cast<const float*>(w.data) + n;
  float values[kFloatRows][kMaxSlices] = {};
  OUTRIDER_UNROLL
  for (int s = 0; s < kMaxSlices; ++s) {
    if (s >= w.slices.count) continue;
    const auto add = [&](int begin, int end) {
      for (int k = begin; k < end; ++k) {
        const float weight = column[static_cast<int64_t>(k) * w.padded_n];
        OUTRIDER_UNROLL
        for (int m = 0; m < kFloatRows; ++m)
          if (first + m < rows) values[m][s] = fmaf(weight, x[(first + m) * x_stride + k], values[m][s]);
      }
    };
    const int slice_begin = w.slices.begin[s], slice_end = w.slices.begin[s + 1];
    if (!chosen.steps) {
      add(slice_begin, slice_end);
      continue;
    }
    for (int i = 0; i < chosen.counts[1 + s]; ++i) {
      const int begin = slice_begin + chosen.steps[w.slices.first_step[s] + i] * kStep, end = begin + kStep;
      add(begin, end < slice_end ? end : slice_end);
    }
  }
  OUTRIDER_UNROLL
  for (int m = 0; m < kFloatRows; ++m)
    if (first + m < rows) out[(first + m) * out_stride + n] = tree_sum(values[m], w.slices.count);
}

}  // namespace

void prepare_matmul(int64_t shared_bytes) {
  allow_format<PairWeights>(shared_bytes);
  allow_format<CodeWeights<WeightType::kInt8>>(shared_bytes);
  allow_format<CodeWeights<WeightType::kFloat8>>(shared_bytes);
  allow_format<HalfByteWeights>(shared_bytes);
  allow_format<HalfWeights>(shared_bytes);
  allow_format<PublishedWeights<CodeType::kUnsigned4>>(shared_bytes);
  allow_format<PublishedWeights<CodeType::kUnsigned8>>(shared_bytes);
  allow_format<PublishedWeights<CodeType::kE4m3>>(shared_bytes);
  allow_format<PublishedWeights<CodeType::kE2m1>>(shared_bytes);
  allow_format<QuarterWeights>(shared_bytes);
  prepare_matmul_split(shared_bytes);
  prepare_matmul_wide(shared_bytes);
}

void matmul(StreamView stream, const MatmulShape& shape, const void* x, const MatrixView& weight,
            float* out) {
  if (shape.rows == 0 || weight.n == 0) return;
  const int32_t columns = weight.paired > 0 ? weight.paired : weight.n;
  CHECK(shape.x_stride >= weight.slices.k() && shape.out_stride >= columns, "x stride {}, out stride {}",
        shape.x_stride, shape.out_stride);
  CHECK((weight.paired > 0) == (shape.gated.out != nullptr), "{} paired rows", weight.paired);
  if (weight.type == WeightType::kFloat32) {
    launch(stream,
           {.grid_x = static_cast<unsigned>((weight.n + kFloatThreads - 1) / kFloatThreads),
            .grid_y = static_cast<unsigned>((shape.rows + kFloatRows - 1) / kFloatRows),
            .threads = kFloatThreads,
            .early = true},
           &matmul_float, weight, static_cast<const float*>(x), shape.x_stride,
           static_cast<int32_t>(shape.rows), out, shape.out_stride, shape.chosen);
    return;
  }
  CHECK(shape.x_stride % 2 == 0, "x stride {} is odd", shape.x_stride);
  const MmaArguments arguments{.weights = static_cast<const uint4*>(weight.data),
                               .scales = reinterpret_cast<const uint32_t*>(weight.scales),
                               .form = weight.form,
                               .slices = weight.slices,
                               .n = weight.n,
                               .tiles = (weight.n + kTileRows - 1) / kTileRows,
                               .x = static_cast<const bf16*>(x),
                               .x_stride = shape.x_stride,
                               .rows = static_cast<int32_t>(shape.rows),
                               .out = out,
                               .out_stride = shape.out_stride,
                               .wide = starts_at_16_bytes(weight.slices, shape.x_stride),
                               .chosen = shape.chosen,
                               .gated = shape.gated};
  if (matmul_split(stream, shape, weight.type, arguments)) return;
  switch (weight.type) {
    case WeightType::kInt8:
      return launch_format<CodeWeights<WeightType::kInt8>>(stream, shape, weight.type, arguments);
    case WeightType::kFloat8:
      return launch_format<CodeWeights<WeightType::kFloat8>>(stream, shape, weight.type, arguments);
    case WeightType::kInt4:
      return launch_format<HalfByteWeights>(stream, shape, weight.type, arguments);
    case WeightType::kFloat16:
      return launch_format<HalfWeights>(stream, shape, weight.type, arguments);
    case WeightType::kCodes:
      return launch_codes(stream, shape, arguments);
    default:
      return launch_format<PairWeights>(stream, shape, weight.type, arguments);
  }
}

}  // namespace outrider::cuda
