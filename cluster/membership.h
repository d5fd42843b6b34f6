// Tracks which workers are alive. A pure machine: heartbeats and the time in, changes out; it neither sends
// nor waits. The coordinator keeps one for its draft workers. The loss of a worker changes nothing else here;
// its sequences are handled by the coordinator.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include "base/types.h"
#include "comm/transport.h"

namespace outrider {

struct MembershipOptions {
  std::chrono::milliseconds heartbeat_interval{500};  // the interval of a worker's heartbeats
  int missed_heartbeats = 3;                          // a worker is lost after this many silent intervals
  size_t max_members = 1024;                          // includes lost ones, dropped to make room
};

struct MembershipChange {
  enum class Kind { kJoined, kLost, kRejoined };
  Kind kind = Kind::kJoined;
  PeerId peer;
  Generation generation;  // of the life that joined or was lost
  bool operator==(const MembershipChange&) const = default;
};

class Membership {
 public:
  using Time = Clock::time_point;
  explicit Membership(const MembershipOptions& options = {}) : options_(options) {}

  // A Hello, the only way to join. Joined: the peer is new; rejoined: it was lost, or this is another life.
  // Empty: nothing changed, or there is no room because all members are alive.
  std::optional<MembershipChange> hello(PeerId peer, Generation generation, Time now);
  // Any other message. Rejoined: the peer was lost. A peer without a Hello is not a member.
  std::optional<MembershipChange> heard(PeerId peer, Time now);
  // Members silent for too long, each reported once, the most silent first.
  std::vector<MembershipChange> expire(Time now);
  // Moves every deadline by `missed`, a time in which this process did not run and could receive no message.
  void move(Time::duration missed);
  // The peer said goodbye, or was expelled.
  void forget(PeerId peer) { members_.erase(peer); }

  // The earliest time at which expire() may report a change; empty if no member is alive.
  std::optional<Time> next_deadline() const;
  bool is_alive(PeerId peer) const;

 private:
  struct Member {
    Generation generation;
    Time last_heard;
    bool alive = true;
  };
  Time deadline_of(const Member& member) const {
    return member.last_heard + options_.heartbeat_interval * options_.missed_heartbeats;
  }
  bool make_room();

  const MembershipOptions options_;
  std::map<PeerId, Member> members_;
};

}  // namespace outrider
