// The default policy: decayed acceptance, measured costs, and the lengths that maximise tokens per second of
// the whole batch.
#pragma once

#include <memory>

#include "coordinator/gamma/ewma_batch.h"
#include "coordinator/gamma/gamma_policy.h"

namespace outrider {

class EwmaGamma : public GammaPolicy {
 public:
  explicit EwmaGamma(const EwmaOptions& options, std::shared_ptr<EwmaBatches> batches = nullptr);
  ~EwmaGamma() override;
  int32_t next(const GammaContext& context) override;
  void update(const RoundOutcome& outcome) override;
  int32_t longest_suffix_match() const override { return batch_->finds() ? options_.suffix_match_max : 0; }
  int32_t probe_draft() const override;
  void observe_probe_draft(int32_t drafted, int32_t accepted) override;

  double acceptance() const { return self_.acceptance.mean(); }
  double estimate() const { return batch_->estimate(self_); }  // own evidence, and that of the batch
  int32_t chosen() const { return self_.gamma; }               // without probes

 private:
  void join(int32_t group);
  void learn(int32_t drafted, int32_t accepted);
  void leave();
  int32_t length();
  void read();
  void watch_for_change(int32_t drafted, int32_t accepted);

  EwmaOptions options_;
  std::shared_ptr<EwmaBatches> batches_;
  EwmaBatch* batch_;  // of the group that it runs in
  EwmaMember self_;
  bool joined_ = false;
  // Plain steps for the prefill of its prompt; charged gradually, as the text grows.
  double owed_ = 0;
  int32_t owed_tokens_ = 0;
  int32_t zeros_ = 0;   // rounds in a row without an accepted token
  int32_t streak_ = 0;  // tokens in a row without a rejection
  int32_t idle_ = 0;    // rounds in a row without a draft while others had one
};

}  // namespace outrider
