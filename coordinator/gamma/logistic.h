// Lengths by the drafter's confidence. Whether anybody drafts, and what is tried now and then, is the ewma
// policy's; how long a draft gets is decided token by token where it is made (StopKind::kChances), by the
// chance that all of it is accepted against what one more token costs everybody.
//
// The price of a token is the batch's own tokens per second times the seconds that it adds to the step. That
// is the condition for the most tokens per second: a token belongs into the step while it brings more a
// second than the step does on average (Dinkelbach 1967). One price for all sequences of a batch gives every
// sequence the tokens that it would have from one budget, spent on the likeliest tokens of all of them: the
// price is what the last token of that budget brings.
//
// No draft sees a token that is not decided on yet: a price is of past steps, and the chance at a place is a
// function of the distributions up to it, so the p/q rules stay exact (docs/policies.md).
#pragma once

#include <memory>
#include <vector>

#include "coordinator/gamma/chance_fit.h"
#include "coordinator/gamma/ewma.h"

namespace outrider {

struct LogisticOptions {
  int32_t max = kDefaultGammaMax;
  double memory = 0.998;     // of a tested token, at the next
  double ridge = 50;         // tested tokens that what a place differs by has to outweigh
  int64_t known_from = 100;  // tested tokens; until then lengths are ewma's
};

// What the sequences of one factory share in a target group: the fit, and what steps brought and cost.
class LogisticBatch {
 public:
  explicit LogisticBatch(const LogisticOptions& options)
      : options_(options), fit_(options.memory, options.ridge) {}

  // Before the first decision of a step: what the one that ended brought.
  void settle(const CostModel& cost);
  void plan(int32_t context) { context_ += context; }
  void learn(const RoundOutcome& outcome, double base);
  bool known() const { return fit_.observed() >= options_.known_from && seconds_ > 0; }
  // For a sequence whose recent acceptance is `chance`.
  std::vector<PlaceRule> places(double chance, int32_t limit, bool sends_first, const CostModel& cost) const;

 private:
  double tokens_of(const RoundOutcome& outcome, double base) const;
  double row_seconds(const CostModel& cost) const;
  double drafting(size_t place) const;

  LogisticOptions options_;
  ChanceFit fit_;
  // Of the step under way.
  struct Step {
    int32_t rounds = 0, drafted = 0, longest = 0;
    double tokens = 0;
    std::vector<int32_t> drafting;  // by place: sequences that drafted so far
  } step_;
  int64_t context_ = 0;
  // Of steps with drafts, decayed by the step.
  double tokens_ = 0, seconds_ = 0, steps_ = 0, rows_ = 0, sequences_ = 0;
  std::vector<double> drafting_;
};

class LogisticGamma : public GammaPolicy {
 public:
  LogisticGamma(const LogisticOptions& options, std::shared_ptr<ByGroup<LogisticBatch>> batches,
                std::shared_ptr<EwmaBatches> lengths)
      : options_(options),
        batches_(std::move(batches)),
        batch_(&batches_->of(0)),
        lengths_({.max = options.max}, std::move(lengths)) {}
  int32_t next(const GammaContext& context) override;
  void update(const RoundOutcome& outcome) override;
  StopRule stop_rule() const override { return rule_; }
  int32_t longest_found() const override { return lengths_.longest_found(); }
  int32_t shadow() const override { return lengths_.shadow(); }
  void observe_shadow(int32_t drafted, int32_t accepted) override {
    lengths_.observe_shadow(drafted, accepted);
  }

 private:
  LogisticOptions options_;
  std::shared_ptr<ByGroup<LogisticBatch>> batches_;
  LogisticBatch* batch_;  // of the group that it runs in
  EwmaGamma lengths_;
  StopRule rule_;
  int32_t rounds_ = 0;  // in which drafts may be ended
};

}  // namespace outrider
