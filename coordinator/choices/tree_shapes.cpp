#include "coordinator/choices/tree_shapes.h"

#include <algorithm>

namespace outrider {

namespace {

// Removes nodes below this depth. Parents come before their children, so indices stay valid.
void cut(std::vector<int32_t>& parents, int32_t depth) {
  const auto depths = depths_of(parents);
  std::vector<int32_t> place(parents.size(), kTreeRoot);
  size_t kept = 0;
  for (size_t i = 0; i < parents.size(); ++i) {
    if (depths[i] > depth) continue;
    const int32_t parent = parents[i];
    place[i] = static_cast<int32_t>(kept);
    parents[kept++] = parent == kTreeRoot ? kTreeRoot : place[static_cast<size_t>(parent)];
  }
  parents.resize(kept);
}

}  // namespace

std::vector<int32_t> depths_of(std::span<const int32_t> parents) {
  std::vector<int32_t> depths;
  for (const int32_t parent : parents)
    depths.push_back(parent == kTreeRoot ? 1 : depths[static_cast<size_t>(parent)] + 1);
  return depths;
}

int64_t most_nodes(const TreeShape& shape, int32_t depth) {
  if (shape.is_chain()) return depth;
  if (shape.nodes > 0) return shape.nodes;
  if (!shape.parents.empty()) return static_cast<int64_t>(shape.parents.size());
  int64_t level = 1, nodes = 0;
  const auto levels = std::min(shape.widths.size(), static_cast<size_t>(std::max(depth, 0)));
  for (size_t i = 0; i < levels; ++i) nodes += level *= shape.widths[i];
  return nodes;
}

TreeShape fitting_shape(const TreeShape& shape, int32_t depth, int32_t room) {
  TreeShape out = shape;
  out.nodes = std::min(out.nodes, room);
  if (static_cast<int32_t>(out.parents.size()) > depth) cut(out.parents, depth);
  return depth > 0 && most_nodes(out, depth) <= room ? out : TreeShape{};
}

}  // namespace outrider
