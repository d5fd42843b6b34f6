// What a run tells about itself: one screen on standard error, everything in a JSON file.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/metrics.h"
#include "requests/requests.h"
#include "start/flags/options.h"
#include "start/prepare.h"

namespace outrider {

// Expected tokens of a round of gamma drafts, each accepted with probability alpha (Leviathan et al. 2023,
// equation 1).
double expected_tokens(double alpha, double gamma);

// Plain decoding of the same requests, measured in the same program (--compare-plain).
struct PlainComparison {
  double plain_tokens_per_second = 0;
  double tokens_per_second = 0;
  bool identical_output = false;
  // Lockstep with the measured acceptance, draft time and verify time, over the measured plain step.
  double predicted_speedup = 0;

  double speedup() const {
    return plain_tokens_per_second > 0 ? tokens_per_second / plain_tokens_per_second : 0;
  }
};

// Rounds whose drafts were prepared while the draft before was verified, against the closed form with the hit
// rate and the costs that were measured while both roles worked. Milliseconds of a round.
struct OverlapComparison {
  double hit_rate = 0;
  double verify = 0, draft = 0, prepare = 0;  // draft: a whole one, as on a miss
  double measured = 0;
  double predicted() const {
    return hit_rate * std::max(verify, prepare) + (1 - hit_rate) * (verify + draft);
  }
};

// Empty where the formula says nothing: nothing was prepared, or sequences shared passes.
std::optional<OverlapComparison> compare_overlap(const Totals& totals);

PlainComparison compare_with_plain(const Totals& plain, const Totals& speculative, bool identical_output);

// `metrics` as Coordinator::fill_report leaves it, in both.
std::string screen_report(const RunOptions& options, const Totals& totals, const nlohmann::json& metrics,
                          const std::optional<PlainComparison>& comparison);

// Of a run whose requests nobody kept. Says what ran: `auto` and 0 are resolved.
nlohmann::json json_report(const RunOptions& options, const Preparation& prepared, const Totals& totals,
                           nlohmann::json metrics);
// Also what the requests asked for.
nlohmann::json json_report(const RunOptions& options, const Preparation& prepared,
                           const std::vector<PromptRequest>& requests, const Totals& totals,
                           nlohmann::json metrics, const std::optional<PlainComparison>& comparison);

}  // namespace outrider
