// How a block of a wide product (matmul_wide.cu) is cut, and how it keeps copies of weights and activations
// under way. Included there only.
#pragma once

#include "base/cuda_device.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/mma_ring.h"
#include "kernels/cuda/mma_weights.h"
#include "kernels/cuda/product_rule.h"

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
  // Tiles of tokens whose activations, and whose sums of a group of codes, are in registers at a time, and
  // steps that registers let the reads run ahead.
  static constexpr bool kIsTight = kSums >= 64;
  static constexpr bool kHasGroups = Weights::kStepColumns != kStep;
  static constexpr int kChunk =
      kColumns < 4 || (Weights::kIsWidened && kIsTight) || (kHasGroups && kBlocks > 1) ? 2 : 4;
  static constexpr int kChunks = kColumns / kChunk;
  static constexpr int kAhead = !kIsTight ? kSteps : Weights::kIsWidened ? 1 : 2;
  // The lists of chosen experts exist only for passes with this few rows.
  static constexpr bool kMayChoose = kTokens <= kRowsOfAllExperts;
  // How many elements of the stack's third level are in shared memory; the others are in registers, as far as
  // there are enough.
  static constexpr int kSharedFours = !kHasGroups   ? 0
                                      : kIsTight    ? (Weights::kWords == 1 ? 32 : 20)
                                      : kBlocks > 1 ? kSums / 2
                                                    : 0;
  // Behind the stages: the stack, and sums of a stage's activations for minima, by unit and token.
  static constexpr int kStackFloats =
      kSlicing == Slicing::kOnStack ? (kSharedLevels * kSums + kSharedFours) * kThreads : 0;
  static constexpr int kInputFloats = Weights::kMayHaveMinimum ? 2 * kTokens : 0;
  static constexpr size_t kSharedBytes =
      kStages * kStageWords * size_t{16} + (kStackFloats + kInputFloats) * sizeof(float);
};

// Position of a token's 16-byte word: pairs of words swap places from token to token, so that the reads of a
// warp hit all banks.
__device__ __forceinline__ int place_of_word(int token, int word) {
  const int change = token % 2 * 2 + token / 2 % 2;
  return (word / 2 ^ change) * 2 + word % 2;
}

// Calls use(i) for this thread's share of kCount things.
template <int kCount, class Use>
__device__ __forceinline__ void for_each_own(Use use) {
  OUTRIDER_UNROLL
  for (int j = 0; j < (kCount + kThreads - 1) / kThreads; ++j) {
    const int i = j * kThreads + static_cast<int>(threadIdx.x);
    if (kCount % kThreads == 0 || i < kCount) use(i);
  }
}

// The copies of a block, stage by stage. Every thread copies the same places of each stage.
template <class Form>
struct BlockRing {
  using Weights = typename Form::Weights;
  const MmaArguments& a;
  uint4* stages = nullptr;
  int tiles = 0;  // that there are
  int first_tile = 0, first_token = 0, last_slice = 0;
  int slice = 0, step = 0;  // to be fetched next

