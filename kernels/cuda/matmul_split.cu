// Skinny products of matrices with few rows: a block takes one slice of the contraction for eight row tiles,
// so it needs only the slice's activations, and there are enough blocks for every multiprocessor. Each warp
// leaves its tile's part in memory; the one that comes last adds the slices, by index, in the tree. The bits
// are those of matmul.cu.
#include <algorithm>

#include "base/cuda_device.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/mma_codes.h"
#include "kernels/cuda/mma_meeting.h"
#include "kernels/cuda/mma_ring.h"
#include "kernels/cuda/mma_weights.h"
#include "kernels/cuda/product_rule.h"

namespace outrider::cuda {
namespace {

template <class Weights_, int kColumns_>
struct SplitForm {
  using Weights = Weights_;
  static constexpr int kColumns = kColumns_, kTokens = 8 * kColumns;
  static constexpr int kWarps = 8, kThreads = kWarps * static_cast<int>(kWarp);
  static constexpr int kTiles = 1;
  static constexpr int kStages = 12 / Weights::kWords;  // 45 KB of a block's weights under way

  static size_t shared_bytes(int64_t columns) {
    return kWarps * size_t{WeightRing<SplitForm>::kBytes} +
           static_cast<size_t>(kTokens * staged_stride<Weights>(columns)) * sizeof(bf16);
  }
};

// The tokens' activations of one slice into shared memory, with zeros beyond the last token and the last
// column.
template <class Form>
__device__ __forceinline__ void stage_slice(const MmaArguments& a, int begin, int columns, int stride,
                                            bf16* staged) {
  constexpr int kColumns = Form::Weights::kStepColumns;
  const int groups = (columns + kColumns - 1) / kColumns * (kColumns / 8);
  OUTRIDER_UNROLL_BY(4)
  for (int i = static_cast<int>(threadIdx.x); i < Form::kTokens * groups; i += Form::kThreads) {
    const int token = i / groups, column = i % groups * 8;
    const bf16* from = a.x + token * a.x_stride + begin + column;
    *reinterpret_cast<uint4*>(staged + token * stride + column) =
        token < a.rows && column < columns ? *reinterpret_cast<const uint4*>(from) : uint4{};
  }
}

// Grid: groups of eight tiles, slices.
template <class Form>
__global__ void __launch_bounds__(Form::kThreads, 2)
    multiply_slice(const MmaArguments a, const Meeting meeting) {
  using Weights = typename Form::Weights;
  constexpr int kColumns = Form::kColumns;
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  const int slice = static_cast<int>(blockIdx.y), index = static_cast<int>(blockIdx.x) * Form::kWarps + warp;
  auto* const rings = shared_memory();
  auto* const staged = reinterpret_cast<bf16*>(rings + Form::kWarps * WeightRing<Form>::kBytes);
  const int begin = a.slices.begin[slice], columns = a.slices.begin[slice + 1] - begin;
  const auto stride = static_cast<int>(staged_stride<Weights>(columns));

  const bool is_chosen = a.chosen.counts != nullptr;
  if (is_chosen) await_inputs();  // which weights to fetch is among them
  const int tiles = a.tile_count();
  if (static_cast<int>(blockIdx.x) * Form::kWarps >= tiles) return;
  auto weights = ring_of_warp<Form>(a, rings, slice, index, a.tiles);
  weights.begin();
  if (!is_chosen) await_inputs();
  stage_slice<Form>(a, begin, columns, stride, staged);
  sync_block();
  if (index >= tiles) return;

  float sum[kColumns][4] = {};
  multiply_steps<Form>(a.form, weights, staged + lane / 4 * stride + lane % 4 * Weights::kNeighbours,
                       8 * stride, sum);
  copy_async_wait<0>();
  const int tile = a.tile_at(index);
  OUTRIDER_UNROLL
  for (int c = 0; c < kColumns; ++c) OUTRIDER_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int token = c * 8 + lane % 4 * 2 + i % 2, row = lane / 4 + (i >= 2 ? 8 : 0);
    if (token < a.rows) meeting.at(slice, token, tile)[row] = sum[c][i] * Weights::kSumUnit;
  }
  if (meeting.is_last(tile, a.slices.count)) combine_tile(a, meeting, tile, 0, a.rows);
}

int64_t longest(const Slices& slices) {
  int64_t columns = 0;
  for (int s = 0; s < slices.count; ++s)
    columns = std::max<int64_t>(columns, slices.begin[s + 1] - slices.begin[s]);
  return columns;
}

template <class Weights, int kColumns>
bool launch_split(StreamView stream, const MatmulShape& shape, const MmaArguments& a) {
  using Form = SplitForm<Weights, kColumns>;
  const size_t bytes = Form::shared_bytes(longest(a.slices));
  if (bytes > static_cast<size_t>(shape.shared_bytes)) return false;
  const Meeting meeting{.partials = shape.split.partials,
                        .arrived = shape.split.arrived,
                        .tokens = Form::kTokens,
                        .padded_n = a.tiles * kTileRows};
  launch(stream,
         {.grid_x = static_cast<unsigned>((a.tiles + Form::kWarps - 1) / Form::kWarps),
          .grid_y = static_cast<unsigned>(a.slices.count),
          .threads = Form::kThreads,
          .shared_bytes = bytes,
          .early = true},
         &multiply_slice<Form>, a, meeting);
  return true;
}

template <class Weights>
bool launch_columns(StreamView stream, const MatmulShape& shape, const MmaArguments& a) {
  return shape.rows <= 8 ? launch_split<Weights, 1>(stream, shape, a)
                         : launch_split<Weights, 2>(stream, shape, a);
}

bool launch_codes(StreamView stream, const MatmulShape& shape, const MmaArguments& a) {
  if (a.form.unit == 16) return launch_columns<QuarterWeights>(stream, shape, a);
  switch (a.form.code) {
    case CodeType::kUnsigned4:
      return launch_columns<PublishedWeights<CodeType::kUnsigned4>>(stream, shape, a);
    case CodeType::kUnsigned8:
      return launch_columns<PublishedWeights<CodeType::kUnsigned8>>(stream, shape, a);
    case CodeType::kE4m3:
      return launch_columns<PublishedWeights<CodeType::kE4m3>>(stream, shape, a);
    case CodeType::kE2m1:
      return launch_columns<PublishedWeights<CodeType::kE2m1>>(stream, shape, a);
  }
  return false;
}

template <class Weights>
void allow_columns(int64_t shared_bytes) {
  allow_shared_bytes(&multiply_slice<SplitForm<Weights, 1>>, static_cast<size_t>(shared_bytes));
  allow_shared_bytes(&multiply_slice<SplitForm<Weights, 2>>, static_cast<size_t>(shared_bytes));
}

}  // namespace

