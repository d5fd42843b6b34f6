// Products for more than 16 tokens, and for 9 to 16 tokens if shared memory cannot hold all columns. A block
// multiplies eight row tiles of weights with up to 128 tokens. All of its warps work on the same columns, so
// that one fetch serves several warps: weights and activations pass through one ring in shared memory by
// asynchronous copies. There are two ways to add slices. A block that computes all slices keeps finished ones
// on a stack as deep as the tree, and adds two of one depth as soon as it has both. Where there are too few
// such blocks for the device, a block computes one slice and the slices are added through memory. The bits
// equal those of matmul.cu either way.
#include <type_traits>

#include "base/cuda_device.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/gates.h"
#include "kernels/cuda/mma_codes.h"
#include "kernels/cuda/mma_meeting.h"
#include "kernels/cuda/wide_ring.h"

namespace outrider::cuda {
namespace {

using namespace wide;

template <class Form>
using Sums = float[Form::kTiles][Form::kChunks][Form::kChunk][4];

template <class Form, class Use>
__device__ __forceinline__ void for_each_sum(Sums<Form>& sums, Use use) {
  int at = 0;
  OUTRIDER_UNROLL
  for (int r = 0; r < Form::kTiles; ++r) OUTRIDER_UNROLL
  for (int chunk = 0; chunk < Form::kChunks; ++chunk) OUTRIDER_UNROLL
  for (int c = 0; c < Form::kChunk; ++c) OUTRIDER_UNROLL
  for (int i = 0; i < 4; ++i) use(sums[r][chunk][c][i], at++);
}

// Finished slices that wait for their neighbours: level 0 holds one slice, level 1 the sum of two, level 2
// the sum of four.
template <class Form>
struct SliceStack {
  float* levels = nullptr;  // this thread's
  float fours[Form::kSums - Form::kSharedFours] = {};

