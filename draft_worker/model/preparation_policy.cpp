#include "draft_worker/model/preparation_policy.h"

#include <algorithm>

namespace outrider {
namespace {

constexpr double kForgetting = 0.98;  // per pass
// Least weight of a new sample in an average. A hit halves the time of a round, so means of few rounds differ
// by chance; verification times vary little.
constexpr double kRoundWeight = 0.04, kVerdictWeight = 0.1;
// Cap of a sample, times the average. A longer time is a pause of the request, or a stall of the machine, not
// a slow round. A single stall must not turn preparing off until the next trial, many rounds later.
constexpr double kLongest = 1.5;
constexpr int64_t kTrials = 24;  // first rounds; every sixth goes without preparation
// Later one round in this number does the opposite, as a trial.
constexpr int64_t kTryPreparing = 48, kTryWithout = 96;
constexpr double kWorthStopping = 0.95;

}  // namespace

void PassCost::observe(int64_t rows, double ns) {
  const auto x = static_cast<double>(rows);
  for (double* sum : {&weight_, &x_, &y_, &xx_, &xy_}) *sum *= kForgetting;
  weight_ += 1;
  x_ += x;
  y_ += ns;
  xx_ += x * x;
  xy_ += x * ns;
}

double PassCost::of(int64_t rows) const {
  if (weight_ == 0) return 0;
  const double spread = weight_ * xx_ - x_ * x_, mean_x = x_ / weight_, mean_y = y_ / weight_;
  // Passes of one size do not show the slope; more rows never make a pass cheaper.
  const double slope = spread > 1e-6 * xx_ ? std::max(0.0, (weight_ * xy_ - x_ * y_) / spread) : 0.0;
  return std::max(mean_y + slope * (static_cast<double>(rows) - mean_x), 0.05 * mean_y);
}

void PreparationPolicy::Mean::add(int64_t sample, double least_weight) {
  if (sample <= 0) return;
  auto capped = static_cast<double>(sample);
  if (samples > 0) capped = std::min(capped, kLongest * ns);
  ns += std::max(least_weight, 1.0 / static_cast<double>(++samples)) * (capped - ns);
}

void PreparationPolicy::verdict_took(int64_t ns) { verdict_.add(ns, kVerdictWeight); }

void PreparationPolicy::round_took(bool prepared, int64_t ns) {
  (prepared ? prepared_ : idle_).add(ns, kRoundWeight);
}

bool PreparationPolicy::prepare_next() {
  if (++rounds_ <= kTrials) return rounds_ % 6 != 0;
  const bool better = idle_.samples == 0 || idle_.ns > kWorthStopping * prepared_.ns;
  return rounds_ % (better ? kTryWithout : kTryPreparing) == 0 ? !better : better;
}

size_t PreparationPolicy::rows_worth(std::span<const double> probabilities, int64_t waited_ns) const {
  if (!cost_.known() || verdict_.samples == 0) return probabilities.size();
  const double token_ns = cost_.of(1);  // time saved by a prepared token if its outcome happens
  const double remaining = verdict_.ns - static_cast<double>(waited_ns);
  size_t best = 0;
  double best_rate = 0, mass = 0;
  for (size_t r = 1; r <= probabilities.size(); ++r) {
    mass += probabilities[r - 1];
    const double pass_ns = cost_.of(static_cast<int64_t>(r));
    // A verdict that is overdue may come at any moment: on average it would wait for half the pass.
    const double delay = remaining > 0 ? std::max(0.0, pass_ns - remaining) : pass_ns / 2;
    const double rate = (mass * token_ns - delay) / pass_ns;
    if (rate > best_rate) {
      best_rate = rate;
      best = r;
    }
  }
  return best;
}

}  // namespace outrider
