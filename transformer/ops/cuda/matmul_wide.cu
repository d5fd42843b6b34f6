// Products for more than 16 tokens, and for 9 to 16 of more columns than shared memory holds. A block
// multiplies eight row tiles of weights with up to 128 tokens, and all of its warps are at the same columns,
// so that what one fetched serves several of them: weights and activations pass through one ring in shared
// memory by asynchronous copies. There are two ways to add slices. A block that computes all of them keeps
// finished ones on a stack as deep as the tree, and adds two of one depth as soon as it has both. Where such
// blocks are too few for the device, a block computes one slice and the slices meet in memory. The bits are
// those of matmul.cu either way.
#include "base/cuda_device.h"
#include "transformer/ops/cuda/cuda_ops.h"
#include "transformer/ops/cuda/gates.h"
#include "transformer/ops/cuda/mma_meeting.h"
#include "transformer/ops/cuda/wide_ring.h"

namespace outrider::cuda {
namespace {

using namespace wide;

template <class Form>
using Sums = float[Form::kTiles][Form::kColumns][4];

template <class Form, class Use>
__device__ __forceinline__ void for_each_sum(Sums<Form>& sums, Use use) {
  OUTRIDER_UNROLL
  for (int r = 0; r < Form::kTiles; ++r) OUTRIDER_UNROLL
  for (int c = 0; c < Form::kColumns; ++c) OUTRIDER_UNROLL
  for (int i = 0; i < 4; ++i) use(sums[r][c][i], (r * Form::kColumns + c) * 4 + i);
}

// The finished slices that wait for their neighbours: level 0 for one, 1 for two, 2 for four of them.
template <class Form>
struct SliceStack {
  float* levels = nullptr;  // this thread's
  Sums<Form> fours = {};

  __device__ __forceinline__ float* level(int l) const { return levels + l * Form::kSums * kThreads; }
  // Slice s is finished: with every neighbour that waits for it, it becomes twice as long.
  __device__ __forceinline__ void add(int s, int count, Sums<Form>& sums) {
    OUTRIDER_UNROLL
    for (int l = 0; l < kSharedLevels; ++l)
      if ((s >> l & 1) == 1 && (l == 0 || (s & 1) == 1))
        for_each_sum<Form>(sums, [&](float& sum, int i) { sum = level(l)[i * kThreads] + sum; });
    if (s == 7)
      for_each_sum<Form>(sums, [&](float& sum, int i) {
        sum = fours[i / 4 / Form::kColumns][i / 4 % Form::kColumns][i % 4] + sum;
      });
    if (s + 1 == count) return;
    if (s == 3)
      for_each_sum<Form>(sums, [&](float& sum, int i) {
        fours[i / 4 / Form::kColumns][i / 4 % Form::kColumns][i % 4] = sum;
      });
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

  BlockRing<Form> ring{.a = a,
                       .stages = shared_memory<uint4>(),
                       .first_tile = static_cast<int>(blockIdx.y) * kBlockTiles,
                       .first_token = static_cast<int>(blockIdx.x) * Form::kTokens,
                       .last_slice = kIsStacked ? a.slices.count : first_slice + 1,
                       .slice = first_slice};
  const int first_tile = ring.first_tile + warp_tile, first_token = ring.first_token + warp_token;
  ring.skip_empty_slices();
  {  // weights are nobody's output, so their first copies need not wait
    BlockRing<Form> ahead = ring;
    OUTRIDER_UNROLL
    for (int stage = 0; stage < Form::kStages - 1; ++stage) {
      if (ahead.is_over()) break;
      ahead.fetch_weights(stage);
      ahead.advance();
    }
  }
  await_inputs();
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
  if constexpr (kIsStacked)
    stack.levels = reinterpret_cast<float*>(ring.at(Form::kStages)) + static_cast<int>(threadIdx.x);
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
                                 warp_tile * Form::kTileScales + lane;
      const auto multiply_step = [&](int i) {
        uint32_t b[Form::kColumns][Weights::kInputs];
        load_tokens<Form>(tokens, i, b);
        OUTRIDER_UNROLL
        for (int r = 0; r < Form::kTiles; ++r)
          Weights::template multiply<Form::kColumns>(
              a.form, words + r * Form::kTileWords + i * Weights::kWords * kLanes,
              scales + r * Form::kTileScales, b, sums[r]);
      };
      if (steps - step >= Form::kSteps) {  // without a branch, so that reads run ahead of products
        OUTRIDER_UNROLL_BY(Form::kAhead)
        for (int i = 0; i < Form::kSteps; ++i) multiply_step(i);
      } else {
        for (int i = 0; step + i < steps; ++i) multiply_step(i);
      }
      stage = stage + 1 == Form::kStages ? 0 : stage + 1;
    }
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
        const int tile = first_tile + four / Form::kColumns, token = token_of(four % Form::kColumns, i);
        if (token >= a.rows || tile >= a.tiles) continue;
        const float* const gate = stack.level(0) + (four * 4 + i) * kThreads;
        store_gated(a, token, tile, row_of(i), gate[0], gate[2 * kThreads]);
      }
      return;
    }
  OUTRIDER_UNROLL
  for (int r = 0; r < Form::kTiles; ++r) OUTRIDER_UNROLL
  for (int c = 0; c < Form::kColumns; ++c) OUTRIDER_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int tile = first_tile + r, token = token_of(c, i), n = tile * kTileRows + row_of(i);
    if (token >= a.rows || tile >= a.tiles) continue;
    if constexpr (!kIsStacked)
      meeting.at(first_slice, token, tile)[row_of(i)] = sums[r][c][i];
    else if (n < a.n)
      a.out[token * a.out_stride + n] = sums[r][c][i];
  }
  if constexpr (!kIsStacked) {
    // A counter for each warp of a group: there are as many row tiles as warps. Warps without an output have
    // nothing to meet for.
    if (first_tile >= a.tiles || first_token >= a.rows) return;
    const int counter = static_cast<int>(blockIdx.x * kSplitTiles) + first_tile + warp % Form::kTokenWarps;
    if (!meeting.is_last(counter, a.slices.count)) return;
    const int end = first_token + Form::kWarpTokens < a.rows ? first_token + Form::kWarpTokens : a.rows;
    for (int r = 0; r < Form::kTiles && first_tile + r < a.tiles; ++r)
      combine_tile(a, meeting, first_tile + r, first_token, end);
  }
}

