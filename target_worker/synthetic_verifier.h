// Verdicts of which a process, and not the rule, says how many draft tokens are accepted (AcceptanceProcess).
// For studies without a matching pair: all work is done as ever, and the text means nothing.
#pragma once

#include "cluster/acceptance_process.h"
#include "target_worker/verifier.h"

namespace outrider {

class SyntheticVerifier : public Verifier {
 public:
  // `process` must outlive the verifier.
  SyntheticVerifier(std::unique_ptr<Verifier> honest, const AcceptanceProcess& process)
      : honest_(std::move(honest)), process_(process) {}
  // `next` stays what the target would have said somewhere in this block: a token of its vocabulary.
  const std::vector<VerifyResult>& verify(std::span<const VerifyRequest> requests,
                                          const PlacedLogits& logits) override;
  const VerifierStats& stats() const override { return honest_->stats(); }
  bool takes_masks() const override { return false; }
  void rank_rows(std::span<const int64_t> rows, const PlacedLogits& logits) override {
    honest_->rank_rows(rows, logits);
  }
  std::span<const uint64_t> ranked_rows() const override { return honest_->ranked_rows(); }
  std::optional<int64_t> busy_ns() const override { return honest_->busy_ns(); }

 private:
  std::unique_ptr<Verifier> honest_;
  const AcceptanceProcess& process_;
  std::vector<VerifyResult> results_;
};

}  // namespace outrider
