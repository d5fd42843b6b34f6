#include "base/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <numeric>
#include <random>

namespace outrider {
namespace {

constexpr double kMiss = 0.05;  // chance that an interval misses

// The x at which `within` reaches `share`.
template <class Within>
double bisected(double share, Within within) {
  double low = 0, high = 1;
  while (within(high) < share && high < 1e15) high *= 2;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (within(middle) < share ? low : high) = middle;
  }
  return high;
}

double normal_quantile(double share) {
  return bisected(share, [](double x) { return std::erf(x / std::numbers::sqrt2); });
}

// The factor by which the bootstrap of a few samples is too narrow.
double widening(size_t samples, double share) {
  const auto n = static_cast<double>(samples);
  return std::sqrt(n / (n - 1)) * student_quantile(share, static_cast<int>(samples) - 1) /
         normal_quantile(share);
}

std::vector<double> logarithms(std::span<const double> values) {
  std::vector<double> out;
  for (const double value : values) out.push_back(std::log(value));
  return out;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double resampled_mean(const std::vector<double>& values, std::mt19937_64& random) {
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += values[(random() >> 32) * values.size() >> 32];
  return sum / static_cast<double>(values.size());
}

// `centre` and `statistic`, of all samples and of one resample, in logarithms; `fewest`: samples of the
// smaller series.
template <class Statistic>
Ratio bootstrap(double value, double centre, size_t fewest, const BootstrapOptions& options,
                Statistic statistic) {
  Ratio out{.value = value, .samples = static_cast<int>(fewest)};
  if (fewest < 2) return out;
  const double miss = kMiss / std::max(1, options.comparisons);
  std::mt19937_64 random(options.seed);
  std::vector<double> all(static_cast<size_t>(std::max(100, options.resamples)));
  for (double& one : all) one = statistic(random);
  std::sort(all.begin(), all.end());
  const auto cut = static_cast<size_t>(miss / 2 * static_cast<double>(all.size()));
  const double wide = widening(fewest, 1 - miss);
  out.low = std::min(value, std::exp(centre + wide * (all[cut] - centre)));
  out.high = std::max(value, std::exp(centre + wide * (all[all.size() - 1 - cut] - centre)));
  return out;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

Spread Spread::of(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {.median = outrider::median(values), .low = *low, .high = *high};
}

Ratio paired_ratio(std::span<const double> ratios, const BootstrapOptions& options) {
  if (ratios.empty()) return {};
  const std::vector<double> logs = logarithms(ratios);
  return bootstrap(median({ratios.begin(), ratios.end()}), mean(logs), logs.size(), options,
                   [&](std::mt19937_64& random) { return resampled_mean(logs, random); });
}

Ratio unpaired_ratio(std::span<const double> above, std::span<const double> below,
                     const BootstrapOptions& options) {
  if (above.empty() || below.empty()) return {};
  const std::vector<double> a = logarithms(above), b = logarithms(below);
  const double value = median({above.begin(), above.end()}) / median({below.begin(), below.end()});
  return bootstrap(value, mean(a) - mean(b), std::min(a.size(), b.size()), options,
                   [&](std::mt19937_64& random) {
                     const double one = resampled_mean(a, random);
                     return one - resampled_mean(b, random);
                   });
}

std::string describe(const Ratio& ratio) {
  if (!ratio.measured()) return "not measured";
  if (!ratio.has_interval()) return fmt::format("{:.2f} (one sample, no interval)", ratio.value);
  return fmt::format("{:.2f} ({:.2f} to {:.2f})", ratio.value, ratio.low, ratio.high);
}

Share& Share::operator+=(const Share& other) {
  count += other.count;
  of += other.of;
  return *this;
}

double student_within(double t, int freedom) {
  const double angle = std::atan(t / std::sqrt(freedom)), sine = std::sin(angle), cosine = std::cos(angle);
  const bool odd = freedom % 2 == 1;
  double term = odd ? cosine : 1, sum = freedom == 1 ? 0 : term;
  for (int k = odd ? 2 : 1; k <= freedom - 3; k += 2) {
    term *= cosine * cosine * k / (k + 1);
    sum += term;
  }
  return odd ? (angle + sine * sum) / (std::numbers::pi / 2) : sine * sum;
}

double student_quantile(double share, int freedom) {
  return bisected(share, [&](double t) { return student_within(t, freedom); });
}

}  // namespace outrider
