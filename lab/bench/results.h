// Results of a bench, and their output: tables for people, JSON and CSV for programs.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/statistics.h"
#include "lab/bench/machine.h"
#include "lab/bench/session.h"

namespace outrider {

// In milliseconds, for three decimals: a time that is shorter than they can show is no negative zero.
inline double shown_ms(double seconds) { return std::abs(seconds) < 0.5e-6 ? 0 : seconds * 1e3; }

struct MachineResult {
  int threads = 0;
  std::string isa;
  // Bytes per second, over every probe of the run; 0 where models compute on a device, which reads its own
  // memory.
  Spread bandwidth;
  double bandwidth_before = 0, bandwidth_after = 0;
  CpuLoad load;  // while turns were taken
  bool is_host() const { return bandwidth.median > 0; }
};

struct CurveResult {
  int rows = 0;
  double seconds = 0, ratio = 0;
};

// Plain decoding (gamma 0), speculation of one length, or of lengths that a policy chooses.
struct GammaResult {
  int gamma = 0;                      // of one length
  Spread tokens_per_second, speedup;  // speed-up: against plain decoding in the same turn
  std::vector<double> rates;          // tokens/s by turn
  double predicted_speedup = 0;
  double acceptance_rate = 0, tokens_per_round = 0;  // pooled over turns
  int64_t accepted = 0, tested = 0, drafted = 0;    // tokens, over all turns
  bool identical_output = false;
  RoundSeconds round;                                // means
  double overhead_median = 0;                        // of transfer and idle
  std::vector<std::vector<RequestResult>> requests;  // by turn, by prompt
  // Conclusions from the turns, found by judge() (conclusions.h).
  Ratio of_plain, of_best;  // tokens/s
};

struct BenchResults {
  std::string target, draft;
  int prompts = 0, tokens = 0, repetitions = 0, context = 0;
  double temperature = 0;
  MachineResult machine;
  GammaResult plain;
  std::vector<GammaResult> runs;  // of one length each
  std::string policy;             // the default one
  GammaResult by_policy;          // without a prediction
  std::vector<CurveResult> curve;
  double draft_step_seconds = 0;
  double decode_bytes_per_token = 0, decode_bandwidth_share = 0, forward_bandwidth_share = 0;  // shares: host
  double startup_seconds = 0;
  int64_t peak_memory_bytes = 0, weight_bytes = 0, kv_bytes = 0;

  // Where prompts have categories (requests/by_category.h): their names, "overall" last, and speed-ups.
  std::vector<std::string> categories;
  std::vector<CategoryRow> league;
  nlohmann::json provenance = nlohmann::json::object();
  std::vector<std::string> conclusions, warnings;  // sentences, the most important first

  // The length with the highest speed-up.
  const GammaResult& best() const;
};

// Expected tokens of a round over the cost of a round, in plain steps of `plain_seconds`.
double predicted_speedup(double acceptance, int gamma, double round_seconds, double plain_seconds);

std::string bench_tables(const BenchResults& results);
nlohmann::json bench_json(const BenchResults& results);
std::string bench_csv(const BenchResults& results);

}  // namespace outrider
