// Every message between roles. Control messages are small and pass through the coordinator, which makes all
// decisions; draft workers and target ranks execute. comm/codec.h turns these structs into bounded frames and
// back.
#pragma once

#include <iterator>
#include <variant>

#include "comm/messages/drafting.h"
#include "comm/messages/joining.h"
#include "comm/messages/row_transfers.h"
#include "comm/messages/verifying.h"

namespace outrider {

// The order is the wire's type number: append only.
using Message = std::variant<Hello, Welcome, Heartbeat, Failure, Shutdown, Open, Close, Propose, Draft,
                             StepPlan, StepResult, Resync, QSlice, LinkOffer, QTransfer, HiddenStateRows,
                             Unload, HiddenStateTransfer, KvBlocks>;

constexpr const char* kMessageNames[] = {
    "hello",      "welcome",    "heartbeat", "failure",        "shutdown", "open",    "close",
    "propose",    "draft",      "step_plan", "step_result",    "resync",   "q_slice", "link_offer",
    "q_transfer", "state_rows", "rest",      "state_transfer", "kv_blocks"};
static_assert(std::size(kMessageNames) == std::variant_size_v<Message>);

}  // namespace outrider
