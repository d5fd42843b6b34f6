// Drafted tokens: a tree whose root is the committed text. A chain is the tree in which every token stands
// behind the one before it, and needs no parents. Plain values; whoever gets one from another process asks
// check_tree() before anything else.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace outrider {

// In place of a node: the committed text.
constexpr int32_t kTreeRoot = -1;

// Node i is token ids[i] behind node parents[i], which comes before it, or behind kTreeRoot. Children of one
// node are different tokens, unless they were drawn independently of each other.
struct DraftTree {
  DraftTree() = default;
  DraftTree(std::vector<TokenId> chain, std::vector<int32_t> of = {})  // NOLINT: a chain is a tree
      : ids(std::move(chain)), parents(std::move(of)) {}
  DraftTree(std::initializer_list<TokenId> chain) : ids(chain) {}

  size_t size() const { return ids.size(); }
  bool empty() const { return ids.empty(); }
  bool is_chain() const { return parents.empty(); }
  TokenId operator[](size_t node) const { return ids[node]; }
  void clear() {
    ids.clear();
    parents.clear();
  }
  bool operator==(const DraftTree&) const = default;

  std::vector<TokenId> ids;
  std::vector<int32_t> parents;  // as many as ids; none: a chain
};

// A tree whose ids and parents somebody else owns.
struct DraftTreeView {
  DraftTreeView() = default;
  DraftTreeView(const DraftTree& tree) : ids(tree.ids), parents(tree.parents) {}  // NOLINT: a view of it
  DraftTreeView(std::span<const TokenId> ids_of, std::span<const int32_t> parents_of)
      : ids(ids_of), parents(parents_of) {}

  int32_t size() const { return static_cast<int32_t>(ids.size()); }
  int32_t parent(int32_t node) const {
    return parents.empty() ? node - 1 : parents[static_cast<size_t>(node)];
  }
  TokenId id(int32_t node) const { return ids[static_cast<size_t>(node)]; }

  std::span<const TokenId> ids;
  std::span<const int32_t> parents;
};

struct TreeLimits {
  int64_t nodes = std::numeric_limits<int32_t>::max();
  int64_t depth = std::numeric_limits<int32_t>::max();     // tokens of a path
  int64_t children = std::numeric_limits<int32_t>::max();  // of one node
  bool equal_siblings = false;                             // a token may stand twice behind one node
};

// kMalformed: a parent that does not come before its node, a token twice behind one node, or more than the
// limits allow. What ids mean is not looked at.
Status check_tree(DraftTreeView tree, const TreeLimits& limits);

// Tokens from the root to each node, which is one of them.
void tree_depths(DraftTreeView tree, std::vector<int32_t>& depths);
int32_t tree_depth(DraftTreeView tree);  // of the deepest node
// The nodes from a child of the root to `node`; none for kTreeRoot.
void path_to(DraftTreeView tree, int32_t node, std::vector<int32_t>& path);
// The child of `node` with this token; kTreeRoot: there is none.
int32_t child_with(DraftTreeView tree, int32_t node, TokenId token);
bool has_children(DraftTreeView tree, int32_t node);
void children_of(DraftTreeView tree, int32_t node, std::vector<int32_t>& children);  // in their order
// Whether each node of it is a child of the one before, and the first of the root.
bool is_path(DraftTreeView tree, std::span<const int32_t> nodes);
// The tokens that verification compared with the target's own along an accepted path: its own, and one more
// unless it ended at a leaf.
int32_t levels_tested(DraftTreeView tree, std::span<const int32_t> path);

// This tree with every node's children right behind it, in their order: so the path of first children
// lies where a chain would. order[i], where it is wanted: which node of `tree` became node i.
DraftTree depth_first(DraftTreeView tree, std::vector<int32_t>* order = nullptr);
// Without parents if it is a chain.
void shorten_chain(DraftTree& tree);

// The distributions that a draft's tokens were drawn from are numbered: one for each node with children, the
// root's first, then in the order of nodes; in a chain one for each token. The tree passed check_tree().
class RowNumbers {
 public:
  explicit RowNumbers(DraftTreeView tree);
  size_t size() const { return size_; }
  // The one that node i's own token was drawn from.
  size_t of(size_t node) const { return of_.empty() ? node : of_[node]; }

 private:
  size_t size_;
  std::vector<size_t> of_;  // none: a chain
};

}  // namespace outrider
