#include "heads/branch_confidence.h"

#include <algorithm>
#include <cmath>

namespace outrider {
namespace {

constexpr double kMemory = 0.998;  // of an observation, at the next one
constexpr double kPrior = 5;       // what the first temperature is ahead of its neighbours, in nats
constexpr double kTail = 1;        // all further tokens, as many of the last one
constexpr double kLeast = 1e-6;    // of a token that was thought impossible

// Relative weights of the tokens, then of all others.
void weigh(std::span<const float> scores, double temperature, std::vector<double>& out) {
  out.clear();
  for (const float score : scores)
    out.push_back(std::exp(static_cast<double>(score - scores.front()) / temperature));
  out.push_back(kTail * out.back());
}

}  // namespace

BranchConfidence::BranchConfidence() {
  for (size_t i = 0; i < kTemperatures.size(); ++i)
    log_likelihood_[i] = -kPrior * std::abs(static_cast<double>(i) - static_cast<double>(kFirst));
}

void BranchConfidence::shares(std::span<const float> scores, std::vector<double>& out) const {
  out.clear();
  if (scores.empty()) return;
  weigh(scores, temperature(), out);
  double sum = 0;
  for (const double weight : out) sum += weight;
  out.pop_back();
  for (double& share : out) share /= sum;
}

void BranchConfidence::observe(std::span<const float> scores, size_t rank) {
  if (scores.empty()) return;
  for (size_t i = 0; i < kTemperatures.size(); ++i) {
    weigh(scores, kTemperatures[i], scratch_);
    double sum = 0;
    for (const double weight : scratch_) sum += weight;
    log_likelihood_[i] = kMemory * log_likelihood_[i] + std::log(std::max(kLeast, scratch_[rank] / sum));
  }
  best_ = static_cast<size_t>(std::max_element(log_likelihood_.begin(), log_likelihood_.end()) -
                              log_likelihood_.begin());
}

}  // namespace outrider
