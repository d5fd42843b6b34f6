// What may arrive. The codec lets in what is well-formed: counts within limits, enumerations in range, floats
// that are finite (codec.h). These functions say which values of the fields make sense, and a receiver asks
// them before it does anything with a message: its sender may be broken, or lie. What depends on what the
// receiver holds, such as the round under way, it checks where it holds it. Messages that are not here have
// no field that could harm: each value is looked up, compared, or clamped where it is added up.
//
// kMalformed: names the message, the field and its value.
#pragma once

#include <limits>
#include <string>
#include <string_view>

#include "base/status.h"
#include "comm/messages.h"

namespace outrider {

// What the receiver of a message can take.
struct MessageLimits {
  int64_t vocab_size = std::numeric_limits<int32_t>::max();   // of the target: ids are below it
  int64_t max_context = std::numeric_limits<int32_t>::max();  // positions
  int64_t state_width = 0;                                    // of StateRows; 0: it takes none
};

// The shortest sparse row of q has room for one token of any vocabulary.
constexpr int32_t kLeastRowBytes = 16;

// To a draft worker.
Status check(const Welcome& welcome);
Status check(const Open& open, const MessageLimits& limits);
Status check(const Propose& propose, const MessageLimits& limits);
Status check(const StateRows& rows, const MessageLimits& limits);
// Checks a message of a job to a draft worker that it has let in, by the check above for its type; types
// without one are OK.
Status check_from_job(const Message& message, const MessageLimits& limits);
// `rows`: that a transfer may have.
Status check(const StateTransfer& transfer, int32_t rows);

// To a target rank. A plan is checked by itself here; what it says of open sequences the rank checks.
Status check(const StepPlan& plan, const MessageLimits& limits);
// `rows`: that a transfer may have.
Status check(const QTransfer& transfer, int32_t rows);

}  // namespace outrider
