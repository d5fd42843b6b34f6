// From a row of a head's logits to a drafted token, for every kind of head: as any drafter draws, on the
// target's ids.
#pragma once

#include <memory>
#include <vector>

#include "comm/collectives.h"
#include "heads/head_drafter.h"
#include "transformer/sampling/draft_sampler.h"

namespace outrider {

class HeadDraws {
 public:
  HeadDraws(const Head& head, std::vector<TokenId> eos_ids);

  // Adds a token to the draft from its row of logits. False: the draft ends before it (the row is not finite,
  // or the stop rule says so), or with it.
  bool draw(const HeadTask& task, std::span<const float> logits, HeadDraft& draft);

 private:
  const Head& head_;
  const std::vector<TokenId> eos_ids_;
  std::unique_ptr<Collectives> single_;
  DraftSampler sampler_;
  std::vector<float> logits_;  // of the target's whole vocabulary
};

}  // namespace outrider
