// Loads the models of a run's roles.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/collectives.h"
#include "comm/messages/joining.h"
#include "heads/head.h"
#include "model/draft_head.h"
#include "model/model.h"
#include "start/prepare.h"
#include "start/role_threads.h"
#include "start/settings.h"

namespace outrider {

inline constexpr int32_t kMaxRowsPerStep = 512;  // of a pass of the target

// The number of devices of the target; those of draft workers follow.
int target_ranks(const ModelSettings& models);

// Runs passes before a role reports that it is ready. On the host the first passes of a small model take up
// to six times as long as later ones, because memory, threads and caches are cold. That would slow the first
// answer, and distort the pass times of the draft length policy. All ranks make the same passes. Returns
// Hello::pass_times by the slowest rank: of a target by rows, of a draft model for a step, five sequences and
// a prefill. It takes about a second at most, but two passes at least; without `is_timed` these alone, and it
// returns nothing. Models of one process are measured one after the other, once no model is loading.
PassTimes warm_up(Model& model, Collectives& group, Role role, bool is_timed = true);

struct LoadedModel {
  std::unique_ptr<Model> model;
  PassTimes pass_times = {};
};

// Loads this rank's shard of the target, in this target group, once all ranks have theirs; and the draft
// model, or this rank's shard of it (draft_ranks.h), which is warmed up if there is only one. `is_timed`: a
// drafter may need the target's pass times; the same on all ranks.
Result<LoadedModel> load_target(const RoleSettings& settings, const Preparation& prepared,
                                RoleThreads threads, Collectives& group, int target_group = 0,
                                bool is_timed = true);
Result<LoadedModel> load_draft(const RoleSettings& settings, const Preparation& prepared, RoleThreads threads,
                               Collectives& group);

// With --q-format hidden: the rows for `ids` of the draft model's output head; else null.
Result<std::shared_ptr<const DraftHead>> load_draft_head(const RoleSettings& settings, IndexRange ids,
                                                         RoleThreads threads);

// Prints on standard error what is placed on a device.
std::function<void(const std::string&)> placed(const char* role, bool quiet);
// The compute of a head, or of its part beside the target: on the device of this target group's leader, or,
// if `target` is null, of the draft worker. `elsewhere`: on this device.
Result<std::shared_ptr<HeadCompute>> head_compute(const RoleSettings& settings, RoleThreads threads,
                                                  Model* target, int target_group = 0,
                                                  std::optional<Device> elsewhere = {});
// The head of --drafter eagle3 and similar ones, for `sequences` sequences, in either of its places.
Result<std::unique_ptr<Head>> load_head(const RoleSettings& settings, const Preparation& prepared,
                                        int32_t sequences, std::shared_ptr<HeadCompute> compute);

}  // namespace outrider
