// What the protocol machine is told, and what it wants done. Both are plain values: the machine does no I/O.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "comm/messages.h"
#include "comm/transport.h"
#include "coordinator/metrics.h"
#include "coordinator/request.h"

namespace outrider {

// ---- events ---------------------------------------------------------------------------------------------

// Ids are given by the caller and never used twice.
struct Submit {
  SequenceId id;
  Request request;
};
struct Cancel {
  SequenceId id;
};
struct MessageReceived {
  PeerId peer;
  Message message;
  Door door = Door::kInside;
  size_t bytes = 0;  // of its frame, where it came in one
};
// The transport or the membership gave this peer up.
struct PeerLost {
  PeerId peer;
  std::string why;
};
// A Send that the transport refused, because the peer is slow or no frame can hold it; the message comes
// back.
struct SendFailed {
  PeerId peer;
  Message message;
  std::string why;
};
// Time passed: next_deadline() is here.
struct Tick {};

// The loop did not look for this long beyond what a turn takes: what came meanwhile is unread, so nobody is
// the later for it (base/absence.h).
struct Away {
  Clock::duration missed{};
};

using Event = std::variant<Submit, Cancel, MessageReceived, PeerLost, SendFailed, Tick, Away>;

// ---- actions --------------------------------------------------------------------------------------------

struct Send {
  PeerId to;
  Message message;
};

// Tokens that are final now, and the text that may be shown because of them. Text may trail behind the ids
// (incomplete characters, beginnings of stop strings); the last Emit of a request brings the rest.
struct Emit {
  SequenceId request;
  std::vector<TokenId> ids;
  std::vector<PositionLogprobs> logprobs;  // one per id when asked for
  std::string text;
  std::vector<PositionLogprobs> prompt_logprobs;  // of the prompt's next tokens, its first one left out
};

struct Finish {
  SequenceId request;
  FinishReason reason = FinishReason::kStop;
  Status error;  // not ok exactly when reason is kError
  RequestMetrics metrics;
  std::string stop = {};  // the stop text before which it ended; empty: it ended otherwise
};

// One verified round, for traces and logs.
struct RoundDone {
  SequenceId request;
  Round round;
  Position base;
  int32_t group = 0;                   // the target group that verified it
  uint64_t step = 0;                   // of that group
  int32_t gamma = 0;                   // asked of the worker
  int32_t drafted = 0;                 // verified; of a tree, its nodes
  int32_t tested = 0;                  // of them compared with the target's tokens; of a tree a level each
  std::vector<int32_t> parents, path;  // of a tree
  int32_t accepted_count = 0;
  int32_t emitted = 0;
  bool eos = false;  // the draft ended at an end-of-sequence token
  bool own = false;  // the target drafts for it, if anybody does
  // Whether the worker would have drafted the token before `base`, and whether that ends a text; when asked
  // for (ProtocolOptions::record_guesses) and known.
  std::optional<bool> guess_was_right;
  bool guess_was_eos = false;
  int64_t draft_ns = 0;    // busy time of the worker, ingest included
  int64_t prepare_ns = 0;  // busy time of the worker ahead of this round, since its last draft
  int64_t target_ns = 0;   // busy time of the leader, commit included
  int64_t commit_ns = 0;
  Clock::time_point begun_at, decided_at, planned_at, done_at;
};

// A target group is gone. What it had under way goes on in those that are there, or in the next one.
struct TargetLost {
  int32_t group = 0;
  Status why;
  int64_t handed_over = 0;            // requests
  std::chrono::milliseconds wait{0};  // not 0: none is there, and requests wait so long for one
};

using Action = std::variant<Send, Emit, Finish, RoundDone, TargetLost>;

}  // namespace outrider
