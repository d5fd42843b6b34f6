// Drafts of a target's own first layers, beside the target: there is no second model, and keys and values are
// the target's. Every rank of the target drafts the same tokens, each with its part of the layers. A whole
// model on a device draws several tokens in a row there; otherwise the host draws each token from the logits
// of all ranks. The host keeps the results of the first layers for the pass that verifies the tokens. Used by
// the rank's thread only.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "comm/collectives.h"
#include "heads/head_draws.h"
#include "model/exited_tokens.h"
#include "model/logits_gathering.h"
#include "model/model.h"
#include "model/token_runner.h"

namespace outrider {

class EarlyExitDrafter final : public HeadDrafter {
 public:
  // Both must outlive it. Tasks name the sequences of the target's cache (HeadTask::kv), which hold all
  // committed tokens but the last. A target on a device was loaded with `layers` as its exit layer.
  EarlyExitDrafter(Model& target, Collectives& group, int64_t layers, HeadDrafterOptions options);

  void draft(std::span<const HeadTask> tasks, HiddenStateSource& hidden_states,
             std::vector<HeadDraft>& drafts) override;
  void close(SequenceId sequence) override { exited_.erase(sequence); }
  const ExitedTokens* exited(SequenceId sequence) const override;
  int64_t ingest_ns() const override { return ingest_ns_; }
  int64_t draft_ns() const override { return draft_ns_; }

 private:
  bool run(std::span<const HeadTask> tasks, std::vector<HeadDraft>& drafts);
  bool step(std::span<const HeadTask> tasks, std::vector<HeadDraft>& drafts);
  bool take_run(size_t run, bool is_watched, const HeadTask& task, HeadDraft& draft);
  // With those of which this says so, given their places in going_, and which have room.
  template <class GoesOn>
  void keep_going(std::span<const HeadTask> tasks, GoesOn goes_on);

  Model& target_;
  Collectives& group_;
  LogitsGathering gathering_;
  const int64_t layers_;
  HeadDraws draws_;
  const std::unique_ptr<TokenRunner> runner_;  // null: the host draws
  std::vector<size_t> going_;                  // tasks whose drafts are not finished
  std::vector<BatchSlice> slices_;
  std::vector<TokenRun> runs_;  // of going_, as slices_
  std::map<SequenceId, ExitedTokens> exited_;
  std::vector<ExitedTokens*> keep_;  // of slices_
  int64_t ingest_ns_ = 0, draft_ns_ = 0;
};

}  // namespace outrider
