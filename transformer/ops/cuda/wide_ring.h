// How a block of a wide product (matmul_wide.cu) is cut, and how it keeps copies of weights and activations
// under way. Included there only.
#pragma once

#include "base/cuda_device.h"
#include "transformer/ops/cuda/cuda_ops.h"
#include "transformer/ops/cuda/mma_ring.h"
#include "transformer/ops/cuda/mma_weights.h"
#include "transformer/ops/cuda/product_rule.h"

namespace outrider::cuda::wide {

constexpr int kLanes = static_cast<int>(kWarp);
constexpr int kWarps = 8, kThreads = kWarps * kLanes;
constexpr int kStageColumns = 64;                       // of the contraction, in a stage of the ring
constexpr int kTokenWords = kStageColumns / 8;          // of 16 bytes, of a token in a stage
constexpr int kBlockTiles = kWideTileRows / kTileRows;  // row tiles of a block
constexpr int kSharedLevels = 2;                        // of the stack; the third is in registers
static_assert(kMaxSlices == 8, "the stack has a level for each halving");

enum class Slicing { kOnStack, kOverBlocks };

// A warp has kTiles_ row tiles and kColumns_ tiles of 8 tokens; the warps of a block lie kTokenWarps side by
// side along the tokens. kBlocks_: that a multiprocessor holds.
template <class Weights_, Slicing kSlicing_, int kTiles_, int kColumns_, int kTokenWarps_, int kStages_,
          int kBlocks_>
struct WideForm {
  using Weights = Weights_;
  static constexpr Slicing kSlicing = kSlicing_;
  static constexpr int kTiles = kTiles_, kColumns = kColumns_, kTokenWarps = kTokenWarps_;
  static constexpr int kStages = kStages_, kBlocks = kBlocks_;
  static_assert(kWarps / kTokenWarps * kTiles == kBlockTiles);
  static constexpr int kWarpTokens = 8 * kColumns, kTokens = kTokenWarps * kWarpTokens;
  static constexpr int kSteps = kStageColumns / Weights::kStepColumns;        // of a stage
  static constexpr int kTileWords = kSteps * Weights::kWords * kLanes;        // of 16 bytes, in a stage
  static constexpr int kTileScales = kSteps * Weights::kScaleWords * kLanes;  // of 4 bytes
  // A stage: weights, tokens, scales.
  static constexpr int kTokensAt = kBlockTiles * kTileWords, kScalesAt = kTokensAt + kTokens * kTokenWords;
  static constexpr int kStageWords = kScalesAt + kBlockTiles * kTileScales / 4;  // of 16 bytes
  static constexpr int kSums = kTiles * kColumns * 4;                            // of a thread
  static constexpr int kAhead = kSums < 64 ? kSteps : 2;  // steps that registers let the reads run ahead
  static constexpr int kStackFloats = kSlicing == Slicing::kOnStack ? kSharedLevels * kSums * kThreads : 0;
  static constexpr size_t kSharedBytes = kStages * kStageWords * size_t{16} + kStackFloats * sizeof(float);
};

// Where the words of 16 bytes of a token lie: pairs of them change places from token to token, so that the
// reads of a warp hit all banks.
__device__ __forceinline__ int place_of_word(int token, int word) {
  const int change = token % 2 * 2 + token / 2 % 2;
  return (word / 2 ^ change) * 2 + word % 2;
}

// The copies of a block, stage by stage. Every thread copies the same places of each stage.
template <class Form>
struct BlockRing {
  using Weights = typename Form::Weights;
  const MmaArguments& a;
  uint4* stages = nullptr;
  int first_tile = 0, first_token = 0, last_slice = 0;
  int slice = 0, step = 0;  // to be fetched next

