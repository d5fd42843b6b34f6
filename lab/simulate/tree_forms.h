// Trees of drafts in closed form, if the chance that the target's token is the drafter's r-th best child is
// the same at every node: `ranks[r - 1]`, independent of everything else, with a sum of at most 1. A chain
// drafts rank 1 only. Tokens are those of a round, the recovery or bonus token included.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace outrider {

// Target and drafter rank tokens by log-probability plus the same Gumbel noise, and the drafter's `k` best
// are the children: the chance that the target's token is among them, for k = 1 to `most`. p: target, q:
// draft, over the same tokens, both positive. Given that the target's token j wins its race at time s,
// another token i is ranked before it by the drafter with chance 1 - exp(-s max(0, q_i / q_j - p_i / p_j)),
// independently; integrated over s by the midpoint rule (`points`), error about 1e-5 at 20000. k = 1 is the
// chain's sum_j 1 / sum_i max(p_i / p_j, q_i / q_j) (Daliri et al. 2024).
std::vector<double> shared_noise_acceptance(std::span<const double> p, std::span<const double> q, int most,
                                            int points = 20'000);
// Differences: the chance of each rank.
std::vector<double> rank_chances(std::span<const double> acceptance);

// A tree whose nodes above `depth` have `width` children each: 1 + s + ... + s^depth, s the sum of the first
// `width` ranks.
double kary_tokens(std::span<const double> ranks, int width, int depth);
// A tree in which parents stand before children and siblings by rank; -1: the text so far.
double tree_tokens(std::span<const double> ranks, std::span<const int> parents);

struct BestTree {
  double tokens = 1;
  int depth = 0;
  std::vector<int> parents;  // depth-first, the best child first
};
// The shape of at most `nodes` drafted nodes, none deeper than `depth`, with the most tokens: a dynamic
// programme over (nodes, depth, rank), Chen et al. 2024 (Sequoia). O(nodes^2 depth ranks).
class TreeShapes {
 public:
  TreeShapes(std::span<const double> ranks, int nodes, int depth);
  BestTree best(int nodes, int depth) const;

 private:
  struct Choice {
    double value = 0;  // expected tokens below the node
    int nodes = 0;     // of the first of its children and what is below that
  };
  const Choice& at(int nodes, int depth, int rank) const;
  void unfold(int nodes, int depth, int rank, int parent, BestTree& out) const;

  std::vector<double> ranks_;
  int nodes_, depth_;
  // [nodes][depth][rank]: the best forest of `nodes` nodes, whose roots are siblings from this rank on.
  std::vector<Choice> table_;
};

}  // namespace outrider
