#include "coordinator/gamma/found_drafts.h"

#include <algorithm>
#include <cmath>

namespace outrider {

void FoundDrafts::add(int32_t drafted, int32_t accepted, size_t batch) {
  for (Memory* memory : {&long_, &short_}) memory->add(drafted, accepted, batch);
}

void FoundDrafts::Memory::add(double drafted_tokens, double accepted_tokens, size_t batch) {
  const double keep = 1 - (1 - decay) / static_cast<double>(std::max<size_t>(1, batch));
  rounds = keep * rounds + 1;
  accepted = keep * accepted + accepted_tokens;
  drafted = keep * drafted + drafted_tokens;
}

double FoundDrafts::rate(const CostModel& cost, int32_t batch, int64_t context) const {
  return std::max(long_.rate(cost, batch, context), short_.rate(cost, batch, context));
}

double FoundDrafts::Memory::rate(const CostModel& cost, int32_t batch, int64_t context) const {
  const auto further = static_cast<int32_t>(std::lround(batch * drafted / rounds));
  const double tokens = batch * (1 + accepted / rounds);
  // The wait is that for one token: the time of a drafter without a model does not depend on the length.
  return tokens / (cost.verify_seconds(batch + further, context) + cost.draft_phase_seconds(1, 1));
}

}  // namespace outrider
