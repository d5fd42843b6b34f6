// What a round of the draft model reads next. Internal to the model drafter.
#pragma once

#include <span>

#include "draft_worker/drafted_sequence.h"
#include "transformer/model/model.h"

namespace outrider {

// At most `rows` of the committed tokens whose KV is missing, then the last drafted token. The last committed
// one only when something is to be drafted; a text longer than the model's context is not read further.
std::span<const TokenId> next_inputs(const DraftedSequence& s, const Model& model, int64_t rows);
// The slice of a pass that reads them: one row of logits where a token is drawn, two where the one before it
// is guessed, too.
BatchSlice next_slice(const DraftedSequence& s, const Model& model, int64_t rows, int64_t logit_rows);
// Whether nothing is left to read or to draw.
bool is_done(DraftedSequence& s, const Model& model);

}  // namespace outrider
