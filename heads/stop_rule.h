// Whether a draft ends before its full length. The coordinator chooses the rule, Propose
// carries it. A token that was drawn is always sent: under the p/q rules withholding one biases the output.
#pragma once

#include "comm/messages/draft_forms.h"

namespace outrider {

// Whether one of the next two ever says so.
bool may_stop(const StopRule& rule);
// By the entropy of the distribution that the next token would be drawn from
// (kernels/sampling/confidence.h).
bool stops_before(const StopRule& rule, double entropy);
// By the probability of the token that was drawn last.
bool stops_after(const StopRule& rule, double probability);

}  // namespace outrider
