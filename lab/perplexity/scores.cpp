#include "lab/perplexity/scores.h"

#include <algorithm>
#include <cmath>

namespace outrider {

void Likelihood::add(double nll) {
  ++count_;
  sum_ += nll;
  squares_ += nll * nll;
}

double Likelihood::perplexity() const { return std::exp(sum_ / static_cast<double>(count_)); }

double Likelihood::error() const {
  if (count_ < 2) return 0;
  const auto count = static_cast<double>(count_);
  const double mean = sum_ / count, variance = std::max(0.0, squares_ / count - mean * mean);
  return perplexity() * std::sqrt(variance / (count - 1));
}

void PairedLikelihood::add(double model_nll, double base_nll) {
  model_.add(model_nll);
  base_.add(base_nll);
  products_ += model_nll * base_nll;
}

double PairedLikelihood::error_of(double a, double b) const {
  if (model_.count() < 2) return 0;
  const auto count = static_cast<double>(model_.count());
  const double mean = a * model_.mean() - b * base_.mean();
  const double square =
      a * a * model_.mean_square() + b * b * base_.mean_square() - 2 * a * b * products_ / count;
  return std::sqrt(std::max(0.0, square - mean * mean) / (count - 1));
}

double log_sum_exp(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  return max + std::log(sum);
}

void add_difference(std::span<const float> base, std::span<const float> model, Difference& to) {
  const double of_base = log_sum_exp(base), of_model = log_sum_exp(model);
  double divergence = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    const double log_p = static_cast<double>(base[i]) - of_base;
    divergence += std::exp(log_p) * (log_p - (static_cast<double>(model[i]) - of_model));
  }
  divergence = std::max(0.0, divergence);  // rounding
  ++to.count;
  to.divergence_sum += divergence;
  to.divergence_max = std::max(to.divergence_max, divergence);
  to.same_top += std::max_element(base.begin(), base.end()) - base.begin() ==
                 std::max_element(model.begin(), model.end()) - model.begin();
}

}  // namespace outrider