  __device__ __forceinline__ uint4* at(int stage) const { return stages + stage * Form::kStageWords; }
  __device__ __forceinline__ int steps_of(int s) const {
    if constexpr (Form::kMayChoose) return a.step_count(s);
    return a.slices.first_step[s + 1] - a.slices.first_step[s];
  }
  __device__ __forceinline__ int tile_at(int index) const {
    if constexpr (Form::kMayChoose) return a.tile_at(index);
    return index;
  }
  // The step of the slice at this index.
  __device__ __forceinline__ int step_at(int index) const {
    if constexpr (Form::kMayChoose) return a.step_at(slice, index);
    return index;
  }
  // Where row tile t of the block lies for step i of the stage. Tiles behind the last one read the last one
  // again, and their results are not used.
  __device__ __forceinline__ int64_t place_of(int t, int i) const {
    const int tile = tile_at(first_tile + t < tiles ? first_tile + t : tiles - 1);
    return tile * static_cast<int64_t>(a.slices.steps()) + a.slices.first_step[slice] + step_at(step + i);
  }
  __device__ __forceinline__ void fetch_weights(int stage) const {
    constexpr int kStepWords = Weights::kWords * kLanes;
    const int left = steps_of(slice) - step;
    uint4* const words = at(stage);
    for_each_own<kBlockTiles * Form::kTileWords>([&](int i) {
      const int t = i / Form::kTileWords, w = i % Form::kTileWords;
      if (w / kStepWords < left)
        copy_async_16(words + i, a.weights + place_of(t, w / kStepWords) * kStepWords + w % kStepWords);
    });
    if constexpr (Weights::kScaleWords > 0) {
      auto* const scales = reinterpret_cast<uint32_t*>(words + Form::kScalesAt);
      for_each_own<kBlockTiles * Form::kTileScales>([&](int i) {
        const int t = i / Form::kTileScales, lane = i % kLanes;
        const int w = Weights::kSharesWords ? lane % 4 : i % Form::kTileScales / kLanes;
        const int count = Weights::kSharesWords ? a.form.words : Weights::kScaleWords;
        if (!Weights::kSharesWords || w < count)
          copy_async_4(scales + i, a.scales + (place_of(t, 0) * 8 + lane / 4) * count + w);
      });
    }
  }
  // Tokens behind the last are copies of it.
  __device__ __forceinline__ void fetch_tokens(int stage) const {
    const int word = static_cast<int>(threadIdx.x) % kTokenWords, i = word * 8 / Weights::kStepColumns;
    const bool is_step = !Form::kMayChoose || step + i < steps_of(slice);
    const int column = a.slices.begin[slice] + (is_step ? step_at(step + i) : 0) * Weights::kStepColumns +
                       word * 8 % Weights::kStepColumns;
    const bool inside = is_step && column < a.slices.begin[slice + 1];
    uint4* const tokens = at(stage) + Form::kTokensAt;
    for_each_own<Form::kTokens * kTokenWords>([&](int j) {
      const int t = j / kTokenWords;
      const int token = first_token + t < a.rows ? first_token + t : a.rows - 1;
      uint4* const to = tokens + t * kTokenWords + place_of_word(t, word);
      if (inside)
        copy_async_16(to, a.x + token * a.x_stride + column);
      else
        *to = uint4{};
    });
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

// Operand b of one step, for kColumns tiles of tokens.
template <class Weights, int kColumns>
__device__ __forceinline__ void load_tokens(const uint4* tokens, int step,
                                            uint32_t (&b)[kColumns][Weights::kInputs]) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  OUTRIDER_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    const int token = c * 8 + lane / 4;
    const uint4* const from = tokens + token * kTokenWords;
    if constexpr (Weights::kNeighbours == 4) {
      OUTRIDER_UNROLL
      for (int i = 0; i < Weights::kInputs / 2; ++i) {
        const int word = step * (Weights::kStepColumns / 8) + i * 2 + lane % 4 / 2;
        const uint2 four = reinterpret_cast<const uint2*>(from + place_of_word(token, word))[lane % 2];
        b[c][i * 2] = four.x;
        b[c][i * 2 + 1] = four.y;
      }
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

// The sums of a stage's activations for minima, [2][kTokens]: each warp makes those of some tiles of tokens.
// `tokens`: the block's.
template <class Form>
__device__ __forceinline__ void sum_stage(const uint4* tokens, float* input_sums) {
  using Weights = typename Form::Weights;
  const int warp = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  for (int c = warp; c < Form::kTokens / 8; c += kWarps) {
    uint32_t b[1][Weights::kInputs];
    load_tokens<Weights, 1>(tokens + c * 8 * kTokenWords, 0, b);
    typename Weights::template InputSums<1> inputs;
    Weights::template sum_inputs<1>(b, inputs);
    if (lane >= 4) continue;  // the rows of the result are alike
    OUTRIDER_UNROLL
    for (int half = 0; half < 2; ++half) OUTRIDER_UNROLL
    for (int i = 0; i < 2; ++i) input_sums[half * Form::kTokens + c * 8 + lane * 2 + i] = inputs[half][0][i];
  }
}

// Those of the lane's tokens, from tile `first` of the block's tokens on.
template <class Form, int kColumns>
__device__ __forceinline__ void load_sums(const float* input_sums, int first,
                                          float (&inputs)[2][kColumns][2]) {
  OUTRIDER_UNROLL
  for (int half = 0; half < 2; ++half) OUTRIDER_UNROLL
  for (int c = 0; c < kColumns; ++c) OUTRIDER_UNROLL
  for (int i = 0; i < 2; ++i)
    inputs[half][c][i] =
        input_sums[half * Form::kTokens + (first + c) * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i];
}

}  // namespace outrider::cuda::wide
