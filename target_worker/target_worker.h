// One rank of the target group: replays the coordinator's plans on its shard of the model. The KV manager is
// a deterministic state machine, so block tables never travel; a hash in every plan tells when two ranks, or
// a rank and the coordinator, no longer agree. One thread per rank.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/collectives.h"
#include "comm/messages/verifying.h"
#include "comm/transport.h"
#include "model/model.h"
#include "target_worker/hidden_rows.h"
#include "target_worker/plan_source.h"
#include "target_worker/successor_ranks.h"
#include "target_worker/target_options.h"
#include "target_worker/target_sequences.h"
#include "target_worker/verifier.h"

namespace outrider {

class TargetWorker {
 public:
  // `model` and `group` must outlive the worker, which leaves the model's cache empty.
  TargetWorker(Model& model, Collectives& group, TargetOptions options);
  ~TargetWorker();
  TargetWorker(const TargetWorker&) = delete;
  TargetWorker& operator=(const TargetWorker&) = delete;

  // Serves until told to shut down. An error: the coordinator gave this group up, or is gone; all ranks have
  // come to an end, and may join anew with another worker. Only the leader (rank 0) has a transport, and only
  // it talks outside the group. Throws CollectiveError when a rank is gone and std::runtime_error when ranks
  // disagree.
  Status run(Transport* transport);

  // run() in turns, for a group of one rank: join(), then turn() while it is true. A turn takes what has
  // arrived and does not wait.
  Status join(Transport& transport) { return plans_.join(transport); }
  Result<bool> turn(Transport& transport);

  // One plan: forward, verification, commit. Collective: every rank calls it with the same plan. Throws
  // std::runtime_error, before anything is done, if the plan makes no sense, on all ranks alike.
  StepResult step(const StepPlan& plan);

  const Model& model() const { return model_; }
  // A hash of [0, kv length) of an open sequence, for tests.
  uint64_t kv_content_hash(SequenceId sequence) const;

 private:
  // Whether it can be carried out: a wrong one would end in memory that is not there (plan_check.cpp).
  Status check_plan(const StepPlan& plan) const;
  Status check_asks(const StepPlan& plan) const;
  Status check_blocks(const StepPlan& plan) const;
  Status check_entry(const PlanEntry& entry, const StepPlan& plan) const;
  void close(SequenceId sequence);
  // All rows in one pass: decode, verify and prefill rows together.
  PlacedLogits forward(const StepPlan& plan);
  void gather_q(const StepPlan& plan);
  void make_q(const StepPlan& plan);
  // A request for each entry that samples; a draft whose q was lost counts as none.
  void ask_verifier(const StepPlan& plan);
  // The rows of a prompt, one by one, whose log-probabilities the entry asks for.
  void ask_scores(const PlanEntry& entry, int64_t& row);
  // Ranks the rows of entries that ask for it, before the verifier changes them.
  void rank_successors(const StepPlan& plan, const PlacedLogits& logits);
  // Applies the verifier's results, which are in the order of the plan's entries.
  void commit(const StepPlan& plan, std::span<const VerifyResult> verdicts, StepResult& result);
  void draft_next(const StepPlan& plan, StepResult& result);
  void tell_hidden_states(const StepPlan& plan, StepResult& result);
  // Blocks to and from other groups (block_exchange.h).
  void export_blocks(const StepPlan& plan, StepResult& result);
  void import_blocks(const StepPlan& plan, StepResult& result);

  Model& model_;
  Collectives& group_;
  TargetOptions options_;
  PlanSource plans_;
  TargetSequences sequences_;
  std::unique_ptr<Verifier> verifier_;
  std::optional<HiddenRows> hidden_rows_;  // with a head
  SuccessorRanks successor_ranks_{group_};

  // Buffers of one step.
  std::vector<TokenId> tokens_;
  std::vector<BatchSlice> slices_;
  std::vector<VerifyRequest> requests_;
  std::vector<int64_t> ranked_rows_;
  std::span<const TokenId> successors_;          // of ranked_rows_
  std::vector<SlicedQ> sliced_;                  // of every entry
  std::vector<SamplingParams> scoring_;          // of every entry; read where it has prompt_logprobs
  std::vector<const SamplingParams*> sampling_;  // the same
};

}  // namespace outrider
