// Branching of drafts (--speculative-tree): the shape that a Propose asks for, and the drafts that may answer
// it. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/sampling_params.h"
#include "comm/messages/draft_forms.h"

namespace outrider {

// Options of the run.
struct TreeOptions {
  TreeShape shape;         // of every draft that may branch; a chain: none may
  bool automatic = false;  // the number of nodes is chosen, up to `shape.nodes`
  bool by_rank = false;    // the best tree of `shape.nodes` nodes for measured acceptance (RankAcceptance)

  // Whether drafts under this rule may be trees of this shape. Children drawn by chance must not be selected
  // by their ids.
  bool suits(Rule rule) const {
    const bool fixed = shape.nodes == 0 || by_rank;
    return !shape.is_chain() && (is_match_rule(rule) || (is_tree_rule(rule) && fixed));
  }
};

// The depth of each node, 1 at the root's children.
std::vector<int32_t> depths_of(std::span<const int32_t> parents);

// The largest number of nodes in a draft of this shape and depth.
int64_t most_nodes(const TreeShape& shape, int32_t depth);

// The shape of a draft of this depth with at most `room` nodes; a chain where the shape does not fit.
TreeShape fitting_shape(const TreeShape& shape, int32_t depth, int32_t room);

}  // namespace outrider
