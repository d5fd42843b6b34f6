#include "target_worker/rules/sharded_tree_rows.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "kernels/sampling/row_kernels.h"

namespace outrider {

ShardedTreeRows::ShardedTreeRows(Collectives& group, WeightedSampler& sampler, DraftTreeView tree,
                                 std::span<const RowWeights> rows, std::span<const uint64_t> q_drafted,
                                 const TreeDraws& draws)
    : group_(group), sampler_(sampler), draws_(draws), nodes_(tree.ids.size() + 1) {
  CHECK(rows.size() == nodes_.size(), "{} rows for {} nodes and their root", rows.size(), tree.size());
  tree_depths(tree, depths_);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].row = rows[i];
    nodes_[i].q_sum = rows[i].q.sum;
  }
  for (int32_t i = 0; i < tree.size(); ++i)
    at(tree.parent(i)).children.push_back({tree.id(i), q_drafted[static_cast<size_t>(i)], 0});
  // Z of every row that tests something, and W of its children, from whichever rank has them.
  std::vector<uint64_t> sums;
  for (const Node& node : nodes_) {
    if (node.children.empty()) continue;
    sums.push_back(
        sampler_.local_mass({.logits = node.row.logits, .range = node.row.range, .max = node.row.max}));
    for (const Node::Child& child : node.children) {
      const int64_t id = child.token.value();
      sums.push_back(
          node.row.range.contains(id)
              ? weight_of(node.row.logits[static_cast<size_t>(id - node.row.range.begin)], node.row.max)
              : 0);
    }
  }
  if (sums.empty()) return;
  group_.all_reduce_sum(std::span(sums));
  const uint64_t* sum = sums.data();
  for (Node& node : nodes_) {
    if (node.children.empty()) continue;
    node.row.total = *sum++;
    for (Node::Child& child : node.children) child.weight = *sum++;
  }
}

const ShardedTreeRows::Node::Child& ShardedTreeRows::child_of(const Node& node, TokenId child) const {
  const auto entry = std::find_if(node.children.begin(), node.children.end(),
                                  [&](const Node::Child& known) { return known.token == child; });
  CHECK(entry != node.children.end(), "token {} is no child", child.value());
  return *entry;
}

uint64_t ShardedTreeRows::q_weight(const Node& node, TokenId child, size_t removed) const {
  const auto gone = std::span(node.removed).first(removed);
  return std::find(gone.begin(), gone.end(), child) == gone.end() ? child_of(node, child).q_weight : 0;
}

double ShardedTreeRows::p(int32_t index, TokenId child) {
  const Node& node = at(index);
  double left = static_cast<double>(child_of(node, child).weight) / static_cast<double>(node.row.total);
  for (const RejectionStep& step : node.steps)
    left = step.left(left, static_cast<double>(q_weight(node, child, step.removed))) / step.mass;
  return left;
}

double ShardedTreeRows::q(int32_t index, TokenId child) {
  const Node& node = at(index);
  const uint64_t weight = q_weight(node, child, node.removed.size());
  return weight == 0 ? 0 : static_cast<double>(weight) / static_cast<double>(node.q_sum);
}

void ShardedTreeRows::overlaps(int32_t index, std::span<const double> rho, std::span<double> overlap) {
  std::vector<uint64_t> sums(rho.size());
  sampler_.local_overlaps(at(index).row, rho, sums);
  group_.all_reduce_sum(std::span(sums));
  for (size_t i = 0; i < rho.size(); ++i) overlap[i] = static_cast<double>(sums[i]) * 0x1p-60;
}

double ShardedTreeRows::reject(int32_t index, const Rejection& rejection) {
  Node& node = at(index);
  if (node.q_sum == 0) return 0;
  node.steps.push_back({.scale = rejection.scale,
                        .weight = rejection.weight,
                        .floor = rejection.floor,
                        .removed = node.removed.size(),
                        .q_sum = node.q_sum});
  RowWeights row = node.row;
  row.residual = true;
  row.steps = node.steps;
  row.removed = node.removed;
  uint64_t mass = sampler_.local_mass(row);
  group_.all_reduce_sum(std::span(&mass, 1));
  if (mass == 0) {
    node.steps.pop_back();
    ++fallbacks_;
    return 0;
  }
  node.steps.back().mass = static_cast<double>(mass) * 0x1p-60;
  return node.steps.back().mass;
}

void ShardedTreeRows::remove_from_q(int32_t index, TokenId child) {
  Node& node = at(index);
  node.q_sum -= q_weight(node, child, node.removed.size());
  node.removed.push_back(child);
}

bool ShardedTreeRows::accept(int32_t node, double a, double b) {
  const auto earlier = std::span(depths_).first(static_cast<size_t>(node));
  const auto ordinal = static_cast<uint32_t>(std::count(earlier.begin(), earlier.end(), depth(node)));
  const double u =
      draw_uniform(draws_.seed, Purpose::kAccept, draws_.base + (depth(node) - 1), draws_.round, ordinal);
  return u * b < a;
}

TokenId ShardedTreeRows::draw(int32_t index) {
  Node& node = at(index);
  if (!std::isfinite(node.row.max)) return kNoToken;
  WeightedDraw draw{
      .row = node.row,
      .bits = draw_u64(draws_.seed, Purpose::kResidual, draws_.base + depth(index), draws_.round)};
  draw.row.residual = !node.steps.empty();
  draw.row.steps = node.steps;
  draw.row.removed = node.removed;
  fallbacks_ += sampler_.draw(std::span(&draw, 1));
  return draw.token;
}

}  // namespace outrider
