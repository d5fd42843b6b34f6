// One life of a draft worker on one connection, wherever it runs: it joins, opens its ways to the target's
// ranks, and drafts.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "heads/head.h"
#include "start/roles.h"

namespace outrider {

class DraftWorker;

// As far as its drafter needs them.
struct DraftModels {
  Model* draft = nullptr;             // with --draft-model
  PassTimes pass_times = {};          // of `draft`
  const DraftHead* head = nullptr;    // of `draft`; not used where it drafts on a device
  Head* hidden_state_head = nullptr;  // of --drafter eagle3 and similar ones
};

class DraftTurns;

struct DraftLife {
  Generation generation = new_generation();
  Lend lend = {};                                         // then every draft goes through the coordinator
  std::function<bool()> asked_to_leave = {};              // empty: never
  std::function<void(const Welcome&)> on_joined = {};     // with `lend` not called
  std::function<void(const std::string&)> complain = {};  // about a way that it does without; empty: the log
  bool crosses_hosts = false;  // its rows may go to devices of other hosts, where nothing encrypts them
  // This life is one of several sessions that share the models (draft_turns.h). Null: no other life uses the
  // models.
  DraftTurns* turns = nullptr;
  size_t session = 0;
  std::function<void(const DraftWorker&)> on_end = {};  // with `turns`: the worker's counts
};

// Empty: the job is over, or the worker was asked to leave. A time: it is unloaded for so long, and may wait
// on its connection (stay_unloaded()). All arguments outlive the call.
Result<std::optional<std::chrono::milliseconds>> live_as_drafter(const RoleSettings& settings,
                                                                 const Preparation& prepared,
                                                                 const DraftModels& models,
                                                                 Transport& transport, const DraftLife& life,
                                                                 const RoleSeams& seams = {});

}  // namespace outrider
