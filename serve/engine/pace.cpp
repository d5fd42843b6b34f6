#include "serve/engine/pace.h"

#include <algorithm>
#include <cmath>

#include "base/statistics.h"

namespace outrider {
namespace {

constexpr std::chrono::seconds kStep{1};
constexpr size_t kSteps = 10;

double seconds_of(const PhaseTimes& phases) {
  return std::chrono::duration<double>(phases.draft_wait + phases.plan_wait + phases.verify).count();
}

// Tokens of a round whose gamma draft tokens are accepted with this probability each (Leviathan et al. 2023,
// equation 1). A mean gamma need not be whole.
double tokens_of_mean(double acceptance, double gamma) {
  if (acceptance >= 1) return gamma + 1;
  return (1 - std::pow(acceptance, gamma + 1)) / (1 - acceptance);
}

Totals without_histograms(const Totals& totals) {
  Totals out;
  static_cast<EventCounts&>(out) = totals;
  out.rounds = totals.rounds;
  out.decoding = totals.decoding;
  return out;
}

}  // namespace

Pace pace_between(const Totals& before, const Totals& now, double seconds, const Overview& overview) {
  const RoundSums &then = before.rounds, &r = now.rounds;
  const int64_t rounds = r.rounds - then.rounds, emitted = r.emitted - then.emitted;
  Pace out{.tokens_per_second = share_of(static_cast<double>(emitted), seconds),
           .prompt_tokens_per_second =
               share_of(static_cast<double>(now.prompt_tokens - before.prompt_tokens), seconds),
           .acceptance = share_of(static_cast<double>(r.accepted - then.accepted),
                                  static_cast<double>(r.tested - then.tested)),
           .tokens_per_round = share_of(static_cast<double>(emitted), static_cast<double>(rounds)),
           .tokens_per_target_pass = share_of(static_cast<double>(emitted),
                                              static_cast<double>(now.target_passes - before.target_passes))};
  // Where hardly anything but probes is drafted, both are almost equal, and their ratio is noise.
  constexpr int64_t kHardly = 20;  // rounds for each draft token
  if (rounds == 0) return out;
  out.drafting = overview.plain_round_seconds <= 0                ? DraftingPace::kNotMeasured
                 : (r.drafted - then.drafted) * kHardly <= rounds ? DraftingPace::kNotDrafting
                                                                  : DraftingPace::kDrafting;
  if (out.drafting != DraftingPace::kDrafting) return out;
  const double plain = overview.plain_round_seconds;
  out.predicted_speedup =
      share_of(tokens_of_mean(out.acceptance, overview.mean_gamma) * plain, overview.round_seconds);
  // Beside a prefill a round of plain decoding would take longer too, by an unknown amount.
  const double took = seconds_of(now.decoding.phases) - seconds_of(before.decoding.phases);
  const auto tokens = static_cast<double>(now.decoding.emitted - before.decoding.emitted);
  out.measured_speedup = share_of(tokens * plain, took);
  return out;
}

const Pace& PaceKeeper::look(Clock::time_point now, const Totals& totals, const Overview& overview) {
  if (overview.plain_round_seconds > 0) busy_ = overview;
  if (past_.empty()) past_.push_back({now, without_histograms(totals)});
  const auto& oldest = past_.front();
  pace_ = pace_between(oldest.totals, totals, std::chrono::duration<double>(now - oldest.at).count(), busy_);
  if (now - past_.back().at >= kStep) past_.push_back({now, without_histograms(totals)});
  while (past_.size() > kSteps) past_.pop_front();
  return pace_;
}

}  // namespace outrider
