#include "coordinator/metrics/tree_sums.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/statistics.h"
namespace outrider {
namespace {

void count_at(std::vector<int64_t>& counts, size_t at) {
  counts.resize(std::max(counts.size(), at + 1));
  ++counts[at];
}

void add_all(std::vector<int64_t>& to, const std::vector<int64_t>& from) {
  to.resize(std::max(to.size(), from.size()));
  for (size_t i = 0; i < from.size(); ++i) to[i] += from[i];
}

}  // namespace

void TreeSums::add_round(DraftTreeView tree, std::span<const int32_t> path) {
  ++rounds;
  nodes += tree.size();
  accepted += static_cast<int64_t>(path.size());
  int32_t node = kTreeRoot;
  for (size_t depth = 0; depth <= path.size(); ++depth) {
    const int32_t taken = depth < path.size() ? path[depth] : kTreeRoot;
    size_t rank = 0;
    for (int32_t i = node + 1; i < tree.size(); ++i) {
      if (tree.parent(i) != node) continue;
      count_at(rank_offered, rank);
      if (i == taken) count_at(rank_accepted, rank);
      ++rank;
    }
    if (rank == 0) return;  // a leaf
    count_at(depth_tested, depth);
    if (depth == path.size()) return;
    count_at(depth_accepted, depth);
    node = taken;
  }
}

void TreeSums::add(const TreeSums& other) {
  rounds += other.rounds;
  nodes += other.nodes;
  accepted += other.accepted;
  add_all(depth_tested, other.depth_tested);
  add_all(depth_accepted, other.depth_accepted);
  add_all(rank_offered, other.rank_offered);
  add_all(rank_accepted, other.rank_accepted);
}

void fill_json(const TreeSums& sums, nlohmann::json& out) {
  out = {{"rounds", sums.rounds},
         {"nodes", sums.nodes},
         {"nodes_per_round", share_of(sums.nodes, sums.rounds)},
         {"accepted_per_round", share_of(sums.accepted, sums.rounds)},
         {"tested_by_depth", sums.depth_tested},
         {"accepted_by_depth", sums.depth_accepted},
         {"offered_by_rank", sums.rank_offered},
         {"accepted_by_rank", sums.rank_accepted}};
}

}  // namespace outrider
