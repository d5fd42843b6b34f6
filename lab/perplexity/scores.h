// Sums over the scored positions of a text.
#pragma once

#include <cstdint>
#include <span>

#include "base/types.h"

namespace outrider {

// Negative log-likelihoods, in nats.
class Likelihood {
 public:
  void add(double nll);
  int64_t count() const { return count_; }
  double perplexity() const;
  // The standard error of perplexity(): that of the mean likelihood, times the perplexity.
  double error() const;
  double mean() const { return sum_ / static_cast<double>(count_); }
  double mean_square() const { return squares_ / static_cast<double>(count_); }

 private:
  int64_t count_ = 0;
  double sum_ = 0, squares_ = 0;
};

// A model compared with a base model at the same positions.
struct Difference {
  int64_t count = 0;
  double divergence_sum = 0;  // Kullback-Leibler, base against model, in nats
  double divergence_max = 0;
  int64_t same_top = 0;  // positions where both have the same most likely token

  double mean_divergence() const { return divergence_sum / static_cast<double>(count); }
  double same_top_share() const { return static_cast<double>(same_top) / static_cast<double>(count); }
};

// Likelihoods of two models at the same positions. Most of what one position adds to the error of either it
// adds to both, so their difference is known better than they are.
class PairedLikelihood {
 public:
  void add(double model_nll, double base_nll);
  const Likelihood& model() const { return model_; }
  const Likelihood& base() const { return base_; }
  // The difference of the perplexities, and its standard error.
  double difference() const { return model_.perplexity() - base_.perplexity(); }
  double difference_error() const { return error_of(model_.perplexity(), base_.perplexity()); }
  double ratio() const { return model_.perplexity() / base_.perplexity(); }
  double ratio_error() const { return ratio() * error_of(1, 1); }

 private:
  // The standard error of a * (mean of the model) - b * (mean of the base).
  double error_of(double a, double b) const;

  Likelihood model_, base_;
  double products_ = 0;
};

// log(sum(exp(logits))), in double.
double log_sum_exp(std::span<const float> logits);

// Adds a position at which `base` and `model` have these logits.
void add_difference(std::span<const float> base, std::span<const float> model, Difference& to);

}  // namespace outrider
