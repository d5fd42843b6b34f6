// Drafts of a Medusa head: all tokens of a draft from one state.
#pragma once

#include "heads/head_draws.h"
#include "heads/medusa_head.h"

namespace outrider {

class MedusaDrafter final : public HeadDrafter {
 public:
  MedusaDrafter(MedusaHead& head, HeadDrafterOptions options);

  void draft(std::span<const HeadTask> tasks, StateSource& states, std::vector<HeadDraft>& drafts) override;
  void close(SequenceId) override {}
  int64_t ingest_ns() const override { return 0; }
  int64_t draft_ns() const override { return draft_ns_; }

 private:
  MedusaHead& head_;
  HeadDraws draws_;
  ActivationRows states_;      // [sequences, hidden]
  std::vector<size_t> going_;  // tasks whose drafts are not finished, in the order of their rows
  int64_t draft_ns_ = 0;
};

}  // namespace outrider
