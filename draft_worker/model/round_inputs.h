// Input tokens of the next pass of a round of the draft model. Internal to the model drafter.
#pragma once

#include <span>

#include "draft_worker/model/drafted_sequence.h"
#include "model/model.h"

namespace outrider {

// At most `rows` input tokens: committed tokens without KV, then the last drafted token. The last committed
// token is included only if something is to be drafted; tokens beyond the model's context are left out.
std::span<const TokenId> next_inputs(const DraftedSequence& s, const Model& model, int64_t rows);
// The slice of a pass with these tokens: one row of logits where a token is drawn, two where the token before
// it is guessed, too.
BatchSlice next_slice(const DraftedSequence& s, const Model& model, int64_t rows, int64_t logit_rows);
// Whether there is neither a token to prefill nor one to draw.
bool is_done(DraftedSequence& s, const Model& model);

}  // namespace outrider
