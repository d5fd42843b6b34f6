// `outrider simulate plan`: which layout, pipeline and policy for this hardware and this load. Simulates the
// layouts that fit, then pipelines and policies on the best of them, and says why each fares as it does.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/simulate/cluster_simulator.h"

namespace outrider {

struct PlanOptions {
  int devices = 8;
  std::string gpu = "h100", model = "70b", draft_model = "1b";
  std::string costs;       // instead of these three: the report of a real run, and what its target ran on
  int target_devices = 1;  // with `costs`
  LinkOptions draft_link;
  std::string acceptance = "rates:0.8", arrivals = "burst";
  int requests = 64, prompt_tokens = 512, output_tokens = 256;
  int max_num_seqs = 32;  // per group, fewer where the KV cache has no room
  uint64_t seed = 1;
  int threads = 0;
};

// Of every group: `tp` devices verify, each drafter has one of its own.
struct PlanLayout {
  int groups = 1, tp = 1, drafters = 0;
  int devices() const { return groups * (tp + drafters); }
  bool operator==(const PlanLayout&) const = default;
};

struct PlanRow {
  PlanLayout layout;
  std::string pipeline, policy;
  int places = 0;  // texts that a group decodes together
  double tokens_per_second = 0, ttft_ms = 0, ms_per_token = 0;
  double target_busy = 0, draft_busy = 0;  // shares of the time
  double tokens_per_pass = 0, mean_gamma = 0, hit_rate = 0;
  double pass_ms = 0;  // a plain pass over one text
  std::string reason;
};

struct Plan {
  std::vector<PlanRow> rows;            // best first
  std::vector<std::string> impossible;  // layouts that were not tried, and why
};

Result<Plan> make_plan(const PlanOptions& options);
// One sentence: what is different from the best, and what that does.
std::string explain(const PlanRow& row, const PlanRow& best);
std::string plan_report(const PlanOptions& options, const Plan& plan);
void fill_json(const PlanOptions& options, const Plan& plan, nlohmann::json& out);

}  // namespace outrider
