// Fits the costs of passes and links to timings of the user's own machine: reports of `outrider bench` and of
// `outrider generate --report`, and results.json of launch/gpu_suite. `simulate run --costs` and `plan
// --costs` use the result.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "cluster/simulation/forward_cost.h"
#include "lab/simulate/hardware.h"

namespace outrider {

struct PassSample {
  double rows = 1, context = 0;  // of the pass; context: tokens of all its sequences
  double seconds = 0;
};
struct LinkSample {
  double bytes = 0;    // of a round's messages to a drafter and back
  double seconds = 0;  // that they took, there and back
};

// seconds = base + per_row rows + per_context context, least squares. A coefficient that the samples cannot
// separate, or that would be negative, is 0 and named in `left_out`.
struct PassFit {
  ForwardCost cost;
  double mean_error = 0, worst_error = 0;  // |fit / measured - 1|
  size_t samples = 0;
  double context_low = 0, context_high = 0;
  std::vector<std::string> left_out;
};
PassFit fit_pass(const std::vector<PassSample>& samples);

// seconds = 2 delay + bytes / bandwidth.
struct LinkFit {
  double delay_s = 0, bytes_per_second = 0;  // 0: unlimited, the samples do not tell
  size_t samples = 0;
};
LinkFit fit_link(const std::vector<LinkSample>& samples);

struct Timings {
  std::vector<PassSample> target, draft;
  std::vector<LinkSample> links;
  std::vector<std::string> target_names, draft_names, files;
};
// Adds what is in a file. `target`, `draft`: of the models that a GPU suite timed, those to be taken, e.g.
// "8B bf16"; empty: of such a file the pair that it ran as `outrider bench`, where there is one. Errors name
// the file and the models that it has.
Status read_timings(const std::string& path, const std::string& target, const std::string& draft,
                    Timings& timings);

struct CostFit {
  PassFit target, draft;
  LinkFit link;
  std::vector<std::string> target_names, draft_names, files;
  std::vector<CostSource> sources;
};
// An error where there is nothing to fit a pass of target or draft to.
Result<CostFit> fit_costs(const Timings& timings);

void fill_json(const CostFit& fit, nlohmann::json& out);  // what measured_costs() reads
std::string fit_text(const CostFit& fit);

}  // namespace outrider
