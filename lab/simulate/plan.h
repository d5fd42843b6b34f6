// `outrider simulate plan`: which layout, pipeline and policy for this hardware and this load. Every row is a
// run that `simulate run` repeats from the row's own flags (lab/simulate/simulated_run.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/simulate/simulated_run.h"

namespace outrider {

// Limits in milliseconds; 0: none. 95th percentiles, but `token`, a mean.
struct ServiceLevel {
  double ttft = 0;   // to the first token
  double itl = 0;    // between tokens, zeros inside a burst included
  double pause = 0;  // between bursts
  double token = 0;  // between tokens, on average
  bool any() const { return ttft > 0 || itl > 0 || pause > 0 || token > 0; }
  // The largest of figure / limit: at most 1 where all are kept.
  double strain(const SimulatedFigures& figures) const;
};
// "ttft=500,itl=20[,pause=..][,token=..]", in milliseconds, or with the unit ms or s.
Result<ServiceLevel> parse_service_level(std::string_view text);

struct PlanOptions {
  int devices = 8, cpus = 2;  // CPUs: sockets
  std::string gpu = "h100", cpu = "xeon8480", model = "70b", draft_model = "1b";
  std::string costs;       // replaces these: measured costs, and the target's devices
  int target_devices = 1;  // with `costs`
  double delay_ms = 0.02, gbit = 100;
  bool links_given = false;                               // these two were asked for
  std::string acceptance = "rates:0.8", head_acceptance;  // of heads; empty: the same
  std::string draft_head;  // the kind of heads; empty: a share of the target, beside it
  double head_share = SimulatedRun{}.head_share;
  std::string arrivals = "closed:64";
  int requests = 128, prompt_tokens = 512, output_tokens = 256;
  int prefix_tokens = 0, prefix_groups = 1;  // as of SimulatedRun
  int max_num_seqs = 32;                     // per group, fewer where the KV cache has no room
  std::vector<std::string> places;           // of drafts; empty: all
  std::string objective = "throughput";
  std::string service_level;  // empty: none
  uint64_t seed = 1;
  int threads = 0;
  bool progress = false;  // on standard error
};

struct PlanRow {
  SimulatedRun run;
  int tp = 1;          // devices that verify in a group
  int devices = 0;     // GPUs of all groups and drafters
  std::string memory;  // of the device with the least room; empty: unknown
  SimulatedFigures figures;
  double low = 0, high = 0;  // tokens/s over kPlanSeeds seeds; both 0 where only one was played
  bool on_front = false;     // nothing has both more tokens/s and less time between tokens
  bool keeps_level = true;   // of the service that was asked for
  std::string reason;
};
constexpr int kPlanSeeds = 3;

struct Plan {
  std::vector<PlanRow> rows;            // best first
  std::vector<std::string> impossible;  // layouts that were not tried, and why
  std::vector<CostSource> sources;      // of the figures of all rows
};

Result<Plan> make_plan(const PlanOptions& options);

// ---- plan_report.cpp: in words and JSON -----------------------------------------------------------------

// One sentence: what is different from the best, and what that does.
std::string explain(const PlanRow& row, const PlanRow& best);
std::string layout_text(const PlanRow& row);
std::string rate_text(const PlanRow& row);
std::string load_text(const PlanOptions& options);
std::string objective_text(const PlanOptions& options);
// Which of its two places a known head had best have, and why; empty: none was asked for.
std::string place_of_head(const PlanOptions& options, const Plan& plan);
std::string advice(const PlanOptions& options, const Plan& plan);
constexpr const char* kHowExact =
    "Each row is what its `simulate run` command prints, to the last digit; another seed moves it as the "
    "interval says";
// The best few, the front, and the best of every layout that is not among them.
std::vector<const PlanRow*> shown_rows(const Plan& plan);
std::string plan_text(const PlanOptions& options, const Plan& plan);
void fill_json(const PlanOptions& options, const Plan& plan, nlohmann::json& out);

}  // namespace outrider
