// The drafter with a language model. Rounds of all sequences advance together, one token per forward pass.
// Without a current round the same code extends branches for the likely outcomes of drafts that are being
// verified. Internal: drafter.h has the factory.
#pragma once

#include <optional>
#include <vector>

#include "draft_worker/model/device_runs.h"
#include "draft_worker/model/drafting_state.h"
#include "draft_worker/model/outcome_preparation.h"
#include "draft_worker/model/staged_drafts.h"
#include "draft_worker/model/token_drawing.h"
#include "draft_worker/model/tree_rounds.h"

namespace outrider {

class ModelDrafter final : public Drafter {
 public:
  ModelDrafter(Model& model, ModelDrafterOptions options);
  ~ModelDrafter() override;  // empties the model's cache

  Status open(const Open& open) override;
  void close(SequenceId sequence) override;
  Status begin(const Propose& propose) override;
  bool work(std::vector<DraftAnswer>& answers) override;
  Resync held(SequenceId sequence) const override;
  void reuse(Draft draft) override { state_.storage.give_back(std::move(draft)); }
  int32_t max_context() const override { return static_cast<int32_t>(state_.model.max_positions()); }

 private:
  Status check(const DraftedSequence& s, const Propose& propose) const;
  void start_fresh(DraftedSequence& s, const Propose& propose, bool keeps_cache);
  void take_over(DraftedSequence& s);
  void skip_middle(DraftedSequence& s);

  bool run_jobs(std::vector<DraftAnswer>& answers);
  bool advance_jobs(std::vector<DraftAnswer>& answers);
  RankedPass* rank_rows();
  void collect_slices();
  int32_t take_parts(const Status& passed, int64_t pass_ns, std::vector<DraftAnswer>& answers);
  int32_t take_slice(DraftedSequence& s, const BatchSlice& slice, int64_t row, Status& status);
  void add_guesses(DraftedSequence& s, BatchSlice& slice, int64_t rows, int64_t logit_rows);

  bool finish_done(std::vector<DraftAnswer>& answers);
  DraftAnswer finish(DraftedSequence& s, Status status = {});
  Draft take_draft(DraftJob& job, uint64_t hash);

  DraftingState state_;
  TokenDrawing drawing_;
  std::optional<DeviceRuns> runs_;  // empty: every row of logits comes to the host
  TreeRounds trees_;
  OutcomePreparation preparation_;
  std::optional<StagedDrafts> staged_;

  // Buffers of one pass.
  std::vector<BatchSlice> slices_;
  std::vector<PassPart> parts_;
};

}  // namespace outrider
