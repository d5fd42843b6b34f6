// Rows of logits on their way to a token as kernels see them: what the host sends, and the device memory that
// the kernels work in. Verification and drafting add to it what they need besides. A request is some
// neighbouring rows; a task is one row in one kernel's list.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cuda.h"
#include "kernels/sampling/token_math.h"

namespace outrider::cuda {

// A row's slice of the vocabulary is read in parts of this many tokens, one block of threads each. A row has
// at most 256 parts: 2^19 tokens, the most whose fixed-point weights fit 64 bits.
constexpr int kPartTokens = 2048;
constexpr int kMaxParts = 256;

struct RowInput {
  int64_t logits_row = 0;
  uint64_t seed = 0;
  int32_t request = 0;
  int32_t position = 0;  // of the token that this row yields
  uint32_t round = 0;
  int32_t drafted = 0;  // how many tokens of the request's draft stand before it
  float scale = 1;      // 1 / temperature
  int32_t top_k = 0;
  float top_p = 1, min_p = 0;
  int32_t noisy = 0;  // the invariant rule
  int32_t filtered = 0;
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
  int32_t until = 0x7fffffff;  // rows of this position and those behind it have none
};

struct RequestInput {
  int32_t first_row = 0;
  int32_t gamma = 0;  // its rows are [first_row, first_row + gamma]
  int32_t penalised = 0;
  PenaltyFactors factors;
  int32_t first_count = 0, counts = 0;  // in RowBatch::counted: committed tokens, this rank's
  int32_t first_drafted = 0;            // the drafted tokens with their committed counts
  int32_t first_bias = 0, biases = 0;   // in RowBatch::biases
};

// State of a search for a cut in a row, most significant byte of the logit's key first. There is one state
// for every number of known bytes, so that a state is not overwritten while it is still read.
constexpr int kKeyBytes = 4, kKeyBins = 256, kSearchStates = kKeyBytes + 1;
struct Search {
  uint64_t need = 0;  // what the kept prefix must still reach: mass or count
  uint32_t prefix = 0;
  int32_t keep_all = 0;  // there are fewer than top_k tokens
};

struct RowBatch {
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
  const int32_t* top_k_rows = nullptr;
  const int32_t* top_p_rows = nullptr;
  const int32_t* min_p_rows = nullptr;
  const int32_t* noisy_rows = nullptr;  // filtered ones of the invariant rule
  int32_t top_k_count = 0, top_p_count = 0, min_p_count = 0, noisy_count = 0;

  // Working memory; [rows] unless said otherwise.
  uint64_t* part_values = nullptr;  // [rows, kMaxParts]: best tokens, ties, then masses of W
  uint64_t* best = nullptr;         // RankedToken
  float* max = nullptr;
  int32_t* finite_rows = nullptr;  // [requests]: in front of the first that is not
  Search* searches = nullptr;      // [kSearchStates, rows]
  uint64_t* bins = nullptr;        // [kKeyBytes, rows, kKeyBins], zeros between searches
  uint64_t* ties = nullptr;        // this rank's tokens at the cut
  uint64_t* all_ties = nullptr;    // [ranks, rows]
};

}  // namespace outrider::cuda