  __device__ __forceinline__ uint4* at(int stage) const { return stages + stage * Form::kStageWords; }
  __device__ __forceinline__ int steps_of(int s) const {
    return a.slices.first_step[s + 1] - a.slices.first_step[s];
  }
  // Rows and tokens behind the last are copies of it; nobody reads what becomes of them.
  __device__ __forceinline__ void fetch_weights(int stage) const {
    const int left = steps_of(slice) - step;
    const int64_t all_steps = a.slices.steps(), from_step = a.slices.first_step[slice] + step;
    uint4* const words = at(stage);
    OUTRIDER_UNROLL
    for (int i = static_cast<int>(threadIdx.x); i < kBlockTiles * Form::kTileWords; i += kThreads) {
      const int t = i / Form::kTileWords, w = i % Form::kTileWords;
      const int tile = first_tile + t < a.tiles ? first_tile + t : a.tiles - 1;
      if (w / (Weights::kWords * kLanes) < left)
        copy_async_16(words + i, a.weights + (tile * all_steps + from_step) * (Weights::kWords * kLanes) + w);
    }
    if constexpr (Weights::kScaleWords > 0) {
      auto* const scales = reinterpret_cast<uint32_t*>(words + Form::kScalesAt);
      OUTRIDER_UNROLL
      for (int i = static_cast<int>(threadIdx.x); i < kBlockTiles * Form::kTileScales; i += kThreads) {
        const int t = i / Form::kTileScales, w = i % Form::kTileScales / kLanes, lane = i % kLanes;
        const int tile = first_tile + t < a.tiles ? first_tile + t : a.tiles - 1;
        const int64_t from = (tile * all_steps + from_step) * 8 + lane / 4;
        copy_async_4(scales + i, a.scales + from * Weights::kScaleWords + w);
      }
    }
  }
  __device__ __forceinline__ void fetch_tokens(int stage) const {
    const int word = static_cast<int>(threadIdx.x) % kTokenWords;
    const int column = a.slices.begin[slice] + step * Weights::kStepColumns + word * 8;
    const bool inside = column < a.slices.begin[slice + 1];
    uint4* const tokens = at(stage) + Form::kTokensAt;
    OUTRIDER_UNROLL
    for (int i = static_cast<int>(threadIdx.x); i < Form::kTokens * kTokenWords; i += kThreads) {
      const int t = i / kTokenWords;
      const int token = first_token + t < a.rows ? first_token + t : a.rows - 1;
      uint4* const to = tokens + t * kTokenWords + place_of_word(t, word);
      if (inside)
        copy_async_16(to, a.x + token * a.x_stride + column);
      else
        *to = uint4{};
    }
  }
  __device__ __forceinline__ void skip_empty_slices() {
    while (slice < last_slice && step >= steps_of(slice)) {
      ++slice;
      step = 0;
    }
  }
  __device__ __forceinline__ bool is_over() const { return slice >= last_slice; }
  __device__ __forceinline__ void advance() {
    step += Form::kSteps;
    skip_empty_slices();
  }
};

// Operand b of one step, of the warp's tokens.
template <class Form>
__device__ __forceinline__ void load_tokens(const uint4* tokens, int step,
                                            uint32_t (&b)[Form::kColumns][Form::Weights::kInputs]) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  OUTRIDER_UNROLL
  for (int c = 0; c < Form::kColumns; ++c) {
    const int token = c * 8 + lane / 4;
    const uint4* const from = tokens + token * kTokenWords;
    if constexpr (Form::Weights::kStepColumns == kStep) {  // four neighbours
      const auto* const halves =
          reinterpret_cast<const uint2*>(from + place_of_word(token, step * 2 + lane % 4 / 2));
      const uint2 four = halves[lane % 2];
      b[c][0] = four.x;
      b[c][1] = four.y;
    } else {  // eight neighbours of each half
      OUTRIDER_UNROLL
      for (int half = 0; half < 2; ++half) {
        const uint4 eight = from[place_of_word(token, half * 4 + lane % 4)];
        b[c][half * 4] = eight.x;
        b[c][half * 4 + 1] = eight.y;
        b[c][half * 4 + 2] = eight.z;
        b[c][half * 4 + 3] = eight.w;
      }
    }
  }
}

}  // namespace outrider::cuda::wide
