// Loads what the roles of a run compute with.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/collectives.h"
#include "comm/messages/joining.h"
#include "heads/head.h"
#include "start/prepare.h"
#include "start/role_threads.h"
#include "start/settings.h"
#include "transformer/model/draft_head.h"
#include "transformer/model/model.h"

namespace outrider {

inline constexpr int32_t kMaxRowsPerStep = 512;    // of a pass of the target
inline constexpr int64_t kDraftPrefillRows = 256;  // of a pass that reads a prompt, of a draft model or head

// How many devices the target takes; those of draft workers follow.
int target_ranks(const ModelSettings& models);

// On the host the first passes of a small model take up to six times as long as later ones: memory is touched
// for the first time, threads and caches are cold. That would be in the first answer's time, and in what the
// draft length policy takes a pass to cost. So some are made before a role says that it is ready. All ranks
// make the same passes. What they tell is Hello::row_price, by the slowest rank.
float warm_up(Model& model, Collectives& group);

struct LoadedTarget {
  std::unique_ptr<Model> model;
  float row_price = kUnknownPrice;
};

// This rank's shard of the target, of the target group with this number, when all ranks have theirs; and the
// draft model, or this rank's shard of it (draft_ranks.h), which is warmed up if there is but one.
Result<LoadedTarget> load_target(const RoleSettings& settings, const Preparation& prepared,
                                 RoleThreads threads, Collectives& group, int target_group = 0);
Result<std::unique_ptr<Model>> load_draft(const RoleSettings& settings, const Preparation& prepared,
                                          RoleThreads threads, Collectives& group);

// With --q-format hidden the draft model's output head, the rows of these ids; else null.
Result<std::shared_ptr<const DraftHead>> load_draft_head(const RoleSettings& settings, IndexRange ids,
                                                         RoleThreads threads);

// Tells on standard error what a device is asked for.
std::function<void(const std::string&)> placed(const char* role, bool quiet);
// Where a head, or its part beside the target, computes: on the device of the leader of this target group,
// or, without `target`, of the draft worker.
Result<std::shared_ptr<HeadCompute>> head_compute(const RoleSettings& settings, RoleThreads threads,
                                                  Model* target, int target_group = 0);
// The head of --drafter eagle3 and its like, wherever it drafts, for so many sequences.
Result<std::unique_ptr<Head>> load_head(const RoleSettings& settings, const Preparation& prepared,
                                        int32_t sequences, std::shared_ptr<HeadCompute> compute);

}  // namespace outrider
