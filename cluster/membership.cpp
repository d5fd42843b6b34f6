#include "cluster/membership.h"

#include <algorithm>

namespace outrider {

using Kind = MembershipChange::Kind;

std::optional<MembershipChange> Membership::hello(PeerId peer, Generation generation, Time now) {
  const auto known = members_.find(peer);
  if (known == members_.end()) {
    if (!make_room()) return std::nullopt;
    members_.emplace(peer, Member{.generation = generation, .last_heard = now});
    return MembershipChange{Kind::kJoined, peer, generation};
  }
  Member& member = known->second;
  const bool same_life = member.alive && member.generation == generation;
  member = {.generation = generation, .last_heard = std::max(member.last_heard, now)};
  if (same_life) return std::nullopt;
  return MembershipChange{Kind::kRejoined, peer, generation};
}

std::optional<MembershipChange> Membership::heard(PeerId peer, Time now) {
  const auto known = members_.find(peer);
  if (known == members_.end()) return std::nullopt;
  return hello(peer, known->second.generation, now);
}

std::vector<MembershipChange> Membership::expire(Time now) {
  std::vector<std::pair<Time, MembershipChange>> lost;
  for (auto& [peer, member] : members_) {
    if (!member.alive || deadline_of(member) > now) continue;
    member.alive = false;
    lost.push_back({member.last_heard, {Kind::kLost, peer, member.generation}});
  }
  std::stable_sort(lost.begin(), lost.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<MembershipChange> changes;
  for (const auto& [last_heard, change] : lost) changes.push_back(change);
  return changes;
}

void Membership::move(Time::duration missed) {
  for (auto& [peer, member] : members_)
    if (member.alive) member.last_heard += missed;
}

std::optional<Membership::Time> Membership::next_deadline() const {
  std::optional<Time> next;
  for (const auto& [peer, member] : members_)
    if (member.alive) next = std::min(next.value_or(Time::max()), deadline_of(member));
  return next;
}

bool Membership::is_alive(PeerId peer) const {
  const auto known = members_.find(peer);
  return known != members_.end() && known->second.alive;
}

// Drops the member that was lost longest ago.
bool Membership::make_room() {
  if (members_.size() < options_.max_members) return true;
  auto oldest = members_.end();
  for (auto it = members_.begin(); it != members_.end(); ++it)
    if (!it->second.alive && (oldest == members_.end() || it->second.last_heard < oldest->second.last_heard))
      oldest = it;
  if (oldest == members_.end()) return false;
  members_.erase(oldest);
  return true;
}

}  // namespace outrider