  __device__ __forceinline__ float* level(int l) const { return levels + l * Form::kSums * kThreads; }
  // An element of the third level.
  __device__ __forceinline__ float& four(int i) {
    return i < Form::kSharedFours ? level(kSharedLevels)[i * kThreads] : fours[i - Form::kSharedFours];
  }
  // Slice s is finished: with every neighbour that waits for it, it becomes twice as long.
  __device__ __forceinline__ void add(int s, int count, Sums<Form>& sums) {
    OUTRIDER_UNROLL
    for (int l = 0; l < kSharedLevels; ++l)
      if ((s >> l & 1) == 1 && (l == 0 || (s & 1) == 1))
        for_each_sum<Form>(sums, [&](float& sum, int i) { sum = level(l)[i * kThreads] + sum; });
    if (s == 7) for_each_sum<Form>(sums, [&](float& sum, int i) { sum = four(i) + sum; });
    if (s + 1 == count) return;
    if (s == 3)
      for_each_sum<Form>(sums, [&](float& sum, int i) { four(i) = sum; });
    else
      for_each_sum<Form>(sums, [&](float& sum, int i) { level(s & 1)[i * kThreads] = sum; });
  }
};

// Grid: passes over the tokens (neighbours share reads of the weights), groups of row tiles, slices.
template <class Form>
__global__ void __launch_bounds__(kThreads, Form::kBlocks)
    multiply_tiles(const MmaArguments a, const Meeting meeting) {
  using Weights = typename Form::Weights;
  constexpr bool kIsStacked = Form::kSlicing == Slicing::kOnStack;
  const int warp = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp_tile = warp / Form::kTokenWarps * Form::kTiles;
  const int warp_token = warp % Form::kTokenWarps * Form::kWarpTokens;
  const int first_slice = kIsStacked ? 0 : static_cast<int>(blockIdx.z);

  const bool is_chosen = Form::kMayChoose && a.chosen.counts != nullptr;
  if (is_chosen) await_inputs();  // which weights to fetch is among them
  BlockRing<Form> ring{.a = a,
                       .stages = shared_memory<uint4>(),
                       .tiles = Form::kMayChoose ? a.tile_count() : a.tiles,
                       .first_tile = static_cast<int>(blockIdx.y) * kBlockTiles,
                       .first_token = static_cast<int>(blockIdx.x) * Form::kTokens,
                       .last_slice = kIsStacked ? a.slices.count : first_slice + 1,
                       .slice = first_slice};
  if (is_chosen && ring.first_tile >= ring.tiles) return;
  const int first_tile = ring.first_tile + warp_tile, first_token = ring.first_token + warp_token;
  ring.skip_empty_slices();
  {  // weights are no kernel's output, so their first copies need not wait
    BlockRing<Form> ahead = ring;
    OUTRIDER_UNROLL
    for (int stage = 0; stage < Form::kStages - 1; ++stage) {
      if (ahead.is_over()) break;
      ahead.fetch_weights(stage);
      ahead.advance();
    }
  }
  if (!is_chosen) await_inputs();
  OUTRIDER_UNROLL
  for (int stage = 0; stage < Form::kStages - 1; ++stage) {
    if (!ring.is_over()) {
      ring.fetch_tokens(stage);
      ring.advance();
    }
    copy_async_commit();
  }

  Sums<Form> sums = {};
  SliceStack<Form> stack = {};
  auto* const behind_stages = reinterpret_cast<float*>(ring.at(Form::kStages));
  float* const input_sums = behind_stages + Form::kStackFloats;
  if constexpr (kIsStacked) stack.levels = behind_stages + static_cast<int>(threadIdx.x);
  int stage = 0;
  for (int s = first_slice; s < ring.last_slice; ++s) {
    for_each_sum<Form>(sums, [](float& sum, int) { sum = 0; });
    const int steps = ring.steps_of(s);
    for (int step = 0; step < steps; step += Form::kSteps) {
      copy_async_wait<Form::kStages - 2>();
      sync_block();  // all copies are there, and all warps are done with the stage that is filled next
      if (!ring.is_over()) {
        const int next = stage == 0 ? Form::kStages - 1 : stage - 1;
        ring.fetch_weights(next);
        ring.fetch_tokens(next);
        ring.advance();
      }
      copy_async_commit();
      const uint4* const words = ring.at(stage) + warp_tile * Form::kTileWords + lane;
      const uint4* const tokens = ring.at(stage) + Form::kTokensAt + warp_token * kTokenWords;
      const auto* const scales = reinterpret_cast<const uint32_t*>(ring.at(stage) + Form::kScalesAt) +
                                 warp_tile * Form::kTileScales +
                                 (Weights::kSharesWords ? lane / 4 * 4 : lane);
      if constexpr (Weights::kMayHaveMinimum)
        if (Weights::has_minimum(a.form)) {
          sum_stage<Form>(ring.at(stage) + Form::kTokensAt, input_sums);
          sync_block();
        }
      const auto multiply = [&](int i) {
        typename Weights::Operand operands[Form::kTiles];
        OUTRIDER_UNROLL
        for (int r = 0; r < Form::kTiles; ++r)
          operands[r] = Weights::template load<Weights::kSharesWords ? 1 : kLanes>(
              a.form, words + r * Form::kTileWords + i * Weights::kWords * kLanes,
              scales + r * Form::kTileScales);
        OUTRIDER_UNROLL
        for (int chunk = 0; chunk < Form::kChunks; ++chunk) {
          uint32_t b[Form::kChunk][Weights::kInputs];
          load_tokens<Weights, Form::kChunk>(tokens + chunk * Form::kChunk * 8 * kTokenWords, i, b);
          if constexpr (Weights::kMayHaveMinimum) {
            typename Weights::template InputSums<Form::kChunk> inputs = {};
            if (Weights::has_minimum(a.form)) load_sums<Form>(input_sums, chunk * Form::kChunk, inputs);
            OUTRIDER_UNROLL
            for (int r = 0; r < Form::kTiles; ++r)
              Weights::template add<Form::kChunk>(a.form, operands[r], b, inputs, sums[r][chunk]);
          } else {
            OUTRIDER_UNROLL
            for (int r = 0; r < Form::kTiles; ++r)
              Weights::template add<Form::kChunk>(a.form, operands[r], b, sums[r][chunk]);
          }
        }
      };
      if constexpr (Form::kSteps == 1) {
        multiply(0);
      } else if (steps - step >= Form::kSteps) {  // without a branch, so that reads run ahead of products
        OUTRIDER_UNROLL_BY(Form::kAhead)
        for (int i = 0; i < Form::kSteps; ++i) multiply(i);
      } else {
        for (int i = 0; step + i < steps; ++i) multiply(i);
      }
      stage = stage + 1 == Form::kStages ? 0 : stage + 1;
    }
    for_each_sum<Form>(sums, [](float& sum, int) { sum *= Weights::kSumUnit; });
    if constexpr (kIsStacked) stack.add(s, a.slices.count, sums);
  }
  copy_async_wait<0>();

  const auto row_of = [&](int i) { return lane / 4 + (i >= 2 ? 8 : 0); };
  const auto token_of = [&](int c, int i) { return first_token + c * 8 + lane % 4 * 2 + i % 2; };
  if constexpr (kIsStacked)
    if (a.gated.out) {  // from the stack, in a loop: the activation is one code for all pairs
      for_each_sum<Form>(sums, [&](float& sum, int i) { stack.level(0)[i * kThreads] = sum; });
      OUTRIDER_UNROLL_BY(1)
      for (int pair = 0; pair < Form::kSums / 2; ++pair) {
        const int four = pair / 2, i = pair % 2;
        const int index = first_tile + four / Form::kColumns, token = token_of(four % Form::kColumns, i);
        if (token >= a.rows || index >= ring.tiles) continue;
        const float* const gate = stack.level(0) + (four * 4 + i) * kThreads;
        store_gated(a, token, ring.tile_at(index), row_of(i), gate[0], gate[2 * kThreads]);
      }
      return;
    }
  for_each_sum<Form>(sums, [&](float& sum, int at) {
    const int four = at / 4, i = at % 4;
    const int index = first_tile + four / Form::kColumns, token = token_of(four % Form::kColumns, i);
    if (token >= a.rows || index >= ring.tiles) return;
    const int tile = ring.tile_at(index), n = tile * kTileRows + row_of(i);
    if constexpr (!kIsStacked)
      meeting.at(first_slice, token, tile)[row_of(i)] = sum;
    else if (n < a.n)
      a.out[token * a.out_stride + n] = sum;
  });
  if constexpr (!kIsStacked) {
    // A counter for each warp of a group: there are as many row tiles as warps. Warps without an output have
    // nothing to meet for.
    if (first_tile >= ring.tiles || first_token >= a.rows) return;
    const int counter = static_cast<int>(blockIdx.x * kSplitTiles) + first_tile + warp % Form::kTokenWarps;
    if (!meeting.is_last(counter, a.slices.count)) return;
    const int end = first_token + Form::kWarpTokens < a.rows ? first_token + Form::kWarpTokens : a.rows;
    for (int r = 0; r < Form::kTiles && first_tile + r < ring.tiles; ++r)
      combine_tile(a, meeting, ring.tile_at(first_tile + r), first_token, end);
  }
}

// Weights that are widened are so once in a block: each warp has a row tile of its own and all tokens. In
// bf16 warps share both, and read less from shared memory.
template <class Weights, Slicing kSlicing, int kTokens, int kStages, int kBlocks>
using FormOf =
    std::conditional_t<Weights::kIsWidened || kTokens <= 32,
                       WideForm<Weights, kSlicing, 1, kTokens / 8, 1, kStages, kBlocks>,
                       WideForm<Weights, kSlicing, kTokens / 32, 4, kTokens / 32, kStages, kBlocks>>;

// Stages as far as shared memory goes: beside the stack of 128 x 128 sums there is room for three, 48 to 64
// KB of copies under way; else at least 48 KB are.
template <class Weights>
constexpr bool kIsCodes = Weights::kStepColumns != kStep;
template <class Weights>
using Stacked128 = FormOf<Weights, Slicing::kOnStack, 128, 3, 1>;
template <class Weights>
using Stacked64 = FormOf<Weights, Slicing::kOnStack, 64, 6, 1>;
template <class Weights>
using Stacked32 = FormOf<Weights, Slicing::kOnStack, 32, 4, 2>;
template <class Weights>
using Stacked16 = FormOf<Weights, Slicing::kOnStack, 16, 5, 2>;
template <class Weights>
using Split64 =
    FormOf<Weights, Slicing::kOverBlocks, 64, kIsCodes<Weights> ? 8 : 4, kIsCodes<Weights> ? 1 : 2>;
template <class Weights>
using Split32 = FormOf<Weights, Slicing::kOverBlocks, 32, 5, 2>;

// False where a block may not have so much shared memory.
template <class Form>
bool launch_form(StreamView stream, const MatmulShape& shape, const MmaArguments& a) {
  if (Form::kSharedBytes > static_cast<size_t>(shape.shared_bytes)) return false;
  constexpr bool kIsStacked = Form::kSlicing == Slicing::kOnStack;
  const auto passes = static_cast<unsigned>((a.rows + Form::kTokens - 1) / Form::kTokens);
  launch(stream,
         {.grid_x = passes,
          .grid_y = static_cast<unsigned>((a.tiles + kBlockTiles - 1) / kBlockTiles),
          .grid_z = static_cast<unsigned>(kIsStacked ? 1 : a.slices.count),
          .threads = kThreads,
          .shared_bytes = Form::kSharedBytes,
          .early = true},
         &multiply_tiles<Form>, a,
         Meeting{.partials = shape.split.partials,
                 .arrived = shape.split.arrived,
                 .tokens = static_cast<int32_t>(passes) * Form::kTokens,
                 .padded_n = a.tiles * kTileRows});
  return true;
}

template <class Weights>
bool launch_by_rule(StreamView stream, const MatmulShape& shape, const MmaArguments& a) {
  constexpr int kBits = Weights::kWords * kLanes * 128 / (kTileRows * Weights::kStepColumns);
  const int64_t floats = split_floats(a.rows, a.n);
  const bool may_split = a.rows <= kSplitRows && floats > 0 && floats <= shape.split.floats;
  const WideProduct form =
      choose_wide_product(a.rows, a.n, a.slices.count, shape.multiprocessors, kBits, may_split);
  if (form.is_over_blocks)
    return form.rows == 32 ? launch_form<Split32<Weights>>(stream, shape, a)
                           : launch_form<Split64<Weights>>(stream, shape, a);
  if (form.rows == 128) return launch_form<Stacked128<Weights>>(stream, shape, a);
  if (form.rows == 64) return launch_form<Stacked64<Weights>>(stream, shape, a);
  return form.rows == kFewRows && launch_form<Stacked16<Weights>>(stream, shape, a);
}

// Devices with little shared memory take the smallest tile.
template <class Weights>
bool launch_wide(StreamView stream, const MatmulShape& shape, const MmaArguments& a) {
  return launch_by_rule<Weights>(stream, shape, a) || launch_form<Stacked32<Weights>>(stream, shape, a);
}

template <class Form>
void allow_form(int64_t shared_bytes) {
  if (Form::kSharedBytes <= static_cast<size_t>(shared_bytes))
    allow_shared_bytes(&multiply_tiles<Form>, Form::kSharedBytes);
}

template <class Weights>
void allow_format(int64_t shared_bytes) {
  allow_form<Stacked128<Weights>>(shared_bytes);
  allow_form<Stacked64<Weights>>(shared_bytes);
  allow_form<Stacked32<Weights>>(shared_bytes);
  allow_form<Stacked16<Weights>>(shared_bytes);
  allow_form<Split64<Weights>>(shared_bytes);
  allow_form<Split32<Weights>>(shared_bytes);
}

bool launch_codes(StreamView stream, const MatmulShape& shape, const MmaArguments& a) {
  if (a.form.unit == 16) return launch_wide<QuarterWeights>(stream, shape, a);
  switch (a.form.code) {
    case CodeType::kUnsigned4:
      return launch_wide<PublishedWeights<CodeType::kUnsigned4>>(stream, shape, a);
    case CodeType::kUnsigned8:
      return launch_wide<PublishedWeights<CodeType::kUnsigned8>>(stream, shape, a);
    case CodeType::kE4m3:
      return launch_wide<PublishedWeights<CodeType::kE4m3>>(stream, shape, a);
    case CodeType::kE2m1:
      return launch_wide<PublishedWeights<CodeType::kE2m1>>(stream, shape, a);
  }
  return false;
}

}  // namespace

void prepare_matmul_wide(int64_t shared_bytes) {
  allow_format<PairWeights>(shared_bytes);
  allow_format<HalfWeights>(shared_bytes);
  allow_format<CodeWeights<WeightType::kInt8>>(shared_bytes);
  allow_format<CodeWeights<WeightType::kFloat8>>(shared_bytes);
  allow_format<HalfByteWeights>(shared_bytes);
  allow_format<PublishedWeights<CodeType::kUnsigned4>>(shared_bytes);
  allow_format<PublishedWeights<CodeType::kUnsigned8>>(shared_bytes);
  allow_format<PublishedWeights<CodeType::kE4m3>>(shared_bytes);
  allow_format<PublishedWeights<CodeType::kE2m1>>(shared_bytes);
  allow_format<QuarterWeights>(shared_bytes);
}

bool matmul_wide(StreamView stream, const MatmulShape& shape, WeightType type,
                 const MmaArguments& arguments) {
  if (!arguments.wide || arguments.slices.k() % 8 != 0) return false;
  MmaArguments a = arguments;
  if (a.rows > kRowsOfAllExperts) a.chosen = {};  // it reads whole matrices
  switch (type) {
    case WeightType::kInt8:
      return launch_wide<CodeWeights<WeightType::kInt8>>(stream, shape, a);
    case WeightType::kFloat8:
      return launch_wide<CodeWeights<WeightType::kFloat8>>(stream, shape, a);
    case WeightType::kInt4:
      return launch_wide<HalfByteWeights>(stream, shape, a);
    case WeightType::kFloat16:
      return launch_wide<HalfWeights>(stream, shape, a);
    case WeightType::kCodes:
      return launch_codes(stream, shape, a);
    default:
      return launch_wide<PairWeights>(stream, shape, a);
  }
}

}  // namespace outrider::cuda
