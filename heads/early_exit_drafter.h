// Drafts of a target's own first layers, beside it: no second model, and the keys and values are the
// target's. Every rank of the target drafts the same tokens, each with its part of the layers. What was
// computed of them is kept for the pass that verifies them. One thread, the rank's.
#pragma once

#include <map>
#include <vector>

#include "comm/collectives.h"
#include "heads/head_draws.h"
#include "transformer/model/early_exit.h"

namespace outrider {

class EarlyExitDrafter final : public HeadDrafter {
 public:
  // Both must outlive it. Tasks name the sequences of the target's cache (HeadTask::kv), which hold all
  // committed tokens but the last.
  EarlyExitDrafter(Model& target, Collectives& group, int64_t layers, HeadDrafterOptions options);

  void draft(std::span<const HeadTask> tasks, StateSource& states, std::vector<HeadDraft>& drafts) override;
  void close(SequenceId sequence) override { exited_.erase(sequence); }
  const ExitedTokens* exited(SequenceId sequence) const override;
  int64_t ingest_ns() const override { return ingest_ns_; }
  int64_t draft_ns() const override { return draft_ns_; }

 private:
  bool step(std::span<const HeadTask> tasks, std::vector<HeadDraft>& drafts);
  TensorView<const float, 2> gathered(const LogitsShard& shard);

  Model& target_;
  Collectives& group_;
  const int64_t layers_;
  HeadDraws draws_;
  std::vector<size_t> going_;  // tasks whose drafts are not finished
  std::vector<BatchSlice> slices_;
  std::map<SequenceId, ExitedTokens> exited_;
  std::vector<ExitedTokens*> keep_;       // of slices_
  std::vector<float> mine_, all_, rows_;  // logits of this rank, of all one behind the other, and row by row
  int64_t ingest_ns_ = 0, draft_ns_ = 0;
};

}  // namespace outrider
