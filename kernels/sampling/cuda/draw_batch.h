// Rows that draw one token after another, as kernels see them: a RowBatch of one rank in which every row is a
// request of its own. What the next step needs of a token stays on the device.
#pragma once

#include "kernels/sampling/cuda/row_batch.h"

namespace outrider::cuda {

// How a row of q is kept in two bytes a token, or compact (compact_row.h): ids, then weights, four bytes
// each.
enum class KeptQ : int32_t { kNone, kDense, kCompact };

// Sent by the host; each step leaves what the next one needs.
struct DrawState {
  int32_t step = 0;           // tokens drawn since it was sent
  int32_t token = 0;          // the last drawn token
  KeptQ kept = KeptQ::kNone;  // what the token is drawn from; kNone: the best token is taken
  int32_t most_entries = 0;   // compact: a row's
  int64_t budget_bits = 0;    // compact
  int64_t first_q = 0;        // in DrawBatch::q, in bytes: the row of q of the first step,
  int64_t q_stride = 0;       // and how far the next ones are apart
};

// A row of q but for its weights.
struct QHead {
  uint64_t sum = 0;
  int32_t entries = 0;  // compact
  uint32_t rest = 0;
  uint32_t id_end = 0;
  uint32_t drawn = 0;  // dense: the weight of the token drawn from it
};

struct Drawn {
  QHead q;
  uint64_t mass = 0, moment = 0, weight = 0;  // RowMoments, where they were asked for
  int32_t id = -1;                            // -1: the row held NaN or +inf, or nothing above -inf
};

struct DrawBatch : RowBatch {
  RowInput* inputs = nullptr;           // RowBatch::row
  CountedToken* all_counted = nullptr;  // RowBatch::counted
  DrawState* state = nullptr;           // [rows]
  std::byte* q = nullptr;
  uint64_t* q_parts = nullptr;       // [rows, kMaxParts]: sums of weights
  uint64_t* moment_parts = nullptr;  // [rows, kMaxParts, 2]: of mass and moment
  Drawn* drawn = nullptr;            // [steps, drawn_stride]
  int32_t drawn_stride = 0;

  // Compact rows: their list and their workspace.
  const int32_t* compact_rows = nullptr;
  int32_t compact_count = 0;
  const RowInput* selections = nullptr;  // [rows]: the cut of a row's ranks
  float* ranks = nullptr;                // [rows, width]: numbers in the order of the weights
  uint64_t* zeros = nullptr;             // [rows, kMaxParts]: tokens without weight
  uint32_t* entries = nullptr;           // [rows, 2, most_entries]: the best tokens' ids, then their weights
  int32_t most_entries = 0;
  static constexpr int kUnitLooks = 32;
  uint8_t* unit_looks = nullptr;  // [rows, kUnitLooks]: whether a row in this unit is short enough
  struct Choice {
    QHead q;
    int32_t id = -1;
  };
  Choice* compact = nullptr;  // [rows]: what came of it
};

// After the rows were processed. The weights of rows that draw from them, where they are dense.
void weigh_rows(StreamView stream, const DrawBatch& batch);
// mass and moment of every row.
void measure_rows(StreamView stream, const DrawBatch& batch);
// drawn of this step, and what the next step needs. `measured`: measure_rows came before.
void draw_rows(StreamView stream, const DrawBatch& batch, bool measured);
// Before a forward pass: tokens[row] is what the row drew last, and positions[row] where that stands.
void feed_rows(StreamView stream, const DrawBatch& batch, int32_t* tokens, int32_t* positions);

// Compact rows: their ranks, of which a cut (row_steps.h) leaves the best most_entries; then the row, and the
// draw from it.
void rank_weights(StreamView stream, const DrawBatch& batch);
void draw_compact_rows(StreamView stream, const DrawBatch& batch);

}  // namespace outrider::cuda
