// Measures which of a node's children the target takes, and finds the best tree under the assumption that the
// chances are the same at every node (Sequoia, Chen et al. 2024). Pure.
#pragma once

#include <array>
#include <span>

#include "base/draft_tree.h"
#include "comm/messages/draft_forms.h"

namespace outrider {

class RankAcceptance {
 public:
  // A verdict on a draft: the accepted nodes, from a child of the root on.
  void observe(DraftTreeView tree, std::span<const int32_t> path);
  // The chance that the target takes the child of this rank (0: the first) of a node that it reaches. Chances
  // never increase with the rank.
  double chance(size_t rank) const;
  // The tree of at most `nodes` nodes and this depth with the most expected accepted tokens. Sequoia finds it
  // by a dynamic programme. Since no node is likelier than its parent or than the sibling before it, it
  // consists of the likeliest nodes.
  TreeShape best_tree(int32_t nodes, int32_t depth) const;

 private:
  static constexpr double kMemory = 0.998;  // weight of a node after the next one
  static constexpr double kPrior = 12;      // weight of the prior, in nodes
  static constexpr std::array<double, kMaxTreeChildren> kFirst = {0.65, 0.12,  0.06, 0.03,
                                                                  0.02, 0.015, 0.01, 0.01};
  struct Count {
    double offered = 0, taken = 0;
  };
  std::array<Count, kMaxTreeChildren> counts_{};  // decayed
};

}  // namespace outrider
