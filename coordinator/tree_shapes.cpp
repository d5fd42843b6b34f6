#include "coordinator/tree_shapes.h"

#include <algorithm>

namespace outrider {

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
  return depth > 0 && most_nodes(out, depth) <= room ? out : TreeShape{};
}

}  // namespace outrider
