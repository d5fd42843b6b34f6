// Drafts of a Medusa head: all tokens of a draft from one state.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "heads/head_draws.h"
#include "heads/medusa_head.h"

namespace outrider {

class MedusaDrafter final : public HeadDrafter, private HeadDraws::Steps {
 public:
  MedusaDrafter(MedusaHead& head, HeadDrafterOptions options);

  void draft(std::span<const HeadTask> tasks, HiddenStateSource& hidden_states,
             std::vector<HeadDraft>& drafts) override;
  void close(SequenceId sequence) override { trees_.erase(sequence); }
  int64_t ingest_ns() const override { return 0; }
  int64_t draft_ns() const override { return draft_ns_; }

 private:
  bool begin(std::span<const HeadDraws::Chain>) override { return true; }
  FloatRows next(std::span<HeadDraws::Chain> chains, HeadSampler& drawn) override;
  int64_t wanted(const HeadTask& task) const { return std::min<int64_t>(task.gamma, head_.heads()); }
  // The row of marginals_ of a tree and the depth of a node.
  int64_t marginal(size_t slot, int64_t depth) const {
    return static_cast<int64_t>(slot) * head_.heads() + depth;
  }
  void keep_marginals(size_t task, FloatRows logits);
  void grow(std::span<const HeadTask> tasks, std::vector<HeadDraft>& drafts);

  MedusaHead& head_;
  HeadDraws draws_;
  std::vector<HeadDraws::Chain> chains_;
  RowBuffer hidden_states_;    // [sequences, hidden]
  std::vector<size_t> going_;  // tasks whose drafts are not finished, in the order of their rows
  int64_t branch_ = 0;         // that was asked last
  std::map<SequenceId, HeadTree> trees_;
  std::vector<size_t> branching_;  // tasks whose drafts are trees
  std::vector<HeadDraws::Look> looks_;
  RowBuffer marginals_;  // [trees * branches, own vocabulary]
  int64_t draft_ns_ = 0;
};

}  // namespace outrider
