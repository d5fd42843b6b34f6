// Who is alive. A pure machine: signs of life and the time in, changes out; it neither sends nor waits. The
// coordinator keeps one for its draft workers. Losing a worker changes nothing else here: its sequences are
// the coordinator's affair.
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
  std::chrono::milliseconds heartbeat_interval{500};  // how often a worker shows it is alive
  int missed_heartbeats = 3;                          // so many intervals of silence and it is lost
  size_t max_members = 1024;                          // lost ones included, until somebody needs the place
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

  // A Hello: the only way in. Joined if the peer is new; rejoined if it was lost or this is another life of
  // it. Empty if nothing changed, or if every place is taken by a living member.
  std::optional<MembershipChange> hello(PeerId peer, Generation generation, Time now);
  // Any other message. Rejoined if the peer was lost. A peer that never said hello is not a member.
  std::optional<MembershipChange> heard(PeerId peer, Time now);
  // Members silent for too long, each reported once, the most silent first.
  std::vector<MembershipChange> expire(Time now);
  // Moves every deadline by `missed`, a time in which this process did not run and could hear no member.
  void move(Time::duration missed);
  // It said goodbye, or was thrown out.
  void forget(PeerId peer) { members_.erase(peer); }

  // When expire() may next have something to say; empty if nobody is alive.
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
