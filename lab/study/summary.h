// Results of a study: the figures of every run, and of every cell over its repeats.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/statistics.h"
#include "lab/bench/results.h"
#include "lab/study/cell_store.h"
#include "lab/study/timeline.h"

namespace outrider {

// The figures of one record of a CellStore. Figures that the run did not have are 0.
struct RunFigures {
  bool ok = false, synthetic = false;
  std::string error;         // where not ok
  std::string identical;     // to plain decoding: "yes", "no", or "" where it was not compared
  std::string commit, host;  // that made it; empty in records of older versions
  int repeat = 0;
  double seconds = 0;  // of the whole process
  double tokens_per_second = 0, plain_tokens_per_second = 0, speedup = 0, predicted_speedup = 0;
  double acceptance = 0, tokens_per_round = 0, mean_gamma = 0, bytes_per_accepted = 0;
  double ttft_p50_ms = 0, itl_p50_ms = 0, itl_p95_ms = 0, itl_p99_ms = 0;  // zeros inside bursts included
  double itl_variation = 0;                                                // deviation over mean
  double pause_p50_ms = 0, pause_p99_ms = 0;                               // between bursts
  double burst_p99 = 0;                                                    // tokens
  double target_idle = 0, draft_idle = 0, hit_rate = 0;                    // shares
  double verify_predicted = 0;  // seconds of all passes as the cost model foretold them, over the measured
  double plain_step_ms = 0, row_ms = 0, draft_ms = 0, exchange_ms = 0;  // as the cost model was fitted
  double accepted_tokens = 0, tested_tokens = 0, drafted_tokens = 0;
  double other_cores = 0, steal_share = 0;                 // of the machine meanwhile (lab/bench/machine.h)
  double read_bandwidth = 0;                               // bytes per second, as last probed before the run
  std::vector<double> position_acceptance;                 // by position in the draft, from 0
  std::vector<double> position_accepted, position_tested;  // tokens, by the same
  nlohmann::json by_category;           // as generate reports it; null in records of older versions
  std::vector<double> gamma_histogram;  // rounds by draft length
};
RunFigures figures_of(const nlohmann::json& record);

// The verdict on a ratio of two rates: "faster", "slower", "not distinguishable".
const char* speed_verdict(const Ratio& ratio);

struct CellSummary {
  Cell cell;
  std::vector<RunFigures> runs;  // that are there, failed ones included
  Timeline timeline;             // of the first that succeeded

  // Over successful runs; zeros where there is none.
  Spread spread(double RunFigures::*figure) const;
  double median_of(double RunFigures::*figure) const { return spread(figure).median; }
  double median_rate() const { return median_of(&RunFigures::tokens_per_second); }
  bool any_ok() const;
  // Shares of accepted tokens among tested ones, and among drafted ones, pooled over runs.
  Share acceptance() const;
  Share utilisation() const;
  // Over plain decoding in the same process.
  Ratio speedup() const;
  // Element by element, pooled over runs.
  std::vector<double> position_acceptance() const;
  std::vector<double> gamma_histogram() const;
};

// A share of tokens/s that was lost, with the 95 % interval of the ratio it comes from (base/statistics.h);
// one repeat gives no interval, nor is there one of the best fixed length against itself.
struct Regret {
  double value = 0, low = 0, high = 0;
  bool has_interval() const { return low < high; }
};

// Cells to compare, e.g. those that differ in the choice of draft length only.
struct CellGroup {
  std::string name;
  std::vector<const CellSummary*> cells;
  std::vector<std::string> names;  // of the cells within the group
  // The fixed length with the highest median tokens/s: the best in hindsight. Null without any.
  const CellSummary* best_fixed() const;
  // Tokens/s over those of the best fixed length, repeat by repeat. That length was chosen for its figures,
  // so this is a little too low where lengths are alike.
  Ratio of_best_fixed(const CellSummary& cell) const;
  // Share of tokens/s lost against it; below 0: faster. Empty without it or without this cell's figure.
  std::optional<Regret> regret(const CellSummary& cell) const;
  // Speed-up of lockstep by this group's median acceptance and costs; 0 where nothing was measured.
  double theory(int gamma) const;
};

struct StudySummary {
  StudyFile study;
  std::vector<CellSummary> cells;
  int failed() const;
  bool synthetic() const;
  // By all but the draft length.
  std::vector<CellGroup> groups() const;
  // By the value of the x-axis, where the study names one; else as groups().
  std::vector<CellGroup> panels() const;
  // The setting of the runs, from the first successful one.
  std::string setting;
  std::vector<std::string> conclusions, warnings;  // sentences, the most important first (findings.h)
};

// Tokens/s of one cell over those of another, paired by repeat: repeats are interleaved, so what slows one
// down slows its neighbours.
Ratio rate_ratio(const CellSummary& above, const CellSummary& below);

StudySummary summarise(const StudyFile& study, const CellStore& store);

// A line per run, and the same for programs.
std::string study_csv(const StudySummary& summary);
nlohmann::json study_json(const StudySummary& summary);

}  // namespace outrider
