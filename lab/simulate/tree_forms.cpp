#include "lab/simulate/tree_forms.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"

namespace outrider {
namespace {

// Pr(fewer than k of the others are before), for k = 1 to counts.size(): `counts[t]` becomes the chance of
// exactly t.
void count_before(std::span<const double> chances, std::span<double> counts) {
  std::fill(counts.begin(), counts.end(), 0.0);
  counts.front() = 1;
  for (const double b : chances)
    for (size_t t = counts.size(); t-- > 0;)
      counts[t] = counts[t] * (1 - b) + (t > 0 ? counts[t - 1] * b : 0.0);
}

}  // namespace

std::vector<double> shared_noise_acceptance(std::span<const double> p, std::span<const double> q, int most,
                                            int points) {
  CHECK(p.size() == q.size() && most > 0 && points > 0, "{} and {} chances, {} children", p.size(), q.size(),
        most);
  std::vector<double> acceptance(static_cast<size_t>(most), 0), counts(static_cast<size_t>(most));
  std::vector<double> rates, chances;
  for (size_t j = 0; j < p.size(); ++j) {
    if (p[j] <= 0) continue;
    rates.clear();
    for (size_t i = 0; i < p.size(); ++i)
      if (i != j) rates.push_back(std::max(0.0, q[i] / q[j] - p[i] / p[j]));
    chances.resize(rates.size());
    for (int m = 0; m < points; ++m) {
      const double s = -p[j] * std::log((m + 0.5) / points);
      for (size_t i = 0; i < rates.size(); ++i) chances[i] = -std::expm1(-s * rates[i]);
      count_before(chances, counts);
      double sum = 0;
      for (size_t k = 0; k < counts.size(); ++k) acceptance[k] += p[j] * (sum += counts[k]) / points;
    }
  }
  return acceptance;
}

std::vector<double> rank_chances(std::span<const double> acceptance) {
  std::vector<double> chances(acceptance.begin(), acceptance.end());
  for (size_t k = chances.size(); k-- > 1;) chances[k] = std::max(0.0, chances[k] - chances[k - 1]);
  return chances;
}

double kary_tokens(std::span<const double> ranks, int width, int depth) {
  double some_child = 0, tokens = 1, reached = 1;
  for (size_t r = 0; r < std::min(ranks.size(), static_cast<size_t>(width)); ++r) some_child += ranks[r];
  for (int d = 0; d < depth; ++d) tokens += reached *= some_child;
  return tokens;
}

double tree_tokens(std::span<const double> ranks, std::span<const int> parents) {
  std::vector<double> reached(parents.size());
  std::vector<size_t> children(parents.size() + 1, 0);  // so far, by parent + 1
  double tokens = 1;
  for (size_t i = 0; i < parents.size(); ++i) {
    const auto parent = static_cast<size_t>(parents[i] + 1);
    const size_t rank = children[parent]++;
    const double chance = rank < ranks.size() ? ranks[rank] : 0;
    reached[i] = (parent == 0 ? 1 : reached[parent - 1]) * chance;
    tokens += reached[i];
  }
  return tokens;
}

TreeShapes::TreeShapes(std::span<const double> ranks, int nodes, int depth)
    : ranks_(ranks.begin(), ranks.end()), nodes_(nodes), depth_(std::min(depth, nodes)) {
  const auto ranks_count = static_cast<int>(ranks_.size());
  table_.resize(static_cast<size_t>((nodes_ + 1) * (depth_ + 1) * (ranks_count + 1)));
  // A forest of n nodes: m nodes in its first tree (the child itself and m - 1 below it), and the remaining
  // ones in the siblings of the next ranks. Without nodes, depth or ranks left it is empty.
  for (int d = 1; d <= depth_; ++d)
    for (int n = 1; n <= nodes_; ++n)
      for (int r = ranks_count - 1; r >= 0; --r) {
        Choice best;
        for (int m = 1; m <= n; ++m) {
          const double value =
              ranks_[static_cast<size_t>(r)] * (1 + at(m - 1, d - 1, 0).value) + at(n - m, d, r + 1).value;
          if (value > best.value) best = {value, m};
        }
        const_cast<Choice&>(at(n, d, r)) = best;
      }
}

const TreeShapes::Choice& TreeShapes::at(int nodes, int depth, int rank) const {
  const int ranks_count = static_cast<int>(ranks_.size());
  return table_[static_cast<size_t>((nodes * (depth_ + 1) + depth) * (ranks_count + 1) + rank)];
}

void TreeShapes::unfold(int nodes, int depth, int rank, int parent, BestTree& out) const {
  const Choice& choice = at(nodes, depth, rank);
  if (choice.nodes == 0) return;
  const auto self = static_cast<int>(out.parents.size());
  out.parents.push_back(parent);
  unfold(choice.nodes - 1, depth - 1, 0, self, out);
  unfold(nodes - choice.nodes, depth, rank + 1, parent, out);
}

BestTree TreeShapes::best(int nodes, int depth) const {
  nodes = std::min(nodes, nodes_);
  depth = std::min(depth, depth_);
  BestTree out{.tokens = 1 + at(nodes, depth, 0).value, .parents = {}};
  unfold(nodes, depth, 0, -1, out);
  std::vector<int> level(out.parents.size());
  for (size_t i = 0; i < level.size(); ++i) {
    level[i] = out.parents[i] < 0 ? 1 : level[static_cast<size_t>(out.parents[i])] + 1;
    out.depth = std::max(out.depth, level[i]);
  }
  return out;
}

}  // namespace outrider
