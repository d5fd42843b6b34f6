#include "target_worker/synthetic_verifier.h"

namespace outrider {

const std::vector<VerifyResult>& SyntheticVerifier::verify(std::span<const VerifyRequest> requests,
                                                           const PlacedLogits& logits) {
  results_ = honest_->verify(requests, logits);
  for (size_t i = 0; i < results_.size(); ++i) {
    if (results_[i].status != VerdictStatus::kOk) continue;
    if (!requests[i].parents.empty()) {
      process_.accepted_path(requests[i].sequence, requests[i].base.value(),
                             {requests[i].draft, requests[i].parents}, results_[i].path);
      results_[i].accepted_count = static_cast<int>(results_[i].path.size());
      continue;
    }
    results_[i].accepted_count = process_.accepted_count(requests[i].sequence, requests[i].base.value(),
                                                         static_cast<int32_t>(requests[i].draft.size()));
  }
  return results_;
}

}  // namespace outrider
