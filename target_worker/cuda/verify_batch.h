// One pass of verification as kernels see it. Rows are logits rows in the order of the requests.
#pragma once

#include "kernels/sampling/cuda/row_batch.h"
#include "target_worker/cuda/row_mask.h"

namespace outrider::cuda {

// How the verdict of a request comes about.
enum class Decision : int32_t {
  kMatchBest,   // greedy, invariant: the best token of every row
  kMatchDrawn,  // naive, and plain decoding under rules with a q: a draw from every row
  kToken,
  kBlock,
};

// The test at a row: a draft token and this rank's slice of its distribution q. `sparse`: q lists local ids;
// every id below q_rest_end that is not listed has the common rest weight.
struct TestInput {
  int32_t draft = -1;  // the token; -1 in a request's last row
  int32_t sparse = 0;
  int32_t q_rest_end = 0;
  int32_t q_count = 0;
  int64_t q_weights = 0, q_ids = 0;   // offsets in VerifyBatch::words
  const uint16_t* q_short = nullptr;  // not null: the weights are here, in 16 bits
  double q_rest = 0;
  double q_sum = 1, q_draft = 0;  // q_draft: probability of `draft`
};

struct Verdict {
  int32_t failed = 0;  // VerdictStatus::kNonFinite
  int32_t accepted = 0;
  int32_t next = -1;
  int32_t fallback = 0;  // the recovery row had no mass
};

// A draw: the first token of this rank's slice whose cumulative weight exceeds `target`.
struct Draw {
  uint64_t target = 0;
  double ratio = 1;
  int32_t here = 0;  // the token is on this rank
  int32_t residual = 0;
};

struct VerifyBatch : RowBatch {
  // Sent by the host.
  const TestInput* test = nullptr;      // [rows]
  const Decision* decision = nullptr;   // [requests]
  const int32_t* drawn_rows = nullptr;  // whose weights are summed
  int32_t drawn_count = 0;
  const uint32_t* words = nullptr;  // ids and weights of q
  const RowMask* masks = nullptr;   // of the rows that have one
  int32_t mask_count = 0;
  const uint32_t* mask_words = nullptr;

  // Working memory; [rows] unless said otherwise.
  uint64_t* residual_parts = nullptr;  // [rows, kMaxParts]
  uint64_t* sums = nullptr;            // [rows, 2]: Z and W of the draft token
  uint64_t* all_sums = nullptr;        // [ranks, rows, 2]
  double* ratios = nullptr;            // P at the row, under the block rule
  int32_t* residual = nullptr;         // the row's recovery weights are wanted
  uint64_t* residual_sums = nullptr;
  uint64_t* all_residual_sums = nullptr;  // [ranks, rows]
  int32_t* accepted = nullptr;            // [requests]
  int32_t* fallback = nullptr;            // [requests]
  Draw* draws = nullptr;
  uint64_t* chosen = nullptr;   // token + 1; 0: another rank's
  Verdict* verdicts = nullptr;  // [requests]
};

}  // namespace outrider::cuda
