// Trees of tokens in one forward pass, for every back-end. Each node has the bits of the chain that ends in
// it, and keeping a path leaves the same cache as a fresh prefill.
#pragma once

#include <random>
#include <vector>

#include "model/model.h"

namespace outrider::testing {

struct TokenTree {
  std::vector<TokenId> ids;
  std::vector<int32_t> parents;

  // Nodes from the top down to this one.
  std::vector<int32_t> path(int32_t node) const;
  bool is_leaf(int32_t node) const;
};

// 1 to 32 nodes, at most 8 deep, with at most 4 children each, siblings anywhere behind their parent.
TokenTree random_tree(std::mt19937& random, int64_t vocab);

// Where the texts of a batch may end before their trees.
struct TreeTexts {
  int shortest = 0, longest = 45;
};
// Rounds of passes over chains and trees, forks among them. Under tensor parallelism every rank calls it.
void expect_trees_equal_chains(Model& model, uint32_t seed, int rounds, const TreeTexts& texts = {});

}  // namespace outrider::testing
