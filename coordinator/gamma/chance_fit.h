// Fits the chance that a draft token is accepted to the drafter's confidence: logistic regression on the
// margin (comm/messages.h, PlaceRule), updated with every verdict. Pure arithmetic; the same observations in
// the same order give the same coefficients.
//
//   log odds = log odds of the text's recent acceptance + slope(place) * margin + offset(place)
//
// Every place in the draft has two coefficients, the sum of common ones and of a deviation whose weight grows
// with its tests. The estimator is that of vLLM's adaptive verification (two coefficients a place on the
// top-2 margin, Newton steps on the observed information), with one observation a step instead of windows of
// a hundred. It also uses the text's recent acceptance, which follows a text within some twenty rounds; the
// coefficients follow a pair of models within some hundreds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace outrider {

struct ChanceLine {
  double slope = 0, offset = 0;
};

class ChanceFit {
 public:
  // `memory`: weight of an observation after the next one. `ridge`: observations that outweigh the prior of a
  // place's deviation.
  ChanceFit(double memory, double ridge) : memory_(memory), ridge_(ridge) {}

  // `base`: log odds of the text's recent acceptance when the token was drafted. Only for tested tokens:
  // those before the first rejection, and the rejected one.
  void observe(size_t place, double base, double margin, bool accepted);
  ChanceLine line(size_t place) const;
  int64_t observed() const { return observed_; }

 private:
  static constexpr size_t kPlaces = 16;  // later places use the last one

  // One online Newton step of the log likelihood for each observation.
  struct Newton {
    ChanceLine at;
    double mm = 0, m1 = 0, ones = 0;  // information, decayed
    // `log_odds`: of the model without `at`. `ridge`: prior information of either coefficient.
    void step(double log_odds, double margin, bool accepted, double memory, double ridge);
  };

  double memory_, ridge_;
  Newton shared_;
  std::array<Newton, kPlaces> differs_;
  int64_t observed_ = 0;
};

double log_odds_of(double chance);
double chance_of_log_odds(double log_odds);

}  // namespace outrider
