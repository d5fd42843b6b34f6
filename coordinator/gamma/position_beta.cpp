#include "coordinator/gamma/position_beta.h"

#include "base/random.h"
#include "coordinator/gamma/policies.h"

namespace outrider {

PositionBetas::PositionBetas(const PositionBetaOptions& options)
    : betas_(static_cast<size_t>(options.max), Beta{options.prior_accepted, options.prior_rejected}),
      decay_(options.decay) {}

void PositionBetas::update(int32_t drafted, int32_t accepted) {
  const int32_t tested = std::min({drafted, accepted + 1, static_cast<int32_t>(betas_.size())});
  tested_ = std::max(tested_, tested);
  for (int32_t i = 0; i < tested; ++i) {
    Beta& beta = betas_[static_cast<size_t>(i)];
    beta.accepted = decay_ * beta.accepted + (i < accepted ? 1 : 0);
    beta.rejected = decay_ * beta.rejected + (i < accepted ? 0 : 1);
  }
}

double PositionBetas::mean(int32_t position) const {
  const Beta& beta = betas_[static_cast<size_t>(position)];
  return beta.accepted / (beta.accepted + beta.rejected);
}

void PositionBetas::expected_tokens(std::span<double> tokens) const {
  double reach = 1, sum = 1;
  for (size_t g = 0; g < tokens.size(); ++g) {
    tokens[g] = sum;
    reach *= mean(std::min(static_cast<int32_t>(g), std::max(0, tested_ - 1)));
    sum += reach;
  }
}

PositionBetaGamma::PositionBetaGamma(const PositionBetaOptions& options)
    : options_(options), betas_(options), tokens_(static_cast<size_t>(options.max) + 1) {}

int32_t PositionBetaGamma::next(const GammaContext& context) {
  betas_.expected_tokens(tokens_);
  const auto limit = static_cast<size_t>(std::min(options_.max, context.limit));
  const GammaChoice best = best_gamma(std::span(tokens_).first(limit + 1), context);
  if (gamma_ < 0 || best.rate > (1 + options_.switch_gain) *
                                    gamma_rate(tokens_[static_cast<size_t>(gamma_)], gamma_, context))
    gamma_ = best.gamma;
  if (gamma_ == 0) return probes_.next(context);
  // Exploration is reproducible: its draws depend only on the number of earlier decisions.
  const bool explores =
      draw_uniform(Seed{}, Purpose::kPolicy, Position(decisions_++), Round{}) < options_.explore;
  return std::min({gamma_ + (explores ? 1 : 0), options_.max, context.limit});
}

void PositionBetaGamma::update(const RoundOutcome& outcome) {
  if (gamma_ == 0) probes_.update(outcome);
  betas_.update(outcome.drafted, outcome.accepted);
}

Result<GammaPolicyFactory> position_gamma_from(const GammaArguments& arguments) {
  PositionBetaOptions options;
  ASSIGN_OR_RETURN(options.max, gamma_integer(arguments, "max", 1, 1024));
  ASSIGN_OR_RETURN(options.decay, gamma_number(arguments, "decay", 0.01, 0.9999));
  ASSIGN_OR_RETURN(options.explore, gamma_number(arguments, "explore", 0, 1));
  return GammaPolicyFactory([options] { return std::make_unique<PositionBetaGamma>(options); });
}

}  // namespace outrider
