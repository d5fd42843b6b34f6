// Handles measurements of work that lost its core to other programs: some take whole time slices longer,
// milliseconds instead of fractions of one. Plain arithmetic on numbers in a given order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace outrider {

// Limits the influence of outliers on an estimate. A measurement far above the expected value counts as the
// largest believable value; a whole spell of such measurements in a row means that the true value has
// changed.
class HeldUp {
 public:
  HeldUp(double most, int32_t spell) : most_(most), spell_(spell) {}
  double believed(double measured, double expected) {
    in_a_row_ = measured > most_ * expected ? in_a_row_ + 1 : 0;
    return in_a_row_ < spell_ ? std::min(measured, most_ * expected) : measured;
  }

 private:
  double most_;  // largest believable value, times the expected one
  int32_t spell_;
  int32_t in_a_row_ = 0;
};

// The mean amount that was cut off measurements, with a long memory, because outliers are rare and large. The
// largest recent value is not used: a single outlier is chance.
class CutOff {
 public:
  void add(double cut) {
    constexpr double kForget = 0.996;
    weight_ = kForget * weight_ + 1;
    sum_ = kForget * sum_ + cut;
    largest_ = std::max(kForget * largest_, cut);
  }
  double mean() const { return std::max(0.0, sum_ - largest_) / weight_; }

 private:
  static constexpr double kPrior = 50;  // measurements without a cut, as prior
  double weight_ = kPrior, sum_ = 0, largest_ = 0;
};

// The lower of the two middle values, if their count is even. Sorts the values.
inline double lower_median(std::span<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace outrider