// Codes are half of the bytes of bf16 or less, so 64 tokens reuse what is fetched as often as 128 do there;
// and a group's sums leave no registers for more.
template <class Weights>
constexpr bool kHas128 = Weights::kStepColumns == kStep;

// Stages as far as shared memory goes: beside the stack of 128 x 128 sums there is room for three, 64 KB of
// copies under way; else at least 48 KB are.
template <class Weights>
using Stacked128 = WideForm<Weights, Slicing::kOnStack, 4, 4, 4, 3, 1>;
template <class Weights>
using Stacked64 = WideForm<Weights, Slicing::kOnStack, 2, 4, 2, 6, 1>;
template <class Weights>
using Stacked32 = WideForm<Weights, Slicing::kOnStack, 1, 4, 1, 4, 2>;
template <class Weights>
using Stacked16 = WideForm<Weights, Slicing::kOnStack, 1, 2, 1, 5, 2>;
template <class Weights>
using Split64 =
    WideForm<Weights, Slicing::kOverBlocks, 2, 4, 2, kHas128<Weights> ? 4 : 8, kHas128<Weights> ? 2 : 1>;
template <class Weights>
using Split32 = WideForm<Weights, Slicing::kOverBlocks, 1, 4, 1, 5, 2>;

template <class Form>
void launch_form(StreamView stream, const MatmulShape& shape, const MmaArguments& a) {
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
}

template <class Weights>
void launch_by_rule(StreamView stream, const MatmulShape& shape, const MmaArguments& a) {
  const int64_t floats = split_floats(a.rows, a.n);
  const bool may_split = a.rows <= kSplitRows && floats > 0 && floats <= shape.split.floats;
  const WideProduct form =
      choose_wide_product(a.rows, a.n, a.slices.count, shape.multiprocessors, kHas128<Weights>, may_split);
  if (form.is_over_blocks)
    return form.rows == 32 ? launch_form<Split32<Weights>>(stream, shape, a)
                           : launch_form<Split64<Weights>>(stream, shape, a);
  if constexpr (kHas128<Weights>)
    if (form.rows == 128) return launch_form<Stacked128<Weights>>(stream, shape, a);
  if (form.rows == kFewRows) return launch_form<Stacked16<Weights>>(stream, shape, a);
  return form.rows == 32 ? launch_form<Stacked32<Weights>>(stream, shape, a)
                         : launch_form<Stacked64<Weights>>(stream, shape, a);
}

// Calls use(form) with each of them.
template <class Weights, class Use>
void for_each_form(Use use) {
  if constexpr (kHas128<Weights>) use(Stacked128<Weights>());
  use(Stacked64<Weights>());
  use(Stacked32<Weights>());
  use(Stacked16<Weights>());
  use(Split64<Weights>());
  use(Split32<Weights>());
}

template <class Weights>
bool fits(int64_t shared_bytes) {
  bool all = true;
  for_each_form<Weights>(
      [&](auto form) { all &= decltype(form)::kSharedBytes <= static_cast<size_t>(shared_bytes); });
  return all;
}

template <class Weights>
bool launch_wide(StreamView stream, const MatmulShape& shape, const MmaArguments& a) {
  if (!fits<Weights>(shape.shared_bytes)) return false;
  launch_by_rule<Weights>(stream, shape, a);
  return true;
}

template <class Weights>
void allow_wide(int64_t shared_bytes) {
  if (!fits<Weights>(shared_bytes)) return;
  for_each_form<Weights>([](auto form) {
    using Form = decltype(form);
    allow_shared_bytes(&multiply_tiles<Form>, Form::kSharedBytes);
  });
}

}  // namespace

void prepare_matmul_wide(int64_t shared_bytes) {
  allow_wide<PairWeights>(shared_bytes);
  allow_wide<CodeWeights<WeightType::kInt8>>(shared_bytes);
  allow_wide<CodeWeights<WeightType::kFloat8>>(shared_bytes);
  allow_wide<HalfByteWeights>(shared_bytes);
}

bool matmul_wide(StreamView stream, const MatmulShape& shape, WeightType type, const MmaArguments& a) {
  if (!shape.wide_form || !a.wide || a.slices.k() % 8 != 0) return false;
  if (a.chosen.counts && shape.rows <= kRowsOfAllExperts) return false;  // it reads whole matrices
  switch (type) {
    case WeightType::kInt8:
      return launch_wide<CodeWeights<WeightType::kInt8>>(stream, shape, a);
    case WeightType::kFloat8:
      return launch_wide<CodeWeights<WeightType::kFloat8>>(stream, shape, a);
    case WeightType::kInt4:
      return launch_wide<HalfByteWeights>(stream, shape, a);
    case WeightType::kBFloat16:
      return launch_wide<PairWeights>(stream, shape, a);
    default:  // fp16, and codes of published checkpoints
      return false;
  }
}

}  // namespace outrider::cuda
