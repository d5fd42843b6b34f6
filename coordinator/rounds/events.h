// Inputs and outputs of the protocol machine. Both are plain values: the machine does no I/O.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "comm/messages.h"
#include "comm/transport.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/request/request.h"

namespace outrider {

// ---- events ---------------------------------------------------------------------------------------------

// The caller gives ids and never repeats one.
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
  TrustZone zone = TrustZone::kInside;
  size_t bytes = 0;  // of its frame, if it came in one
};
// The transport or the membership declared this peer lost.
struct PeerLost {
  PeerId peer;
  std::string why;
};
// The transport refused a Send, because the peer is slow or no frame can hold the message. The event returns
// it.
struct SendFailed {
  PeerId peer;
  Message message;
  std::string why;
};
// Time passed: next_deadline() is reached.
struct Tick {};

// The loop did not run for this long beyond the usual time of a turn. Messages of that time are still unread,
// so no peer is late because of it (base/absence.h).
struct Away {
  Clock::duration missed{};
};

using Event = std::variant<Submit, Cancel, MessageReceived, PeerLost, SendFailed, Tick, Away>;

// ---- actions --------------------------------------------------------------------------------------------

struct Send {
  PeerId to;
  Message message;
};

// Tokens that are final now, and the text that they allow to show. Text may trail behind the ids
// (incomplete characters, beginnings of stop strings); the last Emit of a request brings the remaining text.
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
  int32_t tested = 0;                  // draft tokens compared with the target's; of a tree one per level
  std::vector<int32_t> parents, path;  // of a tree
  int32_t accepted_count = 0;
  int32_t emitted = 0;
  bool eos = false;  // the draft ended at an end-of-sequence token
  bool own = false;  // only the target may draft for it
  // Margins of the drafted tokens (PlaceRule), where the worker sent them. Workers send them with
  // ProtocolOptions::record_guesses.
  std::vector<float> margins;
  // Whether the worker's guess for the token before `base` was right. Set if requested
  // (ProtocolOptions::record_guesses) and known.
  std::optional<bool> guess_was_right;
  bool guess_was_eos = false;
  int64_t draft_ns = 0;    // busy time of the worker, ingest included
  int64_t prepare_ns = 0;  // busy time of the worker ahead of this round, since its last draft
  int64_t target_ns = 0;   // busy time of the leader, commit included
  int64_t commit_ns = 0;
  Clock::time_point begun_at, decided_at, planned_at, done_at;
};

// A target group is gone. Its work continues in the other groups, or in the next group to join.
struct TargetLost {
  int32_t group = 0;
  Status why;
  int64_t handed_over = 0;            // requests
  std::chrono::milliseconds wait{0};  // not 0: no group is left, and requests wait this long for one
};

// A target group or a draft worker joined, left in an orderly way, was lost, or gets no requests for a while.
// For the log.
struct MemberChange {
  enum class Kind : uint8_t { kJoined, kLeft, kLost, kRests } kind = Kind::kJoined;
  PeerId peer;
  std::optional<int32_t> group;  // of a target group, its number; empty: a draft worker
  std::string about;             // its model if it joined, else the reason
  bool only_prefills = false;    // the group
};

using Action = std::variant<Send, Emit, Finish, RoundDone, TargetLost, MemberChange>;

}  // namespace outrider
