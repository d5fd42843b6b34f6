// A row of logits of which the best tokens are asked for, under a match rule: what may stand behind a node of
// a tree.
#pragma once

#include "kernels/sampling/draft_sampler.h"

namespace outrider {

struct TokenLook {
  DraftStep step;
  int64_t row = 0;    // of the rows of logits
  int32_t count = 1;  // tokens that are wanted
};

}  // namespace outrider
