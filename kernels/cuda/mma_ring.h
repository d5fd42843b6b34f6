// Shared by the kernels of matrix products: their arguments, and how a warp keeps copies of weights in
// flight. Included by kernels only.
#pragma once

#include "base/cuda_device.h"
#include "kernels/cuda/chosen_work.h"
#include "kernels/cuda/code_form.h"
#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/cuda_ops.h"

namespace outrider::cuda {

struct MmaArguments {
  const uint4* weights = nullptr;    // tiles, see tiled_offset, code_offset and half_byte_offset
  const uint32_t* scales = nullptr;  // of codes: pairs of rows, see scale_offset
  CodeForm form;                     // of codes of published checkpoints
  Slices slices;
  int32_t n = 0;
  int32_t tiles = 0;  // of 16 rows
  const bf16* x = nullptr;
  int64_t x_stride = 0;
  int32_t rows = 0;  // tokens
  float* out = nullptr;
  int64_t out_stride = 0;
  bool wide = false;  // every slice of every token starts at 16 bytes
  ChosenWork chosen;
  GatedOutput gated;

  // Tiles and steps are counted among the chosen ones; tile_at() and step_at() map such an index to the
  // matrix.
  __device__ __forceinline__ int tile_count() const { return chosen.tiles ? chosen.counts[0] : tiles; }
  __device__ __forceinline__ int tile_at(int index) const {
    return chosen.tiles ? chosen.tiles[index] : index;
  }
  __device__ __forceinline__ int step_count(int slice) const {
    return chosen.steps ? chosen.counts[1 + slice] : slices.first_step[slice + 1] - slices.first_step[slice];
  }
  __device__ __forceinline__ int step_at(int slice, int index) const {
    return chosen.steps ? chosen.steps[slices.first_step[slice] + index] : index;
  }
};

// Elements from one token to the next in staged activations of `columns` columns.
template <class Weights>
OUTRIDER_SHARED_CODE constexpr int64_t staged_stride(int64_t columns) {
  return (columns + 63) / 64 * 64 + Weights::kRowPadding;
}

// The copies of one warp: its slice of tile after tile, kStages - 1 steps ahead of what is multiplied. Each
// lane copies and reads its own bytes of every tile, so no barrier is needed.
template <class Form>
struct WeightRing {
  static constexpr int kLanes = static_cast<int>(kWarp), kWords = Form::Weights::kWords;

  uint4* words = nullptr;             // of this lane: [stage][row tile][kWords], a warp's lanes side by side
  uint32_t* scales = nullptr;         // of this lane: [stage][row tile][kScaleWords]
  const uint4* from_words = nullptr;  // of this lane and slice, in the first tile
  const uint32_t* from_scales = nullptr;  // the same
  const int32_t* tile_list = nullptr;     // where only some are chosen, as in ChosenWork
  const int32_t* step_list = nullptr;     // the same, of this slice
  int64_t tile_steps = 0;                 // from one row tile to the next
  int tiles = 0, steps = 0, stride = 0;
  int tile = 0, step = 0;                        // to be fetched next
  int scale_words = Form::Weights::kScaleWords;  // of a pair of rows and step
  bool has_word = true;                          // this lane copies one of the words that four lanes share

  __device__ __forceinline__ uint4* words_at(int stage, int r) const {
    return words + (stage * Form::kTiles + r) * kWords * kLanes;
  }
  __device__ __forceinline__ uint32_t* scales_at(int stage, int r) const {
    return scales + (stage * Form::kTiles + r) * Form::Weights::kScaleWords * kLanes;
  }
  __device__ __forceinline__ void fetch(int stage) {
    if (tile < tiles && steps > 0) {
      OUTRIDER_UNROLL
      for (int r = 0; r < Form::kTiles; ++r) {
        if (tile + r >= tiles) continue;
        const int64_t at =
            (tile_list ? tile_list[tile + r] : tile + r) * tile_steps + (step_list ? step_list[step] : step);
        OUTRIDER_UNROLL
        for (int w = 0; w < kWords; ++w)
          copy_async_16(words_at(stage, r) + w * kLanes, from_words + (at * kWords + w) * kLanes);
        OUTRIDER_UNROLL
        for (int w = 0; w < Form::Weights::kScaleWords; ++w)
          if (has_word)
            copy_async_4(scales_at(stage, r) + w * kLanes, from_scales + at * 8 * scale_words + w);
      }
      if (++step == steps) {
        step = 0;
        tile += stride;
      }
    }
    copy_async_commit();
  }
};

// Waits until all steps of this warp but the latest kPending have arrived, including those copied by other
// lanes where lanes share words.
template <class Form, int kPending>
__device__ __forceinline__ void await_step() {
  copy_async_wait<kPending>();
  if constexpr (Form::Weights::kSharesWords) sync_warp();
}

// The ring of warp `warp` in shared memory that begins with `words` and `scales`, from tile `tile` on.
template <class Form>
__device__ __forceinline__ WeightRing<Form> ring_of_warp(const MmaArguments& a, uint4* words,
                                                         uint32_t* scales, int slice, int tile, int stride) {
  using Weights = typename Form::Weights;
  constexpr int kLanes = static_cast<int>(kWarp), kWarpRing = Form::kStages * Form::kTiles * kLanes;
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t first_step = a.slices.first_step[slice];
  const int scale_words = Weights::kSharesWords ? a.form.words : Weights::kScaleWords;
  const int word = Weights::kSharesWords ? lane % 4 : 0;
  return {.words = words + warp * kWarpRing * Weights::kWords + lane,
          .scales = scales + warp * kWarpRing * Weights::kScaleWords + lane,
          .from_words = a.weights + first_step * Weights::kWords * kLanes + lane,
          .from_scales = a.scales + (first_step * 8 + lane / 4) * scale_words + word,
          .tile_list = a.chosen.tiles,
          .step_list = a.chosen.steps ? a.chosen.steps + first_step : nullptr,
          .tile_steps = a.slices.steps(),
          .tiles = a.tile_count(),
          .steps = a.step_count(slice),
          .stride = stride,
          .tile = tile,
          .scale_words = scale_words,
          .has_word = !Weights::kSharesWords || word < scale_words};
}

// Products of at most kFewRows tokens with few rows of weights: matmul_split.cu. False where it does not
// take them.
bool matmul_split(StreamView stream, const MatmulShape& shape, WeightType type,
                  const MmaArguments& arguments);
void prepare_matmul_split(int64_t shared_bytes);

// Products of more tokens, or of 9 to 16 whose activations do not fit: matmul_wide.cu. The same.
bool matmul_wide(StreamView stream, const MatmulShape& shape, WeightType type, const MmaArguments& arguments);
void prepare_matmul_wide(int64_t shared_bytes);

}  // namespace outrider::cuda
