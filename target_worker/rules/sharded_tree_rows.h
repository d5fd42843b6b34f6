// The rows of one tree on one rank of a target group. No rank sees another's logits: what ranks add up are
// integers, one for each rejection, and so every rank decides alike, whatever their number.
#pragma once

#include <span>
#include <vector>

#include "comm/collectives.h"
#include "kernels/sampling/weighted_draw.h"
#include "target_worker/rules/tree_rules.h"

namespace outrider {

// Where the verification of one tree stands in its text. The uniform of a node is that of its position, and
// of its ordinal among the nodes of its depth: a chain has those of the chain rules.
struct TreeDraws {
  Seed seed;
  Round round;
  Position base;  // of the root's children
};

class ShardedTreeRows final : public TreeRows {
 public:
  // rows[0] is the root's, rows[i + 1] that of node i: processed logits, their largest over all ranks, and q
  // on this rank's ids at least, with the sum of all, which a leaf need not have. A leaf's row need not be
  // known: its largest logit is not finite then, and draw() gives kNoToken there. q_drafted[i]: the weight
  // of node i in its parent's q. Everything must outlive this. Collective.
  ShardedTreeRows(Collectives& group, WeightedSampler& sampler, DraftTreeView tree,
                  std::span<const RowWeights> rows, std::span<const uint64_t> q_drafted,
                  const TreeDraws& draws);
  static constexpr TokenId kNoToken{-1};

  double p(int32_t node, TokenId child) override;
  double q(int32_t node, TokenId child) override;
  void overlaps(int32_t node, std::span<const double> rho, std::span<double> overlap) override;
  double reject(int32_t node, const Rejection& rejection) override;
  void remove_from_q(int32_t node, TokenId child) override;
  bool accept(int32_t node, double a, double b) override;
  TokenId draw(int32_t node) override;

  // Rejections that left no mass, which happens by rounding only.
  int fallbacks() const { return fallbacks_; }

 private:
  struct Node {
    RowWeights row;  // with q and the whole row's total
    std::vector<RejectionStep> steps;
    std::vector<TokenId> removed;
    uint64_t q_sum = 0;  // of q's integers without `removed`
    struct Child {
      TokenId token;
      uint64_t q_weight, weight;  // weight: W
    };
    std::vector<Child> children;
  };
  const Node::Child& child_of(const Node& node, TokenId child) const;
  Node& at(int32_t node) { return nodes_[static_cast<size_t>(node + 1)]; }
  uint64_t q_weight(const Node& node, TokenId child, size_t removed) const;
  int32_t depth(int32_t node) const { return node == kTreeRoot ? 0 : depths_[static_cast<size_t>(node)]; }

  Collectives& group_;
  WeightedSampler& sampler_;
  std::vector<int32_t> depths_;  // by node
  const TreeDraws draws_;
  std::vector<Node> nodes_;
  int fallbacks_ = 0;
};

}  // namespace outrider
