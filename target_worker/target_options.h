// Start-up options of a target rank: its identity, its capabilities, and the parts that help drafters.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "comm/messages/joining.h"
#include "target_worker/block_exchange.h"
#include "target_worker/hidden_rows.h"
#include "target_worker/hidden_state_drafter.h"
#include "target_worker/hidden_state_reader.h"
#include "target_worker/slice_inbox.h"

namespace outrider {

class AcceptanceProcess;

struct TargetOptions {
  ModelInfo info;              // for Hello; max_context and isa are filled in
  int32_t max_sequences = 16;  // open at once
  Generation generation{1};    // a new one for every start of the group
  PassTimes pass_times = {};   // for Hello
  bool trees = true;           // drafts may be trees
  // Null: real verification. Else acceptance is simulated (synthetic_verifier.h), and every rank needs the
  // same process.
  const AcceptanceProcess* synthetic_acceptance = nullptr;
  // The inbox for this rank's slices of q; null on all ranks: slices are not accepted. `slices`: endpoints of
  // all ranks' inboxes, for the leader's Hello.
  std::shared_ptr<SliceInbox> slice_inbox;
  SliceEndpoints slices;
  // The draft model's output head with this rank's ids, so that q may come as hidden states. On all ranks or
  // on none.
  std::shared_ptr<const DraftHead> head;
  // Not 0: the group drafts by itself with the leader's `drafter`, and this is its fingerprint. With early
  // exit (the model's own first layers), every rank has a drafter. The model has the drafter's aux layers.
  uint64_t co_located_drafter = 0;
  std::shared_ptr<HiddenStateDrafter> drafter;
  bool drafts_blocks = false;  // one pass of it makes a whole draft
  // Not 0: the fingerprint of the head that a draft worker has; the leader's `hidden_states` send it rows of
  // `hidden_state_width` numbers. The model has the head's aux layers.
  uint64_t hidden_state_head = 0;
  int32_t hidden_state_width = 0;
  std::shared_ptr<HiddenStateReader> hidden_states;
  // The rank leaves when this returns true; empty: only when the coordinator sends a Shutdown. For a group
  // that joined from elsewhere.
  std::function<bool()> asked_to_leave;
  std::function<void()> on_joined;  // the leader was welcomed
  // Seconds without a delivered heartbeat after which the coordinator counts as gone.
  int most_undelivered = 10;
  // A group that only prefills has the first, and one that decodes what such groups prefilled the second, on
  // every rank; `block_inbox_name`: of the inboxes, for Hello.
  std::shared_ptr<BlockSender> block_sender;
  std::shared_ptr<BlockInbox> block_inbox;
  uint64_t block_inbox_name = 0;
  // Time that a group without other work waits for blocks; it is asked again.
  std::chrono::milliseconds block_wait{5};
  // Time for the blocks of a plan, in all, to find room in inboxes that are full. After as long the group
  // that decodes computes the prompt itself.
  std::chrono::milliseconds block_patience{10'000};
  // Time after the forward pass at which every rank gives up a draft whose slices are not all here.
  std::chrono::milliseconds slice_timeout{2000};
};

}  // namespace outrider
