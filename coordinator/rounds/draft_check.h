// Whether a Draft may enter a StepPlan. Every wrong one is dropped and counted by reason; none can change a
// result.
#pragma once

#include <array>
#include <optional>

#include "comm/messages/drafting.h"
#include "coordinator/metrics/metrics.h"

namespace outrider {

// The request for a draft, and the coordinator's state of the sequence.
struct DraftExpectation {
  Epoch epoch;
  Round round;
  Position base;  // C
  uint64_t prefix_hash = 0;
  int32_t gamma = 0;
  int64_t tree_nodes = 0;       // that a tree may have; 0: chains only
  bool equal_siblings = false;  // of a tree: they are drawn independently
  // The q kinds of the first and the last request for this draft. The kind changes after a loss, while an
  // answer to the first request may be under way.
  std::array<QKind, 2> q_kinds{};
  int32_t vocab_size = 0;  // of the target
};

// Empty: usable. Shorter than gamma, or empty, is usable.
std::optional<DropReason> check_draft(const Draft& draft, const DraftExpectation& expected);

}  // namespace outrider
