// Shared by the kernels of matrix products: their arguments, and how a warp keeps copies of weights in
// flight. Included by kernels only.
#pragma once

#include "base/cuda_device.h"
#include "kernels/cuda/chosen_work.h"
#include "kernels/cuda/code_form.h"
#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/mma_weights.h"

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
// lane copies and reads its own words of every tile; scales are shared by the lanes of a warp.
template <class Form>
struct WeightRing {
  using Weights = typename Form::Weights;
  static constexpr int kLanes = static_cast<int>(kWarp);
  static constexpr int kWordBytes = Weights::kWords * kLanes * 16;  // of a row tile and step
  static constexpr int kTileBytes = kWordBytes + Weights::kScaleBytes;
  static constexpr int kStageBytes = Form::kTiles * kTileBytes;
  static constexpr int kBytes = Form::kStages * kStageBytes;  // of one warp

  unsigned char* ring = nullptr;      // of this warp, at this lane's word
  const uint4* from_words = nullptr;  // of this lane and slice, in the first tile
  const uint4* from_scales = nullptr;
  const int32_t* tile_list = nullptr;  // where only some are chosen, as in ChosenWork
  const int32_t* step_list = nullptr;  // the same, of this slice
  int64_t tile_steps = 0;              // from one row tile to the next
  int tiles = 0, steps = 0, stride = 0;
  int scale_copies = 0;     // of 16 bytes, of a step's scales
  bool has_scales = false;  // this lane copies 16 bytes of scales
  int lane_scales = 0;      // bytes from the lane's word to the scales of its rows
  int tile = 0, step = 0;   // of the run that is fetched

  // Steps that follow each other in memory are a run: a slice of a tile, or one step where steps are chosen.
  int run = 0;  // its steps that are not fetched yet; 0: all is fetched
  const uint4* next_words[Form::kTiles] = {};
  const uint4* next_scales[Form::kTiles] = {};
  int read = 0;  // where the stage that is multiplied begins in the ring

  __device__ __forceinline__ const uint4* words_at(int r) const {
    return reinterpret_cast<const uint4*>(ring + read + r * kTileBytes);
  }
  __device__ __forceinline__ const uint32_t* scales_at(int r) const {
    return reinterpret_cast<const uint32_t*>(ring + read + r * kTileBytes + lane_scales);
  }
  __device__ __forceinline__ void begin_run() {
    const bool is_there = tile < tiles && steps > 0;
    run = !is_there ? 0 : step_list ? 1 : steps;
    if (!is_there) return;
    const int of_tile = step_list ? step_list[step] : 0;
    OUTRIDER_UNROLL
    for (int r = 0; r < Form::kTiles; ++r) {
      if (tile + r >= tiles) continue;
      const int64_t at = (tile_list ? tile_list[tile + r] : tile + r) * tile_steps + of_tile;
      next_words[r] = from_words + at * (kWordBytes / 16);
      if constexpr (Weights::kScaleBytes > 0) next_scales[r] = from_scales + at * scale_copies;
    }
  }
  __device__ __forceinline__ void end_run() {
    if (!step_list || ++step == steps) {
      step = 0;
      tile += stride;
    }
    begin_run();
  }
  // The next step into the stage that begins at `to`.
  __device__ __forceinline__ void fetch(int to) {
    if (run > 0) {
      OUTRIDER_UNROLL
      for (int r = 0; r < Form::kTiles; ++r) {
        if (r > 0 && tile + r >= tiles) continue;
        unsigned char* const lane_word = ring + to + r * kTileBytes;
        OUTRIDER_UNROLL
        for (int w = 0; w < Weights::kWords; ++w)
          copy_async_16(lane_word + w * kLanes * 16, next_words[r] + w * kLanes);
        next_words[r] += kWordBytes / 16;
        if constexpr (Weights::kScaleBytes > 0) {
          if (has_scales) copy_async_16(lane_word + kWordBytes, next_scales[r]);
          next_scales[r] += scale_copies;
        }
      }
      if (--run == 0) end_run();
    }
    copy_async_commit();
  }
  // The first kStages - 1 steps.
  __device__ __forceinline__ void begin() {
    begin_run();
    OUTRIDER_UNROLL_BY(1)
    for (int stage = 0; stage < Form::kStages - 1; ++stage) fetch(stage * kStageBytes);
  }
  // Waits until the step to be multiplied has arrived, including what other lanes copied.
  __device__ __forceinline__ void await() const {
    copy_async_wait<Form::kStages - 2>();
    if constexpr (Weights::kScaleBytes > 0) sync_warp();
  }
  // Behind a multiplied step: a further one is fetched into the stage that was read before it.
  __device__ __forceinline__ void advance() {
    fetch(read == 0 ? kBytes - kStageBytes : read - kStageBytes);
    read = read == kBytes - kStageBytes ? 0 : read + kStageBytes;
  }
};

// The ring of this warp in shared memory that begins with those of all warps, from tile `tile` on.
template <class Form>
__device__ __forceinline__ WeightRing<Form> ring_of_warp(const MmaArguments& a, unsigned char* rings,
                                                         int slice, int tile, int stride) {
  using Weights = typename Form::Weights;
  using Ring = WeightRing<Form>;
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t first_step = a.slices.first_step[slice];
  const int scale_words = Weights::kSharesWords ? a.form.words : Weights::kScaleWords;  // of a pair of rows
  const int scale_copies = 8 * scale_words * 4 / 16;
  return {.ring = rings + warp * Ring::kBytes + lane * 16,
          .from_words = a.weights + first_step * (Ring::kWordBytes / 16) + lane,
          .from_scales = reinterpret_cast<const uint4*>(a.scales) + first_step * scale_copies + lane,
          .tile_list = a.chosen.tiles,
          .step_list = a.chosen.steps ? a.chosen.steps + first_step : nullptr,
          .tile_steps = a.slices.steps(),
          .tiles = a.tile_count(),
          .steps = a.step_count(slice),
          .stride = stride,
          .scale_copies = scale_copies,
          .has_scales = lane < scale_copies,
          .lane_scales = Ring::kWordBytes - lane * 16 + lane / 4 * scale_words * 4,
          .tile = tile};
}

// All steps of the ring's next row tile; only of forms with one row tile at a time. `staged`: the
// activations of this lane's first token, at its columns in the slice's first step. `next_token`: elements
// from one of the lane's tokens to the next.
template <class Form>
__device__ __forceinline__ void multiply_steps(const CodeForm& form, WeightRing<Form>& ring,
                                               const bf16* staged, int next_token,
                                               float (&sum)[Form::kColumns][4]) {
  using Weights = typename Form::Weights;
  static_assert(Form::kTiles == 1);
  const bf16* from = staged;
  for (int step = 0; step < ring.steps; ++step) {
    if (ring.step_list) from = staged + ring.step_list[step] * Weights::kStepColumns;
    uint32_t b[Form::kColumns][Weights::kInputs];
    OUTRIDER_UNROLL
    for (int c = 0; c < Form::kColumns; ++c) Weights::load_staged(from + c * next_token, b[c]);
    from += Weights::kStepColumns;
    ring.await();
    Weights::template add<Form::kColumns>(
        form, Weights::template load<1>(form, ring.words_at(0), ring.scales_at(0)), b, sum);
    ring.advance();
  }
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
