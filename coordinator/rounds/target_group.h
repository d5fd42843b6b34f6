// One target group: its identity while it is connected, and the results of its passes: the outstanding plan,
// the times of rounds, and their cost. Each part keeps its own state; this class only tracks the connection.
#pragma once

#include <algorithm>
#include <optional>

#include "coordinator/choices/head_place.h"
#include "coordinator/choices/rank_acceptance.h"
#include "coordinator/choices/tree_choice.h"
#include "coordinator/rounds/drafter_costs.h"
#include "coordinator/rounds/round_times.h"
#include "coordinator/scheduler/kv_ledger.h"
#include "coordinator/scheduler/step_planner.h"

namespace outrider {

class TargetGroup {
 public:
  explicit TargetGroup(const ProtocolOptions& options, int32_t at = 0)
      : index(at), times(options), kv(options), planner(options, kv), options_(options) {}

  bool is_here() const { return peer_.has_value(); }
  bool is(PeerId peer) const { return peer_ == peer; }
  std::optional<PeerId> peer() const { return peer_; }
  void join(PeerId peer, Hello hello) {
    peer_ = peer;
    hello_ = std::move(hello);
    costs.expect_passes(hello_.pass_times);
    own_kind_ =
        hello_.co_located_drafter == 0 ? 0 : costs.add_kind(own_fingerprint(), {}, hello_.drafts_blocks);
    kv.reset(kv_blocks_of(hello_));
  }
  void move_to(PeerId peer) { peer_ = peer; }  // the same life of the group, on a new connection
  void leave() {
    peer_.reset();
    rests_until.reset();
    is_late = false;
    planner.drop();
    kv.reset(0);
  }

  // The group's own description; valid while it is connected.
  Generation generation() const { return hello_.generation; }
  const Hello& hello() const { return hello_; }
  const ModelInfo& model() const { return hello_.model; }
  const SliceEndpoints& slices() const { return hello_.slices; }
  uint64_t head_fingerprint() const { return hello_.head_fingerprint; }
  // The head of draft workers for which it sends HiddenStateRows; 0: none.
  uint64_t hidden_state_head() const { return hello_.hidden_state_width > 0 ? hello_.hidden_state_head : 0; }
  int32_t hidden_state_width() const { return hello_.hidden_state_width; }
  // The kind of the drafter that is part of the group; 0: draft workers draft. A head that workers may have,
  // too, counts as another kind here, because its drafts are the same but its costs are not.
  DrafterKind own_kind() const { return own_kind_; }
  bool drafts() const { return own_kind_ != 0; }
  // Whether its head can draft in two places, here and at workers.
  bool has_two_places() const { return drafts() && hidden_state_head() != 0; }
  // It prefills prompts for other groups, and decodes none.
  bool only_prefills() const { return hello_.only_prefills; }
  // The same; it answers, and what it sends arrives.
  bool prefills_for_others() const { return only_prefills() && !rests_until && !is_late; }
  // It decodes, and its ranks have inboxes for blocks.
  bool takes_blocks() const { return !only_prefills() && hello_.block_inbox != 0; }
  int32_t max_context() const { return max_context_of(hello_); }
  // The context of a group with this Hello.
  int32_t max_context_of(const Hello& hello) const {
    int32_t possible = std::min(hello.model.max_context, kMaxIds);
    const int64_t tokens = kv_blocks_of(hello) * kBlockTokens;
    if (tokens > 0) possible = static_cast<int32_t>(std::min<int64_t>(possible, tokens));
    return options_.max_context > 0 ? std::min(options_.max_context, possible) : possible;
  }
  int64_t kv_tokens() const { return kv_blocks_of(hello_) * kBlockTokens; }  // of its cache; 0: unknown
  size_t seq_slots() const {
    const auto wanted = static_cast<size_t>(options_.max_num_seqs);
    return hello_.max_sequences > 0 ? std::min(wanted, static_cast<size_t>(hello_.max_sequences)) : wanted;
  }

  const int32_t index;     // among the groups of a coordinator
  int32_t in_prefill = 0;  // sequences that it still prefills
  // Requests that will come from groups that only prefill. A place and KV blocks are kept for each.
  size_t expected = 0;
  int64_t expected_blocks = 0;
  std::optional<Clock::time_point> rests_until;  // a group that only prefills gets no requests before
  bool was_lost = false;                         // the last that was here did not leave by itself
  bool is_late = false;                          // one that only prefills has not answered its plan for long
  bool room_is_awaited = false;  // a prefilled prompt waits for free KV blocks: no later request begins here
  RoundTimes times;
  DrafterCosts costs;
  KvLedger kv;
  StepPlanner planner;
  TreeChoice trees;
  HeadPlace place;       // of a head that drafts here and at workers
  RankAcceptance ranks;  // of requests whose text does not depend on drafts

 private:
  static constexpr int64_t kMaxBlocks = int64_t{1} << 31;
  static constexpr auto kMaxIds = static_cast<int32_t>(WireLimits{}.ids);  // of a list in a message
  uint64_t own_fingerprint() const {
    constexpr uint64_t kBesideTarget = 0x9e3779b97f4a7c15;
    return hidden_state_head() == 0 ? hello_.co_located_drafter : hello_.co_located_drafter ^ kBesideTarget;
  }
  static int64_t kv_blocks_of(const Hello& hello) {
    return std::clamp<int64_t>(hello.kv_blocks, 0, kMaxBlocks);
  }

  const ProtocolOptions& options_;
  std::optional<PeerId> peer_;
  Hello hello_;
  DrafterKind own_kind_ = 0;
};

}  // namespace outrider
