// `outrider simulate theory`: gains of draft lengths, pipelines and trees, by closed forms only.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "coordinator/gamma/closed_forms.h"

namespace outrider {

// Speed-up if a share `hit` of the outcomes has its draft ready at the verdict, so that its drafting is
// hidden. Time unit: one plain target step, as in coordinator/gamma/closed_forms.h.
double outcome_cache_speedup(double alpha, int gamma, double rho, double delay, double per_token, double hit);

struct BestCascade {
  int gamma = 0, guesses = 0;  // tokens of a draft, and guessed at most in each pass of the draft model
  double speedup = 1;
};
// With a drafter for the draft model: the best of 1 to 64 tokens and of 0 to 16 guesses, the fewest among
// equals.
BestCascade best_cascade(double alpha, double rho, double delay, double per_token, double beta, double row);

struct TheoryOptions {
  std::vector<double> acceptance;  // empty: those of the published tables
  std::vector<int> gammas{3, 5, 7, 10};
  std::vector<double> draft_cost{0.01, 0.02, 0.05, 0.1, 0.2, 0.5};  // of a plain target step
  double delay = 0;                                                 // one way, in plain target steps
  double per_token = 0;  // more for each draft token of a pass, of a plain target step
  double hit_rate = 0.7;
  std::vector<double> guess_acceptance{0.2, 0.4, 0.6,
                                       0.8};          // of the draft model's own tokens, guessed for it
  double guess_row = 0.05;                            // a further row of a draft pass, of a draft step
  std::vector<double> ranks{0.68, 0.18, 0.06, 0.03};  // chance that the r-th best child is the target's token
  std::vector<int> nodes{4, 8, 16, 32};
  std::vector<double> p, q;  // a pair's chances of the same tokens, for trees with shared noise
  int children = 4;
};
Status check(const TheoryOptions& options);

std::string theory_report(const TheoryOptions& options);
void fill_json(const TheoryOptions& options, nlohmann::json& out);

}  // namespace outrider
