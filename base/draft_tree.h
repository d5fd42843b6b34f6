// Drafted tokens: a tree whose root is the committed text. In a chain every token follows the one before it,
// so it needs no parents. Plain values; the receiver of a tree from another process calls check_tree() first.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace outrider {

// The committed text, in place of a node index.
constexpr int32_t kTreeRoot = -1;

// Node i is token ids[i] after node parents[i], which comes earlier in the list, or after kTreeRoot. Children
// of one node are different tokens, unless they were drawn independently.
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
  std::vector<int32_t> parents;  // one for each id; empty: a chain
};

// A non-owning view of a tree's ids and parents.
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
  bool equal_siblings = false;                             // a node may have two children with the same token
};

// kMalformed: a parent does not come before its node, a node has the same token twice, or a limit is
// exceeded. Ids are not checked against the vocabulary.
Status check_tree(DraftTreeView tree, const TreeLimits& limits);

// The number of tokens on the path from the root to each node, the node included.
void tree_depths(DraftTreeView tree, std::vector<int32_t>& depths);
int32_t tree_depth(DraftTreeView tree);  // of the deepest node
// The nodes from a child of the root to `node`; none for kTreeRoot.
void path_to(DraftTreeView tree, int32_t node, std::vector<int32_t>& path);
// The child of `node` with this token; kTreeRoot: there is none.
int32_t child_with(DraftTreeView tree, int32_t node, TokenId token);
bool has_children(DraftTreeView tree, int32_t node);
void children_of(DraftTreeView tree, int32_t node, std::vector<int32_t>& children);  // in their order
// Whether the first node is a child of the root, and every other one a child of the node before it.
bool is_path(DraftTreeView tree, std::span<const int32_t> nodes);
// The number of draft levels that verification tested on an accepted path: its nodes, plus one unless it ends
// at a leaf.
int32_t levels_tested(DraftTreeView tree, std::span<const int32_t> path);

// The same tree with every node's children right after it, in their order; so the path of first children lies
// where a chain would. order[i], if not null: the node of `tree` that became node i.
DraftTree depth_first(DraftTreeView tree, std::vector<int32_t>* order = nullptr);
// Removes the parents if the tree is a chain.
void shorten_chain(DraftTree& tree);

// Numbers the distributions that a draft's tokens were drawn from: one for each node with children, the
// root's first, then in the order of nodes; in a chain one for each token. The tree must have passed
// check_tree().
class RowNumbers {
 public:
  explicit RowNumbers(DraftTreeView tree);
  size_t size() const { return size_; }
  // The number of the distribution that node i was drawn from.
  size_t of(size_t node) const { return of_.empty() ? node : of_[node]; }

 private:
  size_t size_;
  std::vector<size_t> of_;  // none: a chain
};

}  // namespace outrider
