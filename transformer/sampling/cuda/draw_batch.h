// Rows that draw one token after another, as kernels see them: a RowBatch of one rank in which every row is a
// request of its own. What the next step needs of a token stays on the device.
#pragma once

#include "transformer/sampling/cuda/row_batch.h"

namespace outrider::cuda {

// Sent by the host; each step leaves what the next one needs.
struct DrawState {
  int32_t step = 0;     // tokens drawn since it was sent
  int32_t token = 0;    // the last of them
  int32_t weighs = 0;   // draws from the weights that are kept; else the best token is taken
  int32_t first_q = 0;  // row of DrawBatch::q for the first step; the next follow
};

struct Drawn {
  uint64_t q_sum = 0;                         // of the weights kept
  uint64_t mass = 0, moment = 0, weight = 0;  // RowMoments, where they were asked for
  int32_t id = -1;                            // -1: the row held NaN or +inf, or nothing above -inf
};

struct DrawBatch : RowBatch {
  RowInput* inputs = nullptr;           // RowBatch::row
  CountedToken* all_counted = nullptr;  // RowBatch::counted
  DrawState* state = nullptr;           // [rows]
  uint16_t* q = nullptr;                // [*, width] short weights (base/short_weight.h)
  uint64_t* q_parts = nullptr;          // [rows, kMaxParts]: their sums
  uint64_t* moment_parts = nullptr;     // [rows, kMaxParts, 2]: of mass and moment
  Drawn* drawn = nullptr;               // [steps, drawn_stride]
  int32_t drawn_stride = 0;
};

// After the rows were processed. The weights of rows that draw from them.
void weigh_rows(StreamView stream, const DrawBatch& batch);
// mass and moment of every row.
void measure_rows(StreamView stream, const DrawBatch& batch);
// drawn of this step, and what the next step needs. `measured`: measure_rows came before.
void draw_rows(StreamView stream, const DrawBatch& batch, bool measured);
// Before a forward pass: tokens[row] is what the row drew last, and positions[row] where that stands.
void feed_rows(StreamView stream, const DrawBatch& batch, int32_t* tokens, int32_t* positions);

}  // namespace outrider::cuda
