// One rank of the target group: replays the coordinator's plans on its shard of the model. The KV manager is
// a deterministic state machine, so block tables never travel; a hash in every plan tells when two ranks, or
// a rank and the coordinator, no longer agree. One thread per rank.
#pragma once

#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "comm/collectives.h"
#include "comm/messages.h"
#include "comm/transport.h"
#include "target_worker/hidden_rows.h"
#include "target_worker/slice_inbox.h"
#include "target_worker/state_drafter.h"
#include "target_worker/successor_ranks.h"
#include "target_worker/verifier.h"
#include "transformer/model/model.h"

namespace outrider {

class AcceptanceProcess;

struct TargetOptions {
  ModelInfo info;              // for Hello; max_context and isa are filled in
  int32_t max_sequences = 16;  // open at once
  Generation generation{1};    // of this life of the group
  bool trees = true;           // drafts may be trees
  bool successors = true;      // the model leaves its logits in host memory, where they can be ranked
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

class TargetWorker {
 public:
  // `model` and `group` must outlive the worker.
  TargetWorker(Model& model, Collectives& group, TargetOptions options);
  ~TargetWorker();  // the model's cache is empty again
  TargetWorker(const TargetWorker&) = delete;
  TargetWorker& operator=(const TargetWorker&) = delete;

  // Serves until told to shut down. An error: the coordinator gave this group up, or is gone; all ranks have
  // come to an end, and may join anew with another worker. Only the leader (rank 0) has a transport, and only
  // it talks outside the group. Throws CollectiveError when a rank is gone and std::runtime_error when ranks
  // disagree.
  Status run(Transport* transport);

  // run() in turns, for a group of one rank: join(), then turn() while it is true. A turn takes what has
  // arrived and does not wait.
  Status join(Transport& transport);
  Result<bool> turn(Transport& transport);

  // One plan: forward, verification, commit. Collective: every rank calls it with the same plan. Throws
  // std::runtime_error, before anything is done, if the plan makes no sense, on all ranks alike.
  StepResult step(const StepPlan& plan);

  const Model& model() const { return model_; }
  // A hash of [0, kv length) of an open sequence, for tests.
  uint64_t kv_content_hash(SequenceId sequence) const;

 private:
  struct Sequence {
    std::vector<TokenId> ids;  // committed
    SamplingParams sampling;
    TokenCounts counts;  // kept only when penalties need it
    KvHandle kv;
    Epoch epoch;
  };
  void agree_on_setup();
  std::optional<StepPlan> next_plan(Transport* transport);
  std::optional<StepPlan> receive_plan(Transport& transport);

  void check_state(const StepPlan& plan) const;
  Status check_plan(const StepPlan& plan) const;
  Status check_prefixes(const StepPlan& plan) const;
  Status check_asks(const StepPlan& plan) const;
  Status check_entry(const PlanEntry& entry, const StepPlan& plan) const;
  void change(const PrefixChange& change);
  void open(const Open& open);
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
  // What the verifier said of them, in the same order.
  void commit(const StepPlan& plan, std::span<const VerifyResult> verdicts, StepResult& result);
  void commit(const PlanEntry& entry, DraftTreeView draft, const VerifyResult& verdict);
  void draft_next(const StepPlan& plan, StepResult& result);
  void tell_states(const StepPlan& plan, StepResult& result);
  Sequence& sequence(SequenceId id);

  Model& model_;
  Collectives& group_;
  TargetOptions options_;
  std::unique_ptr<Verifier> verifier_;
  std::optional<HiddenRows> hidden_rows_;  // with a head
  SuccessorRanks successor_ranks_{group_};
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::unordered_map<PrefixId, KvPrefix> prefixes_;
  bool leaving_ = false;  // the leader was told to shut down, perhaps before it was welcomed
  Status ended_;          // of the leader: why, if it was not told to

  // Buffers of one step.
  std::vector<TokenId> tokens_;
  std::vector<BatchSlice> slices_;
  std::vector<VerifyRequest> requests_;
  std::vector<int64_t> ranked_rows_;
  std::span<const TokenId> successors_;          // of ranked_rows_
  std::vector<SlicedQ> sliced_;                  // of every entry
  std::vector<SamplingParams> scoring_;          // of every entry; read where it has prompt_logprobs
  std::vector<const SamplingParams*> sampling_;  // the same
  std::vector<std::byte> frame_;
};

}  // namespace outrider
