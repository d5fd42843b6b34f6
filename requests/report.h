// A run's report: one screen on standard error, everything in a JSON file.
#pragma once

#include <algorithm>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/statistics.h"
#include "comm/messages/draft_forms.h"
#include "coordinator/metrics/metrics.h"
#include "requests/requests.h"

namespace outrider {

// The setting of a run, as reports show it: `auto` and 0 are resolved.
struct RunDescription {
  std::string target, drafter;  // names; drafter: the run's own, or "joined"
  int64_t vocab_size = 0;       // of the target
  int tensor_parallel_size = 1;
  int data_parallel_size = 1;  // target groups that decode
  int prefill_groups = 0;      // target groups that only prefill
  std::string isa;
  std::string device;  // of the target's first rank: cpu or cuda:N
  int64_t max_model_len = 0;
  int max_num_seqs = 0;
  int threads = 0;
  bool speculates = false;              // there are draft workers, or they may join
  bool one_process = false;             // no draft worker is a process of its own, nor may one join
  bool drafts_from_text_alone = false;  // without a draft model or head
  bool weighs_places = false;           // a head may draft beside the target or at draft workers
  bool pinned_zero = false;             // drafts are switched off by a length of 0
  std::string gamma_policy;
  std::string synthetic_acceptance, emulated_link;  // empty: none
  // The form of q for rules that need it: the kind asked for, bytes of a row, bits of an element of a hidden
  // state, and whether drafts come from the host, since only the host makes hidden states.
  QKind q_kind = QKind::kSparse;
  int32_t row_bytes = 0, code_bits = 0;
  bool drafts_on_host = true;
};

// Expected tokens of a round of gamma drafts, each accepted with probability alpha (Leviathan et al. 2023,
// equation 1).
double expected_tokens(double alpha, double gamma);

// The same requests run once without a drafter and once with it (--compare-plain).
struct PlainTurn {
  double plain_tokens_per_second = 0;
  double tokens_per_second = 0;
  // Predicted for lockstep, from the measured acceptance, draft time and verify time, over the measured plain
  // step.
  double predicted_speedup = 0;
};

PlainTurn compare_with_plain(const Totals& plain, const Totals& speculative);

// Over turns. A slow turn slows both of its sides, so the speed-up is the median of the turns' own speed-ups.
struct PlainComparison {
  double plain_tokens_per_second = 0, tokens_per_second = 0;  // medians
  double predicted_speedup = 0;                               // the median
  Ratio speedup;
  double slowest = 0, fastest = 0;  // speed-ups of single turns
  bool identical_output = false;    // in every turn

  static PlainComparison of(std::span<const PlainTurn> turns, bool identical_output);
};

// Rounds whose drafts were prepared during the previous verification, against the closed form with the hit
// rate and the costs that were measured while both roles worked. Milliseconds of a round.
struct OverlapComparison {
  double hit_rate = 0;
  double verify = 0, draft = 0, prepare = 0;  // draft: a whole draft, as on a miss
  double measured = 0;
  double predicted() const {
    return hit_rate * std::max(verify, prepare) + (1 - hit_rate) * (verify + draft);
  }
};

// Empty if the formula does not apply: nothing was prepared, or sequences shared passes.
std::optional<OverlapComparison> compare_overlap(const Totals& totals);

// `metrics`: from Coordinator::fill_report, in both functions.
std::string screen_report(const RunDescription& run, const Totals& totals, const nlohmann::json& metrics,
                          const std::optional<PlainComparison>& comparison);

// The report of a run whose requests are not kept.
nlohmann::json json_report(const RunDescription& run, const Totals& totals, nlohmann::json metrics);
// Also contains the requests' parameters. `seed`: the run's own.
nlohmann::json json_report(const RunDescription& run, const std::vector<PromptRequest>& requests,
                           uint64_t seed, const Totals& totals, nlohmann::json metrics,
                           const std::optional<PlainComparison>& comparison);

}  // namespace outrider
