#include "coordinator/gamma/chance_fit.h"

#include <algorithm>
#include <cmath>

namespace outrider {
namespace {

constexpr double kMinChance = 0.005;       // no chance is taken for 0 or 1
constexpr double kSharedRidge = 4;         // observations that outweigh the prior of the shared coefficients
constexpr double kUsualInformation = 0.2;  // of one observation: a (1 - a), from 0.7 to 0.9 on average

}  // namespace

double log_odds_of(double chance) {
  const double inside = std::clamp(chance, kMinChance, 1 - kMinChance);
  return std::log(inside / (1 - inside));
}

double chance_of_log_odds(double log_odds) { return 1 / (1 + std::exp(-log_odds)); }

void ChanceFit::Newton::step(double log_odds, double margin, bool accepted, double memory, double ridge) {
  const double chance = chance_of_log_odds(log_odds + at.slope * margin + at.offset);
  const double weight = std::max(chance * (1 - chance), kMinChance);
  mm = memory * mm + weight * margin * margin;
  m1 = memory * m1 + weight * margin;
  ones = memory * ones + weight;
  const double prior = ridge * kUsualInformation;
  const double a = mm + prior, d = ones + prior;
  const double error = (accepted ? 1 : 0) - chance;
  // The pull of the ridge prior towards 0 is left out. The prior only limits how far one observation may
  // move the coefficients.
  const double determinant = a * d - m1 * m1;
  at.slope += (d * margin - m1) * error / determinant;
  at.offset += (a - m1 * margin) * error / determinant;
}

void ChanceFit::observe(size_t place, double base, double margin, bool accepted) {
  ++observed_;
  Newton& own = differs_[std::min(place, kPlaces - 1)];
  const double shared = base + shared_.at.slope * margin + shared_.at.offset;
  shared_.step(base, margin, accepted, memory_, kSharedRidge);
  // A more confident drafter must not get a lower chance.
  shared_.at.slope = std::max(0.0, shared_.at.slope);
  own.step(shared, margin, accepted, memory_, ridge_);
  own.at.slope = std::max(-shared_.at.slope, own.at.slope);
}

ChanceLine ChanceFit::line(size_t place) const {
  const ChanceLine& own = differs_[std::min(place, kPlaces - 1)].at;
  return {.slope = shared_.at.slope + own.slope, .offset = shared_.at.offset + own.offset};
}

}  // namespace outrider
