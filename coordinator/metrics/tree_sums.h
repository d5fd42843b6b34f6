// Statistics of tree drafts: their nodes, the accepted depth, and the rank of the accepted children. Sums
// over verified rounds whose draft branched.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "base/draft_tree.h"

namespace outrider {

struct TreeSums {
  int64_t rounds = 0, nodes = 0, accepted = 0;
  // [i]: rounds that reached a node of depth i with children, and rounds that accepted one of its children.
  std::vector<int64_t> depth_tested, depth_accepted;
  // [i]: nodes on accepted paths with more than i children, and nodes whose child i was accepted; the drafter
  // puts the best child first.
  std::vector<int64_t> rank_offered, rank_accepted;

  void add_round(DraftTreeView tree, std::span<const int32_t> path);
  void add(const TreeSums& other);
};

void fill_json(const TreeSums& sums, nlohmann::json& out);

}  // namespace outrider
