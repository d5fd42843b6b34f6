// What a target rank is told when it starts: who it is, what it can do, and what helps its drafters.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "comm/messages/joining.h"
#include "target_worker/hidden_rows.h"
#include "target_worker/slice_inbox.h"
#include "target_worker/state_drafter.h"
#include "target_worker/state_reader.h"

namespace outrider {

class AcceptanceProcess;

struct TargetOptions {
  ModelInfo info;                   // for Hello; max_context and isa are filled in
  int32_t max_sequences = 16;       // open at once
  Generation generation{1};         // of this life of the group
  float row_price = kUnknownPrice;  // for Hello
  bool trees = true;                // drafts may be trees
  // Null: verdicts are honest (synthetic_verifier.h). Every rank needs the same process.
  const AcceptanceProcess* synthetic_acceptance = nullptr;
  // Where this rank's slices of q come in; null on all ranks: nowhere. `slices`: those of all, for the
  // leader's Hello.
  std::shared_ptr<SliceInbox> slice_inbox;
  SliceDoors slices;
  // The draft model's head with this rank's ids: states may come for q. On all ranks or on none.
  std::shared_ptr<const DraftHead> head;
  // Not 0: the group drafts itself, with the leader's `drafter`, of this fingerprint; a model that drafts
  // with its own first layers has one on every rank. The model has the drafter's taps.
  uint64_t own_drafter = 0;
  std::shared_ptr<StateDrafter> drafter;
  // Not 0: a draft worker has the head of this fingerprint, and the leader's `states` tell it rows of so many
  // numbers. The model has the head's taps.
  uint64_t state_head = 0;
  int32_t state_width = 0;
  std::shared_ptr<StateReader> states;
  // Leaves when this says so; empty: when told by the coordinator. Of a group that joined from elsewhere.
  std::function<bool()> asked_to_leave;
  std::function<void()> on_joined;  // the leader was welcomed
  // The coordinator is gone when it took no sign of life for about so many seconds.
  int most_undelivered = 10;
  // A draft whose slices are not all here so long after the forward pass is given up, on every rank.
  std::chrono::milliseconds slice_timeout{2000};
};

}  // namespace outrider
