// What trees were good for: how many nodes they had, how deep the target went, and which of several children
// it took. Sums over verified rounds whose draft branched.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "base/draft_tree.h"

namespace outrider {

struct TreeSums {
  int64_t rounds = 0, nodes = 0, accepted = 0;
  // [i]: rounds that came to a node of depth i with children, and of them those that took one.
  std::vector<int64_t> depth_tested, depth_accepted;
  // [i]: nodes on the way with more than i children, and of them those whose child i was taken; the drafter
  // puts the best first.
  std::vector<int64_t> rank_offered, rank_accepted;

  void add_round(DraftTreeView tree, std::span<const int32_t> path);
  void add(const TreeSums& other);
};

void fill_json(const TreeSums& sums, nlohmann::json& out);

}  // namespace outrider
