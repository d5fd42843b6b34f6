// One simulated cluster, as the flags of `simulate run` describe it, and its results. `simulate plan`
// describes its layouts in the same way and simulates them with the same function, so each of its rows equals
// `simulate run` with the row's flags.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/simulate/cluster_simulator.h"
#include "lab/simulate/hardware.h"

namespace outrider {

// The kind of drafter, and its device.
enum class DraftPlace {
  kNone,         // no speculation
  kOwn,          // each drafter has a device of its own
  kColocated,    // each drafter is on a device of a target group, in turns with it
  kCpu,          // drafters are on CPUs, which cost no device
  kHeads,        // a head beside each target: a share of its layers, run after a commit without a message
  kHeadWorkers,  // each drafter has a head and a device of its own, and is sent rows of the target's hidden
                 // states
};
std::string_view name_of(DraftPlace place);
Result<DraftPlace> parse_draft_place(std::string_view name);
std::vector<std::string> draft_place_names();

struct SimulatedRun {
  double target_ms = 20, target_row_ms = 0.1, draft_ms = 1, draft_row_ms = 0.01;
  std::string hardware, draft_hardware, costs;  // each replaces the times above
  DraftPlace place = DraftPlace::kOwn;
  std::string draft_head;        // the kind of head; empty: a share of the target
  double head_share = 0.03;      // of the target's parameters and layers, for one token of a draft by heads
  int groups = 1, drafters = 1;  // of one coordinator; drafters serve all groups
  int coordinators = 1;          // each with these groups and drafters
  int fanout = 8;
  std::string pipeline = "lockstep";
  SimulatedGuesses guesses{.most = 0, .acceptance = 0.5};
  double delay_ms = 0, gbit = 0, loss = 0;
  std::string acceptance = "rates:0.8", gamma_policy = "ewma", arrivals = "burst";
  int requests = 32, prompt_tokens = 128, output_tokens = 256, max_num_seqs = 8;
  int prefix_tokens = 0, prefix_groups = 1;  // beginnings that prompts share; 0: none
  uint64_t seed = 1;

  bool operator==(const SimulatedRun&) const = default;
};

// The arguments of `simulate run` for it, without flags at their defaults.
std::vector<std::string> arguments_of(const SimulatedRun& run);
std::string command_of(const SimulatedRun& run);  // for a shell

// Bytes on that device of a group which has the least room.
struct MemoryNeed {
  double weights = 0, kv = 0, activations = 0;  // the target's part
  double draft_weights = 0, draft_kv = 0;       // where the draft is on the same device
  double usable = 0;                            // 0: unknown, costs were given as times
  double total() const { return weights + kv + activations + draft_weights + draft_kv; }
  bool fits() const { return usable == 0 || total() <= usable; }
  std::string text() const;
};

// The job that a run describes: what its passes cost, what it needs, and where the figures are from.
struct DescribedJob {
  JobOptions options;
  int devices = 0;  // GPUs of all groups and drafters; 0 where costs were given as times
  MemoryNeed memory, draft_memory;
  std::vector<CostSource> sources;
};
// `longest_text`: tokens of the longest request, prompt included; every place has room for it. An error says
// what does not fit.
Result<DescribedJob> describe_job(const SimulatedRun& run, int longest_text);

struct SimulatedFigures {
  double tokens_per_second = 0;
  double ttft_ms = 0, ttft_p95_ms = 0;  // median and 95th percentile, from submission to the first token
  double ms_per_token = 0,
         itl_p95_ms = 0;    // between tokens, zeros inside a burst included: mean, 95th percentile
  double pause_p95_ms = 0;  // between bursts
  double request_s = 0;     // mean, from submission to the last token
  double target_busy = 0, draft_busy = 0;              // shares of the time
  double least_busy_target = 0, most_busy_target = 0;  // the same, of single groups
  double prefix_hit_rate = 0;                          // of prompt tokens
  double acceptance = 0, tokens_per_round = 0, mean_gamma = 0, hit_rate = 0;
  double pass_ms = 0;  // a plain pass over one text
};
void fill_json(const SimulatedFigures& figures, nlohmann::json& out);

struct PlayedRun {
  DescribedJob job;
  SimulationResult result;
  SimulatedFigures figures;
  std::string acceptance;  // as the process describes itself
};
Result<PlayedRun> play(const SimulatedRun& run);

nlohmann::json sources_json(const std::vector<CostSource>& sources);
// A paragraph for people: what is fitted, from a data sheet, asked for, and assumed.
std::string sources_text(const std::vector<CostSource>& sources);

}  // namespace outrider
