// Draft lengths by the drafter's confidence. The ewma policy decides whether to draft at all, and makes
// trials. The length of a draft is decided token by token in the drafter (StopKind::kChances): the chance
// that the whole draft is accepted is weighed against the cost of one more token for the batch.
//
// The price of a token is the batch's tokens per second times the seconds that the token adds to the step.
// This maximises tokens per second: a token belongs to the step while its own rate exceeds the average rate
// of the step (Dinkelbach 1967). One price for all sequences of a batch gives each the tokens that it would
// get from one common budget spent on the likeliest tokens.
//
// A decision about a token never sees the token: a price depends on past steps, and the chance at a place is
// a function of the distributions up to it, so the p/q rules stay exact (docs/policies.md).
#pragma once

#include <memory>
#include <vector>

#include "coordinator/gamma/chance_fit.h"
#include "coordinator/gamma/ewma.h"

namespace outrider {

struct LogisticOptions {
  int32_t max = kDefaultGammaMax;
  double memory = 0.998;     // weight of a tested token after the next one
  double ridge = 50;         // tested tokens that outweigh the prior of a place's deviation
  int64_t known_from = 100;  // tested tokens; until then lengths are ewma's
};

// State shared by the sequences of one factory in a target group: the fit, and the gains and costs of steps.
class LogisticBatch {
 public:
  explicit LogisticBatch(const LogisticOptions& options)
      : options_(options), fit_(options.memory, options.ridge) {}

  // Before the first decision of a step: accounts for the step that ended.
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
  // The current step.
  struct Step {
    int32_t rounds = 0, drafted = 0, longest = 0;
    double tokens = 0;
    std::vector<int32_t> drafting;  // by place: sequences that drafted so far
  } step_;
  int64_t context_ = 0;
  // Sums over steps with drafts, decayed once a step.
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
  int32_t longest_suffix_match() const override { return lengths_.longest_suffix_match(); }
  int32_t probe_draft() const override { return lengths_.probe_draft(); }
  void observe_probe_draft(int32_t drafted, int32_t accepted) override {
    lengths_.observe_probe_draft(drafted, accepted);
  }

 private:
  LogisticOptions options_;
  std::shared_ptr<ByGroup<LogisticBatch>> batches_;
  LogisticBatch* batch_;  // of the group that it runs in
  EwmaGamma lengths_;
  StopRule rule_;
  int32_t rounds_ = 0;  // with drafts that may be ended early
};

}  // namespace outrider
