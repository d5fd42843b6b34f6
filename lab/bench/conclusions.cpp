#include "lab/bench/conclusions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace outrider {
namespace {

// Below this nothing was seen to suffer; above it someone else worked too.
constexpr double kQuietCores = 0.1, kQuietSteal = 0.01;
constexpr double kSteadyBandwidth = 0.1;  // lowest below the median

// Turn by turn, where both have a figure.
std::vector<double> ratios(const std::vector<double>& above, const std::vector<double>& below) {
  std::vector<double> out;
  for (size_t i = 0; i < std::min(above.size(), below.size()); ++i)
    if (above[i] > 0 && below[i] > 0) out.push_back(above[i] / below[i]);
  return out;
}

std::string interval(const Ratio& ratio) {
  return ratio.has_interval()
             ? fmt::format("95 % interval {:.2f} to {:.2f}, {} turns", ratio.low, ratio.high, ratio.samples)
             : "one turn gives no interval; give more --repetitions";
}

std::string tokens(int gamma) { return gamma == 1 ? "1 token" : fmt::format("{} tokens", gamma); }

std::string best_against_plain(const GammaResult& best) {
  const Ratio& ratio = best.of_plain;
  if (ratio.is_above(1))
    return fmt::format("Speculation pays: with drafts of {} it decodes {:.2f} times as fast as plain ({}).",
                       tokens(best.gamma), ratio.value, interval(ratio));
  if (ratio.is_below(1))
    return fmt::format(
        "Speculation of a fixed length does not pay: the best, {}, has {:.2f} times plain speed ({}).",
        tokens(best.gamma), ratio.value, interval(ratio));
  return fmt::format(
      "Speculation is not distinguishable from plain decoding: the best length, {}, has {:.2f} times its "
      "speed "
      "({}).",
      tokens(best.gamma), ratio.value, interval(ratio));
}

std::string best_against_others(const BenchResults& results, const GammaResult& best) {
  std::vector<std::string> equal;
  for (const GammaResult& run : results.runs)
    if (&run != &best && !run.of_best.is_below(1)) equal.push_back(std::to_string(run.gamma));
  if (results.runs.size() < 2) return "";
  if (equal.empty()) return fmt::format("Every other length is slower than {}.", best.gamma);
  return fmt::format("Not distinguishable from length {}: {}.", best.gamma, listed(equal));
}

std::string policy_line(const BenchResults& results, const GammaResult& best) {
  const Ratio &plain = results.by_policy.of_plain, &of_best = results.by_policy.of_best;
  const char* verdict = of_best.is_above(1)   ? "faster"
                        : of_best.is_below(1) ? "slower"
                                              : "not distinguishable";
  return fmt::format(
      "The policy {} has {:.2f} times plain speed ({}), and {:.2f} of what length {} has ({}): {}.",
      results.policy, plain.value, interval(plain), of_best.value, best.gamma, interval(of_best), verdict);
}

// Lengths whose turns differ more than they gain or lose.
std::string noise_warning(const BenchResults& results) {
  std::vector<std::string> noisy;
  double most = 0;
  for (const GammaResult& run : results.runs)
    if (const double noise = run.speedup.relative(); noise > std::abs(run.speedup.median - 1)) {
      noisy.push_back(std::to_string(run.gamma));
      most = std::max(most, noise);
    }
  if (noisy.empty()) return "";
  return fmt::format(
      "the speed-up of length {} differs between turns by up to {:.0f} %, more than it gains or loses; more "
      "--repetitions or a quieter machine tell more",
      listed(noisy), 100 * most);
}

// Speed-ups by category, turn by turn as Spec-Bench has them; without categories nothing.
void fill_league(BenchResults& results) {
  const auto row = [&](const std::string& name, const GammaResult& run) {
    std::vector<std::vector<double>> speedups;  // by category, by turn
    for (size_t turn = 0; turn < std::min(run.requests.size(), results.plain.requests.size()); ++turn) {
      const auto categories = by_category(run.requests[turn], results.plain.requests[turn]);
      results.categories.clear();
      speedups.resize(categories.size());
      for (size_t c = 0; c < categories.size(); ++c) {
        results.categories.push_back(categories[c].category);
        if (categories[c].speedup() > 0) speedups[c].push_back(categories[c].speedup());
      }
    }
    CategoryRow out{.name = name, .speedups = {}};
    for (const std::vector<double>& turns : speedups) out.speedups.push_back(paired_ratio(turns));
    results.league.push_back(std::move(out));
  };
  for (const GammaResult& run : results.runs) row(fmt::format("gamma {}", run.gamma), run);
  row(results.policy, results.by_policy);
  if (results.categories.size() < 2) results.league.clear();
}

}  // namespace

std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i)
    out += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  return out;
}

std::vector<std::string> disturbances(const MachineResult& machine) {
  std::vector<std::string> out;
  if (machine.load.other_cores > kQuietCores) {
    out.push_back(fmt::format("other programs kept {:.1f} cores busy meanwhile", machine.load.other_cores));
    if (machine.load.load_before > 0 || machine.load.load_after > 0)  // of one run, not of a study
      out.back() += fmt::format(" (load average {:.1f} before, {:.1f} after)", machine.load.load_before,
                                machine.load.load_after);
  }
  if (machine.load.steal_share > kQuietSteal)
    out.push_back(fmt::format("the hypervisor gave {:.0f} % of the cores' time to others",
                              100 * machine.load.steal_share));
  const Spread& read = machine.bandwidth;
  if (read.low < (1 - kSteadyBandwidth) * read.median)
    out.push_back(fmt::format("memory was read at {:.1f} to {:.1f} GB/s: the machine was not equally fast",
                              read.low * 1e-9, read.high * 1e-9));
  return out;
}

void judge(BenchResults& results) {
  if (results.runs.empty()) return;
  const BootstrapOptions together{.comparisons = static_cast<int>(results.runs.size())};
  const auto against = [](const GammaResult& one, const GammaResult& other, const BootstrapOptions& options) {
    return paired_ratio(ratios(one.rates, other.rates), options);
  };
  for (GammaResult& run : results.runs) run.of_plain = against(run, results.plain, together);
  results.by_policy.of_plain = against(results.by_policy, results.plain, {});
  const GammaResult& best = results.best();
  for (GammaResult& run : results.runs) run.of_best = against(run, best, together);
  results.by_policy.of_best = against(results.by_policy, best, {});

  fill_league(results);
  results.conclusions = {best_against_plain(best)};
  for (std::string line : {best_against_others(results, best), policy_line(results, best)})
    if (!line.empty()) results.conclusions.push_back(std::move(line));
  results.warnings = disturbances(results.machine);
  if (std::string noise = noise_warning(results); !noise.empty())
    results.warnings.push_back(std::move(noise));
}

}  // namespace outrider