void prepare_matmul_split(int64_t shared_bytes) {
  allow_columns<PairWeights>(shared_bytes);
  allow_columns<CodeWeights<WeightType::kInt8>>(shared_bytes);
  allow_columns<CodeWeights<WeightType::kFloat8>>(shared_bytes);
  allow_columns<HalfByteWeights>(shared_bytes);
  allow_columns<HalfWeights>(shared_bytes);
  allow_columns<PublishedWeights<CodeType::kUnsigned4>>(shared_bytes);
  allow_columns<PublishedWeights<CodeType::kUnsigned8>>(shared_bytes);
  allow_columns<PublishedWeights<CodeType::kE4m3>>(shared_bytes);
  allow_columns<PublishedWeights<CodeType::kE2m1>>(shared_bytes);
  allow_columns<QuarterWeights>(shared_bytes);
}

bool matmul_split(StreamView stream, const MatmulShape& shape, WeightType type,
                  const MmaArguments& arguments) {
  const bool takes = split_floats(shape.rows, arguments.n) > 0 &&
                     split_floats(shape.rows, arguments.n) <= shape.split.floats && shape.rows <= kFewRows &&
                     arguments.wide && arguments.slices.k() % 8 == 0;
  if (!takes) return false;
  switch (type) {
    case WeightType::kInt8:
      return launch_columns<CodeWeights<WeightType::kInt8>>(stream, shape, arguments);
    case WeightType::kFloat8:
      return launch_columns<CodeWeights<WeightType::kFloat8>>(stream, shape, arguments);
    case WeightType::kInt4:
      return launch_columns<HalfByteWeights>(stream, shape, arguments);
    case WeightType::kFloat16:
      return launch_columns<HalfWeights>(stream, shape, arguments);
    case WeightType::kCodes:
      return launch_codes(stream, shape, arguments);
    default:
      return launch_columns<PairWeights>(stream, shape, arguments);
  }
}

}  // namespace outrider::cuda
