#include "coordinator/gamma/ewma.h"

#include "coordinator/gamma/policies.h"

namespace outrider {
namespace {

// A new sequence starts where the pair's earlier ones are, with the prior's weight.
double starting_mean(const EwmaOptions& options, const PairHistory* history) {
  if (!history) return options.prior_mean;
  return (options.prior_mean * options.prior_tests + history->accepted) /
         (options.prior_tests + history->tested);
}

}  // namespace

EwmaGamma::EwmaGamma(const EwmaOptions& options, std::shared_ptr<PairHistory> history)
    : options_(options),
      history_(std::move(history)),
      acceptance_(starting_mean(options, history_.get()), options.prior_tests, options.decay),
      tokens_(static_cast<size_t>(options.max) + 1) {}

int32_t EwmaGamma::next(const GammaContext& context) {
  choose(context);
  return gamma_ == 0 ? probes_.next(context) : std::min(gamma_, context.limit);
}

void EwmaGamma::choose(const GammaContext& context) {
  const int32_t limit = std::min(options_.max, context.limit);
  const auto tokens = std::span(tokens_).first(static_cast<size_t>(limit) + 1);
  for (int32_t g = 0; g <= limit; ++g)
    tokens[static_cast<size_t>(g)] = expected_tokens(acceptance_.mean(), g);
  const GammaChoice best = best_gamma(tokens, context);
  if (gamma_ < 0 || best.rate > (1 + options_.switch_gain) *
                                    gamma_rate(expected_tokens(acceptance_.mean(), gamma_), gamma_, context))
    gamma_ = best.gamma;
}

void EwmaGamma::update(const RoundOutcome& outcome) {
  if (gamma_ == 0) probes_.update(outcome);
  if (outcome.drafted == 0) return;
  acceptance_.update(outcome.drafted, outcome.accepted);
  if (history_) {
    history_->accepted = PairHistory::kDecay * history_->accepted + outcome.accepted;
    history_->tested =
        PairHistory::kDecay * history_->tested + outcome.accepted + (outcome.accepted < outcome.drafted);
  }
  watch_for_collapse(outcome);
}

// When acceptance falls, tests become rare and the average follows slowly. Four rounds without an accepted
// token are one in 2000 at acceptance 0.85, so half the evidence is dropped then.
void EwmaGamma::watch_for_collapse(const RoundOutcome& outcome) {
  zeros_ = outcome.accepted == 0 ? zeros_ + 1 : 0;
  if (options_.zero_guard == 0 || zeros_ < options_.zero_guard) return;
  zeros_ = 0;
  acceptance_.forget(0.5);
  gamma_ = (gamma_ + 1) / 2;
}

Result<GammaPolicyFactory> ewma_gamma_from(const GammaArguments& arguments) {
  EwmaOptions options;
  ASSIGN_OR_RETURN(options.max, gamma_integer(arguments, "max", 1, 1024));
  ASSIGN_OR_RETURN(options.decay, gamma_number(arguments, "decay", 0.01, 0.999));
  ASSIGN_OR_RETURN(options.prior_mean, gamma_number(arguments, "prior", 0.01, 0.99));
  ASSIGN_OR_RETURN(options.prior_tests, gamma_number(arguments, "prior-tests", 0.1, 1e6));
  ASSIGN_OR_RETURN(options.switch_gain, gamma_number(arguments, "switch-gain", 0, 10));
  ASSIGN_OR_RETURN(options.zero_guard, gamma_integer(arguments, "zero-guard", 0, 1024));
  const auto history = std::make_shared<PairHistory>();
  return GammaPolicyFactory([options, history] { return std::make_unique<EwmaGamma>(options, history); });
}

}  // namespace outrider
