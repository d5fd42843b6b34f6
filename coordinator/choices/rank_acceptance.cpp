#include "coordinator/choices/rank_acceptance.h"

#include <algorithm>
#include <queue>

namespace outrider {

void RankAcceptance::observe(DraftTreeView tree, std::span<const int32_t> path) {
  std::vector<int32_t> children;
  for (size_t level = 0; level <= path.size(); ++level) {
    children_of(tree, level == 0 ? kTreeRoot : path[level - 1], children);
    for (size_t rank = 0; rank < std::min(children.size(), counts_.size()); ++rank) {
      Count& count = counts_[rank];
      count.offered = count.offered * kMemory + 1;
      count.taken = count.taken * kMemory + (level < path.size() && children[rank] == path[level] ? 1 : 0);
    }
  }
}

double RankAcceptance::chance(size_t rank) const {
  double least = 1;
  for (size_t i = 0; i <= rank; ++i)
    least = std::min(least, (counts_[i].taken + kPrior * kFirst[i]) / (counts_[i].offered + kPrior));
  return least;
}

TreeShape RankAcceptance::best_tree(int32_t nodes, int32_t depth) const {
  struct Candidate {
    double reach;         // chance that the target reaches it
    double parent_reach;  // the same of its parent
    int32_t parent, depth, order;
    size_t rank;
    bool operator<(const Candidate& other) const {  // the earlier one first among equals
      return reach != other.reach ? reach < other.reach : order > other.order;
    }
  };
  TreeShape shape;
  int32_t order = 0;
  std::priority_queue<Candidate> open;
  const auto add = [&](int32_t parent, double parent_reach, int32_t depth_of, size_t rank) {
    if (depth_of <= depth && rank < counts_.size())
      open.push({parent_reach * chance(rank), parent_reach, parent, depth_of, order++, rank});
  };
  add(kTreeRoot, 1, 1, 0);
  while (!open.empty() && static_cast<int32_t>(shape.parents.size()) < nodes) {
    const Candidate best = open.top();
    open.pop();
    const auto node = static_cast<int32_t>(shape.parents.size());
    shape.parents.push_back(best.parent);
    add(node, best.reach, best.depth + 1, 0);
    add(best.parent, best.parent_reach, best.depth, best.rank + 1);
  }
  return shape;
}

}  // namespace outrider
