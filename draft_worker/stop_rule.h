// Whether a draft ends before its full length (algorithms.md 5.5). The coordinator chooses the rule, Propose
// carries it. A token that was drawn is always sent: under the p/q rules withholding one biases the output.
#pragma once

#include <span>

#include "comm/messages.h"

namespace outrider {

// The draft model's own view of one position: the distribution after penalties, temperature and filters.
struct DraftConfidence {
  double entropy = 0;      // nats
  double probability = 0;  // of the token that was drawn
};
// `processed` is a row as DraftSampler leaves it: scaled logits, -inf where a filter removed a token.
DraftConfidence confidence_of(std::span<const float> processed, TokenId drawn);

bool stops_before(const StopRule& rule, double entropy);
bool stops_after(const StopRule& rule, double probability);

}  // namespace outrider
