// Checks on the field values of received messages. The codec accepts a message that is well-formed: counts
// within limits, enumerations in range, finite floats (codec.h). These functions check that the values make
// sense; a receiver calls them before it uses a message, because the sender may be broken or hostile. Checks
// that need the receiver's state, such as the current round, stay in the receiver. Messages that are missing
// here have no field that could harm: each value is looked up, compared, or clamped where it is added up.
//
// kMalformed: names the message, the field and its value.
#pragma once

#include <limits>
#include <string>
#include <string_view>

#include "base/status.h"
#include "comm/messages.h"

namespace outrider {

// The receiver's limits for the fields of a message.
struct MessageLimits {
  int64_t vocab_size = std::numeric_limits<int32_t>::max();   // of the target: ids are below it
  int64_t max_context = std::numeric_limits<int32_t>::max();  // positions
  int64_t hidden_state_width = 0;                             // of HiddenStateRows; 0: it takes none
};

// The shortest sparse row of q has room for one token of any vocabulary.
constexpr int32_t kMinRowBytes = 16;

// Messages to a draft worker.
Status check(const Welcome& welcome);
Status check(const Open& open, const MessageLimits& limits);
Status check(const Propose& propose, const MessageLimits& limits);
Status check(const HiddenStateRows& rows, const MessageLimits& limits);
// Checks a message to a draft worker that was admitted, with the check above for its type; types without a
// check are OK.
Status check_from_job(const Message& message, const MessageLimits& limits);
// `rows`: the limit of a transfer.
Status check(const HiddenStateTransfer& transfer, int32_t rows);

// Messages to a target rank. A plan is checked on its own here; the rank checks it against its open
// sequences.
Status check(const StepPlan& plan, const MessageLimits& limits);
// `rows`: the limit of a transfer.
Status check(const QTransfer& transfer, int32_t rows);

}  // namespace outrider
