// One pass of verification as kernels see it: what the host sends in one copy, and the device memory that the
// kernels work in. Rows are logits rows in the order of the requests; a task is one row in one kernel's list.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cuda.h"
#include "transformer/sampling/token_math.h"

namespace outrider::cuda {

// A row's slice of the vocabulary is read in parts of this many tokens, one block of threads each. A row has
// at most 256 of them: 2^19 tokens, the most whose fixed-point weights fit 64 bits.
constexpr int kPartTokens = 2048;
constexpr int kMaxParts = 256;

// How the verdict of a request comes about.
enum class Decision : int32_t {
  kMatchBest,   // greedy, invariant: the best token of every row
  kMatchDrawn,  // naive, and plain decoding under rules with a q: a draw from every row
  kToken,
  kBlock,
};

struct RowInput {
  int64_t logits_row = 0;
  uint64_t seed = 0;
  int32_t request = 0;
  int32_t position = 0;  // of the token that this row yields
  uint32_t round = 0;
  int32_t draft = -1;  // the token tested at this row; -1 in a request's last row
  float scale = 1;     // 1 / temperature
  int32_t top_k = 0;
  float top_p = 1, min_p = 0;
  int32_t noisy = 0;  // the invariant rule
  int32_t filtered = 0;
  // The draft's distribution at this row: this rank's slice of the weights; `sparse`: with local ids, and
  // what every other one below q_rest_end has.
  int32_t sparse = 0;
  int32_t q_rest_end = 0;
  double q_rest = 0;
  int32_t q_count = 0;
  int64_t q_weights = 0, q_ids = 0;  // offsets in VerifyBatch::words
  double q_sum = 1, q_draft = 0;     // q_draft: probability of `draft`
};

// A committed token that penalties know, and those that this request drafts.
struct CountedToken {
  int32_t local = 0;  // index in this rank's slice; -1: another rank's
  int32_t id = 0;
  int32_t in_prompt = 0;
  int32_t in_output = 0;
};
struct Bias {
  int32_t local = 0;
  float value = 0;
};

struct RequestInput {
  Decision decision = Decision::kMatchBest;
  int32_t first_row = 0;
  int32_t gamma = 0;
  int32_t penalised = 0;
  PenaltyFactors factors;
  int32_t first_count = 0, counts = 0;  // in VerifyBatch::counted: committed tokens, this rank's
  int32_t first_drafted = 0;            // gamma of them: the drafted tokens with their committed counts
  int32_t first_bias = 0, biases = 0;   // in VerifyBatch::biases
};

struct Verdict {
  int32_t failed = 0;  // a row held NaN or +inf, or nothing above -inf
  int32_t accepted = 0;
  int32_t next = -1;
  int32_t fallback = 0;  // the recovery row had no mass
};

// Where a cut is being looked for in a row, most significant byte of the logit's key first.
struct Search {
  uint64_t need = 0;  // what the kept prefix must still reach: mass or count
  uint32_t prefix = 0;
  int32_t keep_all = 0;  // there are fewer than top_k tokens
};

// A draw: the first token of this rank's slice whose cumulative weight exceeds `target`.
struct Draw {
  uint64_t target = 0;
  double ratio = 1;
  int32_t here = 0;  // the token is on this rank
  int32_t residual = 0;
};

struct VerifyBatch {
  int32_t rows = 0, requests = 0;
  int32_t rank = 0, ranks = 1;
  int32_t width = 0;  // tokens of this rank's slice, from first_token on
  int32_t first_token = 0;
  int32_t parts = 0;
  float* logits = nullptr;  // [*, stride]
  int64_t stride = 0;

  // Sent by the host.
  const RowInput* row = nullptr;
  const RequestInput* request = nullptr;
  const CountedToken* counted = nullptr;
  const Bias* biases = nullptr;
  const int32_t* filtered_rows = nullptr;  // any filter
  const int32_t* top_k_rows = nullptr;
  const int32_t* top_p_rows = nullptr;
  const int32_t* noisy_rows = nullptr;  // filtered ones of the invariant rule
  const int32_t* drawn_rows = nullptr;  // whose weights are summed
  int32_t filtered_count = 0, top_k_count = 0, top_p_count = 0, noisy_count = 0, drawn_count = 0;
  const uint32_t* words = nullptr;  // ids and weights of q

  // Working memory; [rows] unless said otherwise.
  uint64_t* part_values = nullptr;     // [rows, kMaxParts]: best tokens, then masses of W
  uint64_t* residual_parts = nullptr;  // [rows, kMaxParts]
  uint64_t* best = nullptr;            // RankedToken
  float* max = nullptr;
  int32_t* failed = nullptr;  // [requests]
  Search* searches = nullptr;
  uint64_t* bins = nullptr;      // [rows, 256]
  uint64_t* ties = nullptr;      // this rank's tokens at the cut
  uint64_t* all_ties = nullptr;  // [ranks, rows]
  int32_t* tie_ends = nullptr;   // local index where kept ties end
  uint64_t* sums = nullptr;      // [rows, 2]: Z and W of the draft token
  uint64_t* all_sums = nullptr;  // [ranks, rows, 2]
  double* ratios = nullptr;      // P at the row, under the block rule
  int32_t* residual = nullptr;   // the row's recovery weights are wanted
  uint64_t* residual_sums = nullptr;
  uint64_t* all_residual_sums = nullptr;  // [ranks, rows]
  int32_t* accepted = nullptr;            // [requests]
  int32_t* fallback = nullptr;            // [requests]
  Draw* draws = nullptr;
  uint64_t* chosen = nullptr;   // token + 1; 0: another rank's
  Verdict* verdicts = nullptr;  // [requests]
};

}  // namespace outrider::cuda
