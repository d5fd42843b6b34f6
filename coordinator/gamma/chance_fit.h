// How likely a draft token is accepted, by how sure the drafter was of it: logistic regression on the margin
// (comm/messages.h, PlaceRule), learnt from verdicts as they come. Pure arithmetic; the same observations in
// the same order give the same coefficients.
//
//   log odds = log odds of the text's recent acceptance + slope(place) * margin + offset(place)
//
// Every place in the draft has two coefficients: those that all places share, and what it differs by, which
// is believed as far as it was tested. The estimator of vLLM's adaptive verification (two coefficients a
// place on the top-2 margin, Newton steps on the observed information) with one observation a step instead of
// windows of a hundred, and with the text's own recent acceptance, which follows it within some twenty
// rounds, where the coefficients follow a pair of models within some hundreds.
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
  // `memory`: of an observation, at the next one; `ridge`: observations that what a place differs by has to
  // outweigh.
  ChanceFit(double memory, double ridge) : memory_(memory), ridge_(ridge) {}

  // `base`: log odds of the text's recent acceptance when the token was drafted. Only tokens that the target
  // tested: those before the first rejection, and that one.
  void observe(size_t place, double base, double margin, bool accepted);
  ChanceLine line(size_t place) const;
  int64_t observed() const { return observed_; }

 private:
  static constexpr size_t kPlaces = 16;  // further ones are as the last

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
