// How drafts branch (--speculative-tree): the shape that a Propose asks for, and what may answer it. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/sampling_params.h"
#include "comm/messages/draft_forms.h"

namespace outrider {

// As the run was started.
struct TreeOptions {
  TreeShape shape;         // of every draft that may branch; a chain: none may
  bool automatic = false;  // of `shape.nodes`, those that pay
  bool by_rank = false;    // the best tree of `shape.nodes` nodes for measured acceptance (RankAcceptance)

  // Children that a distribution gave by chance must not be chosen by what they are.
  bool suits(Rule rule) const {
    const bool fixed = shape.nodes == 0 || by_rank;
    return !shape.is_chain() && (is_match_rule(rule) || (is_tree_rule(rule) && fixed));
  }
};

// By node, 1 at the root's children.
std::vector<int32_t> depths_of(std::span<const int32_t> parents);

// Nodes of a draft of this shape and depth, at most.
int64_t most_nodes(const TreeShape& shape, int32_t depth);

// The shape of a draft of this depth where at most so many nodes find room; where they do not, a chain.
TreeShape fitting_shape(const TreeShape& shape, int32_t depth, int32_t room);

}  // namespace outrider
