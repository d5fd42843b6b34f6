#include "base/draft_tree.h"

#include <algorithm>
#include <utility>

namespace outrider {

Status check_tree(DraftTreeView tree, const TreeLimits& limits) {
  const int32_t nodes = tree.size();
  if (nodes > limits.nodes) return malformed(fmt::format("has {} nodes, not {}", nodes, limits.nodes));
  if (tree.parents.empty()) {
    if (nodes > limits.depth) return malformed(fmt::format("is {} deep, not {}", nodes, limits.depth));
    return {};
  }
  if (tree.parents.size() != tree.ids.size())
    return malformed(fmt::format("has {} parents for {} nodes", tree.parents.size(), nodes));
  for (int32_t i = 0; i < nodes; ++i)
    if (tree.parent(i) < kTreeRoot || tree.parent(i) >= i)
      return malformed(fmt::format("has parent {} of node {}, which comes no later", tree.parent(i), i));
  if (const int32_t depth = tree_depth(tree); depth > limits.depth)
    return malformed(fmt::format("is {} deep, not {}", depth, limits.depth));
  std::vector<std::pair<int32_t, TokenId>> edges;
  edges.reserve(tree.ids.size());
  for (int32_t i = 0; i < nodes; ++i) edges.emplace_back(tree.parent(i), tree.id(i));
  std::sort(edges.begin(), edges.end());
  int64_t children = 0;
  for (size_t i = 0; i < edges.size(); ++i) {
    const bool is_sibling = i > 0 && edges[i].first == edges[i - 1].first;
    if (is_sibling && edges[i] == edges[i - 1] && !limits.equal_siblings)
      return malformed(
          fmt::format("has token {} twice behind node {}", edges[i].second.value(), edges[i].first));
    children = is_sibling ? children + 1 : 1;
    if (children > limits.children)
      return malformed(fmt::format("has more than {} nodes behind node {}", limits.children, edges[i].first));
  }
  return {};
}

void tree_depths(DraftTreeView tree, std::vector<int32_t>& depths) {
  depths.resize(tree.ids.size());
  for (int32_t i = 0; i < tree.size(); ++i) {
    const int32_t parent = tree.parent(i);
    depths[static_cast<size_t>(i)] = parent == kTreeRoot ? 1 : depths[static_cast<size_t>(parent)] + 1;
  }
}

int32_t tree_depth(DraftTreeView tree) {
  if (tree.parents.empty()) return tree.size();
  std::vector<int32_t> depths;
  tree_depths(tree, depths);
  return depths.empty() ? 0 : *std::max_element(depths.begin(), depths.end());
}

void path_to(DraftTreeView tree, int32_t node, std::vector<int32_t>& path) {
  path.clear();
  for (; node != kTreeRoot; node = tree.parent(node)) path.push_back(node);
  std::reverse(path.begin(), path.end());
}

int32_t child_with(DraftTreeView tree, int32_t node, TokenId token) {
  for (int32_t i = node + 1; i < tree.size(); ++i)
    if (tree.parent(i) == node && tree.id(i) == token) return i;
  return kTreeRoot;
}

bool has_children(DraftTreeView tree, int32_t node) {
  for (int32_t i = node + 1; i < tree.size(); ++i)
    if (tree.parent(i) == node) return true;
  return false;
}

void children_of(DraftTreeView tree, int32_t node, std::vector<int32_t>& children) {
  children.clear();
  for (int32_t i = node + 1; i < tree.size(); ++i)
    if (tree.parent(i) == node) children.push_back(i);
}

bool is_path(DraftTreeView tree, std::span<const int32_t> nodes) {
  int32_t last = kTreeRoot;
  for (const int32_t node : nodes) {
    if (node < 0 || node >= tree.size() || tree.parent(node) != last) return false;
    last = node;
  }
  return true;
}

int32_t levels_tested(DraftTreeView tree, std::span<const int32_t> path) {
  return static_cast<int32_t>(path.size()) + has_children(tree, path.empty() ? kTreeRoot : path.back());
}

DraftTree depth_first(DraftTreeView tree, std::vector<int32_t>* order) {
  DraftTree out;
  if (order) order->clear();
  std::vector<std::pair<int32_t, int32_t>>
      open;  // nodes still to be placed, the last one first, and their parents
  const auto open_children = [&](int32_t node, int32_t placed) {
    for (int32_t i = tree.size() - 1; i > node; --i)
      if (tree.parent(i) == node) open.emplace_back(i, placed);
  };
  open_children(kTreeRoot, kTreeRoot);
  while (!open.empty()) {
    const auto [node, parent] = open.back();
    open.pop_back();
    out.ids.push_back(tree.id(node));
    out.parents.push_back(parent);
    if (order) order->push_back(node);
    open_children(node, static_cast<int32_t>(out.size()) - 1);
  }
  return out;
}

void shorten_chain(DraftTree& tree) {
  for (size_t i = 0; i < tree.parents.size(); ++i)
    if (tree.parents[i] != static_cast<int32_t>(i) - 1) return;
  tree.parents.clear();
}

RowNumbers::RowNumbers(DraftTreeView tree) : size_(tree.ids.size()) {
  if (tree.parents.empty()) return;
  const auto place = [](int32_t node) { return static_cast<size_t>(node + 1); };
  std::vector<size_t> number(tree.ids.size() + 1);  // by parent, the root first
  for (const int32_t parent : tree.parents) number[place(parent)] = 1;
  size_ = 0;
  for (size_t& n : number)
    if (n > 0) n = size_++;
  for (const int32_t parent : tree.parents) of_.push_back(number[place(parent)]);
}

}  // namespace outrider
