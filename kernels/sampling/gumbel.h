// argmax of logit + Gumbel noise over a slice of one row, bit for bit
//   score(v) = fl32(logit(v)) + fl32(G(position, v))        with logits already multiplied by fl32(1 /
//   temperature)
// but without evaluating the noise of tokens that cannot win: see gumbel_argmax.
#pragma once

#include <cstdint>
#include <span>

#include "base/random.h"
#include "kernels/sampling/ordered_key.h"
#include "kernels/sampling/row_kernels.h"
#include "kernels/sampling/token_math.h"

namespace outrider {

// The largest score and its lowest id (none if every token is masked). `chunk_max` as scale_and_scan leaves
// it; the row holds no NaN. The result equals that of evaluating every token: chunks are visited best logit
// first, then in order; a chunk whose best token would need more noise than exists is skipped, and in the
// others only tokens whose random word reaches a bound are evaluated.
RankedToken gumbel_argmax(std::span<const float> scaled, Chunks chunks, std::span<const float> chunk_max,
                          Seed seed, Position position);

// The noise that a token of this logit must at least draw for a score that reaches `best`, for the next
// function: less by more than all rounding.
double noise_needed(float best, float logit);
// A lower bound of the smallest word whose noise is at least `noise`; 2^32 if there is none.
uint64_t least_word_for_noise(double noise);

}  // namespace outrider
