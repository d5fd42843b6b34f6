// A draft distribution in few bytes. The likeliest tokens are listed, each with a small number of units of
// probability; all other tokens share the remainder equally. The draft token is drawn from this row itself,
// so compression lowers acceptance (by the total variation distance to the model's own distribution) but
// never changes the output distribution.
#pragma once

#include <cstdint>
#include <vector>

#include "base/q_row.h"

namespace outrider {

// Turns a dense row, whose largest weight is 2^31, into a sparse one that takes at most `row_bytes` on the
// wire (comm/q_row_fields.h), or into the best token alone if that is too little. The unit is the smallest
// that fits; a token is listed from half a unit on, because what it costs most bytes for is its id. Where
// filters removed most of the vocabulary nothing is left for the others. A function of its arguments alone;
// `scratch` is reused.
void compact_row(int64_t row_bytes, QRow& row, std::vector<uint32_t>& scratch);

}  // namespace outrider
