// Statistics of samples: medians, and intervals that show how uncertain they are. Pure functions: equal
// samples give equal results.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace outrider {

// The share of a part in the whole; 0 if the whole is 0.
inline double share_of(double part, double whole) { return whole > 0 ? part / whole : 0; }

// The middle value, or the mean of the two middle values. 0 for an empty list.
double median(std::vector<double> values);

// A figure over turns or repeats.
struct Spread {
  double median = 0, low = 0, high = 0;  // low, high: the extremes
  static Spread of(const std::vector<double>& values);
  // The distance of the extremes over the median; 0 without samples.
  double relative() const { return median > 0 ? (high - low) / median : 0; }
};

// A ratio that was measured several times: the median, and the interval that covers the true value in 95 of
// 100 such measurements, or slightly less with few samples (statistics_test shows the miss rate). The
// interval is a bootstrap of the mean logarithm (Efron 1979), widened for few samples like that of a normal
// mean (Student's t over the normal quantile, and n - 1 for n; Hesterberg 2015), and contains the median. Two
// samples give a wide interval, a single one gives 0 to infinity.
struct Ratio {
  double value = 0;  // 0: nothing was measured
  double low = 0, high = std::numeric_limits<double>::infinity();
  int samples = 0;

  bool measured() const { return samples > 0; }
  bool has_interval() const { return samples > 1; }
  bool is_above(double level) const { return has_interval() && low > level; }
  bool is_below(double level) const { return has_interval() && high < level; }
  // Whether the samples differ significantly from `level`.
  bool differs_from(double level) const { return is_above(level) || is_below(level); }
};

struct BootstrapOptions {
  int resamples = 2000;
  uint64_t seed = 1;
  // The number of ratios judged together: the chance that any of their intervals misses stays 5 %
  // (Bonferroni).
  int comparisons = 1;
};

// One ratio with its interval, from ratios that were each taken within one turn, since a slow turn slows both
// of its sides. All must be positive; the caller leaves out other turns, and turns without a figure.
Ratio paired_ratio(std::span<const double> ratios, const BootstrapOptions& options = {});
// The ratio of two series that were not measured in the same turns: median over median.
Ratio unpaired_ratio(std::span<const double> above, std::span<const double> below,
                     const BootstrapOptions& options = {});

// "1.41 (1.35 to 1.48)"; of one sample "1.41 (one sample, no interval)".
std::string describe(const Ratio& ratio);

// The share of cases with an event, pooled over runs; never a mean of rates.
struct Share {
  int64_t count = 0, of = 0;
  double value() const { return of > 0 ? static_cast<double>(count) / static_cast<double>(of) : 0; }
  Share& operator+=(const Share& other);
};

// P(|T| <= t) for Student's distribution, and the t where it is `share`; exact formulas for whole `freedom`
// >= 1 (Abramowitz and Stegun, 26.7.3 and 26.7.4).
double student_within(double t, int freedom);
double student_quantile(double share, int freedom);

}  // namespace outrider
