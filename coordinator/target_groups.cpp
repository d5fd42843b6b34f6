#include "coordinator/target_groups.h"

#include <algorithm>

namespace outrider {
namespace {

// A group is much busier than another if it runs more than 1.5 times the other's requests plus this number.
constexpr size_t kBusier = 2;
bool is_much_busier(size_t running, size_t than) { return running > than + than / 2 + kBusier; }

}  // namespace

int32_t TargetGroups::known_tokens(const LiveRequest& live, const ServingGroup& group) {
  const KvLedger& kv = group.target.kv;
  int32_t known = kv.find(live).length;
  for (const auto& [id, other] : group.requests.all())
    if (other->running()) known = std::max(known, kv.shared_prompt(live, *other));
  return known;
}

TargetGroups::TargetGroups(const ProtocolOptions& options, WorkerPool& pool, Totals& totals)
    : options_(options) {
  for (int32_t i = 0; i < std::max(1, options.target_groups); ++i)
    groups_.emplace_back(options, i, pool, totals, index_);
}

// ---- membership -----------------------------------------------------------------------------------------

size_t TargetGroups::count_here() const {
  return static_cast<size_t>(std::count_if(groups_.begin(), groups_.end(),
                                           [](const ServingGroup& group) { return group.target.is_here(); }));
}

const ServingGroup* TargetGroups::any_that_is_here() const {
  for (const ServingGroup& group : groups_)
    if (group.target.is_here() && !group.target.only_prefills()) return &group;
  return nullptr;
}

ServingGroup* TargetGroups::of(PeerId peer) {
  for (ServingGroup& group : groups_)
    if (group.target.is(peer)) return &group;
  return nullptr;
}

ServingGroup* TargetGroups::place_of(PeerId peer, const Hello& hello) {
  for (ServingGroup& group : groups_)
    if (group.target.is_here() && group.target.generation() == hello.generation) return &group;
  if (ServingGroup* known = of(peer)) return known;
  for (ServingGroup& group : groups_) {
    const bool is_free = !group.target.is_here() && is_for(group, hello.only_prefills);
    // The requests of an entry wait for a group that decodes.
    if (is_free && !(hello.only_prefills && group.requests.running() > 0)) return &group;
  }
  return nullptr;
}

std::string TargetGroups::no_place_for(bool only_prefills) const {
  const int32_t prefill = options_.prefill_groups, all = options_.target_groups;
  if (only_prefills && prefill == 0) return "there are no places for target groups that only prefill";
  if (prefill > 0)
    return fmt::format("all places of target groups that {} are taken ({})",
                       only_prefills ? "only prefill" : "decode", only_prefills ? prefill : all - prefill);
  return all == 1 ? std::string(kGroupHasJoined) : fmt::format("all {} {}", all, kGroupsHaveJoined);
}

Status TargetGroups::check(const Hello& hello, const ServingGroup& place) const {
  if (hello.model.vocab_size <= 0 || hello.model.max_context <= 1)
    return invalid_argument(fmt::format("vocabulary of {} and context of {} make no sense",
                                        hello.model.vocab_size, hello.model.max_context));
  for (const ServingGroup& other : groups_) {
    // A lost group's entry counts, too, while its requests wait for another group.
    if (other.target.is_here() ? &other == &place : other.requests.running() == 0) continue;
    const Hello& theirs = other.target.hello();
    if (hello.model.fingerprint != theirs.model.fingerprint ||
        hello.model.vocab_size != theirs.model.vocab_size ||
        hello.model.vocabulary_fingerprint != theirs.model.vocabulary_fingerprint)
      return invalid_argument(fmt::format(
          "its model '{}' is not the '{}' of the target group that is here; give all groups one --model",
          hello.model.name, theirs.model.name));
    if (hello.model.isa != theirs.model.isa)
      return invalid_argument(fmt::format(
          "it computes with {}, and the target group that is here with {}, which gives other bits; "
          "pin one for all groups with --isa",
          hello.model.isa, theirs.model.isa));
    const int32_t longest = other.target.max_context_of(hello);
    if (longest != other.target.max_context())
      return invalid_argument(fmt::format(
          "it has room for texts of {} tokens, and the target group that is here for {}; give all "
          "groups one --max-model-len and one --kv-cache-tokens",
          longest, other.target.max_context()));
    if (hello.co_located_drafter != theirs.co_located_drafter ||
        hello.head_fingerprint != theirs.head_fingerprint ||
        hello.hidden_state_head != theirs.hidden_state_head ||
        hello.hidden_state_width != theirs.hidden_state_width)
      return invalid_argument(
          "its drafter or head is not that of the target group that is here; give all groups one "
          "--draft-model");
  }
  return {};
}

// ---- requests -------------------------------------------------------------------------------------------

ServingGroup* TargetGroups::of(const LiveRequest& live) {
  return live.group < 0 ? nullptr : &groups_[static_cast<size_t>(live.group)];
}

LiveRequest* TargetGroups::find(SequenceId id) const {
  const auto at = index_.find(id.value());
  return at == index_.end() ? nullptr : at->second;
}

size_t TargetGroups::running() const {
  size_t sum = 0;
  for (const ServingGroup& group : groups_) sum += group.requests.running();
  return sum;
}

bool TargetGroups::does(const TargetGroup& target, Work work) {
  switch (work) {
    case Work::kDecoding:
      return !target.only_prefills();
    case Work::kTakingBlocks:
      return target.takes_blocks();
    case Work::kPrefillOnly:
      return target.prefills_for_others();
  }
  return false;
}

ServingGroup* TargetGroups::best_for(const LiveRequest& live, SeqSlots seq_slots, Work work,
                                     const Suits& suits) {
  const auto running = [](const ServingGroup* group) {
    return group->requests.running() + group->target.expected;
  };
  ServingGroup *idlest = nullptr, *knows = nullptr;
  int32_t most = 0, idlest_knows = 0;
  for (ServingGroup& group : groups_) {
    const bool is_full = running(&group) >= group.target.seq_slots() || group.target.room_is_awaited;
    if (!group.target.is_here() || (is_full && seq_slots == SeqSlots::kFree)) continue;
    if (!does(group.target, work) || (suits && !suits(group))) continue;
    const int32_t known = groups_.size() > 1 ? known_tokens(live, group) : 0;
    if (!idlest || running(&group) < running(idlest)) {
      idlest = &group;
      idlest_knows = known;
    }
    if (!knows || known > most || (known == most && running(&group) < running(knows))) {
      knows = &group;
      most = known;
    }
  }
  const int32_t gain = most - idlest_knows;
  const bool is_worth_it = gain > 0 && 2 * gain >= live.sequence.committed() - idlest_knows;
  return is_worth_it && !is_much_busier(running(knows), running(idlest)) ? knows : idlest;
}

}  // namespace outrider
