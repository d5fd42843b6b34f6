// The number of draft workers that pays (outrider_draft_workers_wanted), by the cost model of the draft
// length policies. Pure.
//
// B_g sequences decode in target group g, M in all groups. With w workers m = min(M, w * room) sequences have
// drafts, and the busiest worker has n = ceil(m / w). The others decode plainly in the same passes. With
// drafts of c tokens, a round of group g takes
//
//   T_g(w, c) = V_g(B_g + c * m_g) + x + s * c + f * c * (n - 1)   and   T_g(w, 0) = V_g(B_g)
//
// where V_g(rows) is the time of a target pass, x of the messages, s of a draft token, and f of a token of a
// further sequence of the same worker. The worst case is assumed, that all groups ask at the same time.
// Tokens are accepted with chance a, so a draft gives E(c) = 1 + a + ... + a^c tokens (Leviathan et al. 2023,
// eq. 1), and the groups make
//
//   R(w) = sum over g of max over c of (B_g - m_g + m_g * E(c)) / T_g(w, c)   tokens a second.
//
// wanted = the w in 0..M with the largest R(w) / 1.05^w, the smallest of equals. So a worker is wanted if it
// makes decoding at least 5 % faster, on average over the workers that are added together.
#pragma once

#include <cstdint>
#include <span>

#include "coordinator/costs/cost_model.h"

namespace outrider {

// The decoding sequences of one target group for which draft workers draft.
struct DraftedBatch {
  int32_t sequences = 0;            // B_g
  int64_t context = 0;              // summed over them
  const CostModel* cost = nullptr;  // V_g and x; null: no sequences
  DraftCost worker;                 // s and f
  double acceptance = 0;            // a
  int32_t gamma_max = 0;            // of c
};

inline constexpr double kWorkerGain = 0.05;

// `room`: sequences that a worker takes. While a batch has unknown costs of drafts the answer is 1: one
// worker suffices to measure them.
int32_t workers_wanted(std::span<const DraftedBatch> batches, int32_t room);

}  // namespace outrider
