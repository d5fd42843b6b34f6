// How sure a draft model is of one position: what rules that end a draft early look at.
#pragma once

#include <cstdint>
#include <span>

#include "base/types.h"

namespace outrider {

// How sure a draft was, by the distribution after penalties, temperature and filters.
struct DraftConfidence {
  double entropy = 0;      // nats
  double probability = 0;  // of the token that was drawn
  double margin = 0;       // of the best token over the second, where a rule asks for it (comm/messages.h)
};

// Sums of integers over a row's tokens (token_math.h), so that host and device agree on them.
struct RowMoments {
  uint64_t mass = 0;    // of fixed_weight
  uint64_t moment = 0;  // of entropy_moment
  uint64_t drawn = 0;   // fixed_weight of the token that was drawn
};
// H = ln Z + sum of (max - l) e^(l - max) / Z.
DraftConfidence confidence_of(const RowMoments& moments);

// `processed` is a row as DraftSampler leaves it: scaled logits, -inf where a filter removed a token.
DraftConfidence confidence_of(std::span<const float> processed, TokenId drawn);

}  // namespace outrider
