#include "draft_worker/model/outcome_statistics.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"

namespace outrider {
namespace {

constexpr double kAcceptanceDecay = 0.95;  // per round
constexpr double kRankDecay = 0.99;        // per observed token
constexpr double kPriorWeight = 8;         // observations
constexpr double kMinProbability = 0.002;  // a less likely outcome is not worth a row

}  // namespace

// Each further guess is right in half of the remaining cases, which is typical of draft models.
OutcomeStatistics::Ranks OutcomeStatistics::prior() {
  Ranks ranks{.hits = {}, .total = kPriorWeight};
  double p = 0.5;
  for (double& hits : ranks.hits) {
    hits = kPriorWeight * p;
    p /= 2;
  }
  return ranks;
}

void OutcomeStatistics::observe(int32_t drafted, int32_t accepted, std::optional<int32_t> rank) {
  CHECK(accepted >= 0 && accepted <= drafted, "{} of {} accepted", accepted, drafted);
  accepted_ = kAcceptanceDecay * accepted_ + accepted;
  tested_ = kAcceptanceDecay * tested_ + accepted + (accepted < drafted);
  if (!rank) return;
  Ranks& ranks = accepted < drafted ? recovery_ : bonus_;
  for (double& hits : ranks.hits) hits *= kRankDecay;
  ranks.total = kRankDecay * ranks.total + 1;
  if (*rank < kMaxGuesses) ++ranks.hits[static_cast<size_t>(*rank)];
}

double OutcomeStatistics::guess_probability(bool full, int32_t rank) const {
  const Ranks& ranks = full ? bonus_ : recovery_;
  return ranks.hits[static_cast<size_t>(rank)] / ranks.total;
}

void OutcomeStatistics::pick(int32_t gamma, int32_t budget, std::vector<Outcome>& out) const {
  out.clear();
  const double alpha = std::clamp(acceptance(), 0.01, 0.99);
  double reached = 1;
  for (int32_t n = 0; n <= gamma; ++n) {
    const bool full = n == gamma;
    const double ends_here = full ? reached : reached * (1 - alpha);
    for (int32_t rank = 0; rank < kMaxGuesses; ++rank)
      out.push_back({n, rank, ends_here * guess_probability(full, rank)});
    reached *= alpha;
  }
  const auto worth = static_cast<ptrdiff_t>(std::min<size_t>(out.size(), static_cast<size_t>(budget)));
  std::partial_sort(out.begin(), out.begin() + worth, out.end(), [](const Outcome& a, const Outcome& b) {
    if (a.probability != b.probability) return a.probability > b.probability;
    return a.accepted != b.accepted ? a.accepted > b.accepted : a.rank < b.rank;
  });
  out.resize(static_cast<size_t>(worth));
  std::erase_if(out, [](const Outcome& outcome) { return outcome.probability < kMinProbability; });
}

}  // namespace outrider
