// Which tokens a tree has, as it grows from what a draft model thinks of the nodes it has already. Fixed
// shapes take the best few children of every node, or the few that were drawn, level by level. Best-first
// trees are the nodes that the target most likely comes to (EAGLE-2, Li et al. 2024; DDTree's heap), which is
// what a chain of greatest confidence is where there is no doubt. Pure; knows no model.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "base/draft_tree.h"
#include "comm/messages/draft_forms.h"
#include "heads/branch_confidence.h"
#include "kernels/sampling/ordered_key.h"

namespace outrider {

class TreeGrowth {
 public:
  // A path has `depth` tokens at most.
  void begin(const TreeShape& shape, int32_t depth);

  // The nodes behind which to look next, in one pass, the likeliest first: kTreeRoot at first. At most so
  // many; the others come again. None: the tree is complete. Valid until add().
  std::span<const int32_t> next(size_t most);
  // How many tokens add() wants to know behind this node.
  size_t wanted(int32_t node) const;
  // Adds the candidates behind this node: tokens with their scores, best first. Empty: nothing can follow.
  void add(int32_t node, std::span<const RankedToken> best, const BranchConfidence& confidence);
  // In a fixed shape: the children of `node` are these tokens, in the order they were drawn.
  void add_drawn(int32_t node, std::span<const TokenId> tokens);
  // In a fixed shape: which of the nodes of its depth the i-th child of this node is, whatever was found.
  uint32_t ordinal(int32_t node, size_t i) const;
  // No text goes on behind this node.
  void end_at(int32_t node) { nodes_[static_cast<size_t>(node)].known = true; }
  // As it is.
  void stop() { stopped_ = true; }
  bool is_stopped() const { return stopped_; }
  // Best-first trees grow on, to this shape and depth.
  void go_on(const TreeShape& shape, int32_t depth);
  // The text went on to this node, whose children are known: the subtree behind it is the tree now. kept[i]:
  // the old index of the i-th remaining node.
  void become_root(int32_t node, std::vector<int32_t>& kept);

  TokenId token(int32_t node) const { return nodes_[static_cast<size_t>(node)].token; }
  int32_t parent(int32_t node) const { return nodes_[static_cast<size_t>(node)].parent; }
  int32_t depth(int32_t node) const {
    return node == kTreeRoot ? 0 : nodes_[static_cast<size_t>(node)].depth;
  }
  size_t found() const { return nodes_.size(); }
  int32_t looks() const { return looked_; }  // nodes behind which was looked
  bool is_known(int32_t node) const {        // what is behind it
    return node == kTreeRoot ? root_known_ : nodes_[static_cast<size_t>(node)].known;
  }
  bool has_child(int32_t node) const {
    return std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& n) { return n.parent == node; });
  }
  // kTreeRoot: no child that was found has this token.
  int32_t child_with(int32_t node, TokenId token) const;

  // The tokens from the root's child to this node.
  void path(int32_t node, std::vector<TokenId>& out) const;
  // Depth first, the best child first: so a path of best children lies where a chain would.
  // order[i]: which of the found nodes is node i.
  DraftTree take(std::vector<int32_t>& order) const;
  DraftTree take() const {
    std::vector<int32_t> order;
    return take(order);
  }

  // The text went on with these tokens: teaches how far to trust the draft model.
  void observe(std::span<const TokenId> text, BranchConfidence& confidence);

 private:
  struct Node {
    int32_t parent, depth;
    TokenId token;
    float score;
    double reach;       // chance that the target comes to it
    int32_t place = 0;  // in a fixed shape
    bool known = false;
    bool chosen = false;
  };
  double reach(int32_t node) const { return node == kTreeRoot ? 1 : nodes_[static_cast<size_t>(node)].reach; }
  int32_t place(int32_t node) const {
    return node == kTreeRoot ? kTreeRoot : nodes_[static_cast<size_t>(node)].place;
  }
  int32_t place_of_child(int32_t node, size_t i) const;
  bool goes_on(int32_t node) const;
  void lay_out(int32_t depth);
  void choose();
  bool is_worth_a_pass() const;

  TreeShape shape_;
  DraftTree fixed_;  // its nodes, without tokens, where the shape says them
  std::vector<int32_t> fixed_depths_;
  int32_t depth_ = 0;
  bool root_known_ = false, stopped_ = false;
  std::vector<Node> nodes_;  // all that were found, parents before children, best siblings first
  std::vector<int32_t> order_, next_;
  std::vector<float> scores_;
  std::vector<double> shares_;
  double best_shares_ = 0;  // sum over the best child of each node
  int32_t looked_ = 0;      // number of nodes whose children are known
};

}  // namespace outrider
