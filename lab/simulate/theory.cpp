#include "lab/simulate/theory.h"

#include <fmt/format.h>

#include "coordinator/gamma/acceptance.h"
#include "coordinator/gamma/closed_forms.h"

namespace outrider {
namespace {

// E(g) = (1 - alpha^(g+1)) / (1 - alpha); the published table has these columns.
std::string tokens_table() {
  std::string out =
      "Expected tokens per round, E(gamma) at acceptance alpha\n\nalpha    g=3   g=5   g=7  g=10\n";
  for (const double alpha : {0.5, 0.7, 0.8, 0.9, 0.95}) {
    out += fmt::format("{:<6.2f}", alpha);
    for (const int gamma : {3, 5, 7, 10}) out += fmt::format("{:6.2f}", expected_tokens(alpha, gamma));
    out += "\n";
  }
  return out;
}

std::string optimum_table() {
  constexpr double kRhos[] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.5};
  std::string out =
      "\nBest gamma / speed-up, lockstep, no delay, verification of a block as dear as one token\n"
      "(rho: draft step over target step)\n\nalpha ";
  for (const double rho : kRhos) out += fmt::format("{:>11}", fmt::format("rho={:.2f}", rho));
  out += "\n";
  for (const double alpha : {0.6, 0.7, 0.8, 0.9}) {
    out += fmt::format("{:<6.1f}", alpha);
    for (const double rho : kRhos) {
      const BestGamma best = best_lockstep_gamma(alpha, rho, 0, 0);
      out += fmt::format("{:>11}", fmt::format("{} / {:.2f}", best.gamma, best.speedup));
    }
    out += "\n";
  }
  return out;
}

}  // namespace

std::string theory_report() { return tokens_table() + optimum_table(); }

}  // namespace outrider
