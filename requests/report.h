// What a run tells about itself: one screen on standard error, everything in a JSON file.
#pragma once

#include <algorithm>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/statistics.h"
#include "comm/messages/draft_forms.h"
#include "coordinator/metrics.h"
#include "requests/requests.h"

namespace outrider {

// What ran, as reports tell it: `auto` and 0 are resolved.
struct RunDescription {
  std::string target, drafter;  // names; drafter: of the run's own, or "joined"
  int64_t vocab_size = 0;       // of the target
  int tensor_parallel_size = 1;
  int data_parallel_size = 1;  // target groups
  std::string isa;
  std::string device;  // of the target's first rank: cpu or cuda:N
  int64_t max_model_len = 0;
  int max_num_seqs = 0;
  int threads = 0;
  bool speculates = false;     // there are draft workers, or may be
  bool weighs_places = false;  // a head may draft beside the target or at draft workers
  bool pinned_zero = false;    // drafts are switched off by a length of 0
  std::string gamma_policy;
  std::string synthetic_acceptance, emulated_link;  // empty: none
  // What rules that need q get: the form asked for, what a row may take, the bits of an element of a state,
  // and whether drafts come from the host, where alone states are made.
  QKind q_kind = QKind::kSparse;
  int32_t row_bytes = 0, code_bits = 0;
  bool drafts_on_host = true;
};

// Expected tokens of a round of gamma drafts, each accepted with probability alpha (Leviathan et al. 2023,
// equation 1).
double expected_tokens(double alpha, double gamma);

// The same requests once without a drafter and once with it (--compare-plain).
struct PlainTurn {
  double plain_tokens_per_second = 0;
  double tokens_per_second = 0;
  // Lockstep with the measured acceptance, draft time and verify time, over the measured plain step.
  double predicted_speedup = 0;
};

PlainTurn compare_with_plain(const Totals& plain, const Totals& speculative);

// Over turns. What slows a turn down slows both of its sides, so the speed-up is the median of the turns'
// own.
struct PlainComparison {
  double plain_tokens_per_second = 0, tokens_per_second = 0;  // medians
  double predicted_speedup = 0;                               // a median, too
  Ratio speedup;
  bool identical_output = false;  // in every turn

  static PlainComparison of(std::span<const PlainTurn> turns, bool identical_output);
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

// `metrics` as Coordinator::fill_report leaves it, in both.
std::string screen_report(const RunDescription& run, const Totals& totals, const nlohmann::json& metrics,
                          const std::optional<PlainComparison>& comparison);

// The report of a run whose requests nobody kept.
nlohmann::json json_report(const RunDescription& run, const Totals& totals, nlohmann::json metrics);
// With what the requests asked for. `seed`: the run's own.
nlohmann::json json_report(const RunDescription& run, const std::vector<PromptRequest>& requests,
                           uint64_t seed, const Totals& totals, nlohmann::json metrics,
                           const std::optional<PlainComparison>& comparison);

}  // namespace outrider
