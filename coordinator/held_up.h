// Measurements of work that lost its core to other programs: some take whole slices of the scheduler longer,
// milliseconds where they usually take fractions of one. Plain arithmetic on numbers in a given order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace outrider {

// How much of a measurement to believe, by what is expected. One that is far beyond it was held up and counts
// for the most that is believable; when a whole spell of them comes in a row, things have changed.
class HeldUp {
 public:
  HeldUp(double most, int32_t spell) : most_(most), spell_(spell) {}
  double believed(double measured, double expected) {
    in_a_row_ = measured > most_ * expected ? in_a_row_ + 1 : 0;
    return in_a_row_ < spell_ ? std::min(measured, most_ * expected) : measured;
  }

 private:
  double most_;  // times what is expected
  int32_t spell_;
  int32_t in_a_row_ = 0;
};

// What was cut off measurements, on average, with a long memory: it comes rarely and then much. The largest
// of late does not count, since once is chance.
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
  static constexpr double kPrior = 50;  // measurements of which nothing was cut off
  double weight_ = kPrior, sum_ = 0, largest_ = 0;
};

// The lower of the two in the middle, where their count is even. Sorts.
inline double lower_median(std::span<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace outrider
