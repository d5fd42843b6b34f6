// vLLM's estimate (0.33, adaptive verification) of the chance that a draft token is accepted:
//
//   chance = 1 / (1 + exp(-(slope * confidence + offset(place))))
//
// One slope for all places, and an offset for each. Observations are summed over a window of steps. Then one
// Newton step moves all coefficients together, and each coefficient takes the share n / (n + 50) of its part,
// where n counts its observations. The slope never becomes negative. The confidence is vLLM's logit of the
// draft token's probability; a margin (PlaceRule) stands for it here.
#pragma once

#include <cstddef>
#include <vector>

namespace outrider {

class SharedSlopeFit {
 public:
  static constexpr int kWindow = 100;  // steps
  // Medians over five pairs of models, by vLLM.
  static constexpr double kFirstSlope = 0.5, kFirstOffset = -0.2;

  explicit SharedSlopeFit(size_t places) : places_(places) {}

  double chance(size_t place, double confidence) const;
  double slope() const { return slope_; }
  double offset(size_t place) const { return at(place).offset; }
  // Only for tested tokens: those before the first rejection, and the rejected one.
  void observe(size_t place, double confidence, bool accepted);
  // A step of the batch is over.
  void step();
  // The Newton step over the present window. Begins the next one.
  void refit();

 private:
  struct Place {
    double offset = kFirstOffset;
    double cross = 0, weight = 0, error = 0, count = 0;  // sums of w * confidence, w, residual, 1
  };
  const Place& at(size_t place) const;

  std::vector<Place> places_;
  double slope_ = kFirstSlope;
  double square_ = 0, slope_error_ = 0;  // sums of w * confidence^2, residual * confidence
  int steps_ = 0;
};

}  // namespace outrider
