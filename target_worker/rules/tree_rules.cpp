#include "target_worker/rules/tree_rules.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/log.h"

namespace outrider {
namespace {

// Each level tells which child is descended to, or kTreeRoot after it has left in p what the next token is
// drawn from.
int32_t specinfer_level(DraftTreeView tree, int32_t node, std::span<const int32_t> children, TreeRows& rows) {
  for (int32_t child : children) {
    if (rows.accept(child, rows.p(node, tree.id(child)), rows.q(node, tree.id(child)))) return child;
    rows.reject(node, {});
  }
  return kTreeRoot;
}

int32_t without_replacement_level(DraftTreeView tree, int32_t node, std::span<const int32_t> children,
                                  TreeRows& rows) {
  for (int32_t child : children) {
    const TokenId token = tree.id(child);
    if (rows.accept(child, rows.p(node, token), rows.q(node, token))) return child;
    rows.reject(node, {});
    rows.remove_from_q(node, token);
  }
  return kTreeRoot;
}

// The smallest division factor found for which the rule keeps the target's distribution: 1 - (1 - b)^k <= rho
// * b. It shrinks with each round of probes; k itself is always valid.
struct DivisionFactor {
  double rho, overlap;
};
DivisionFactor least_division_factor(int32_t node, int k, TreeRows& rows) {
  constexpr int kProbes = 16, kRounds = 4;  // in all down to (k - 1) / 2^16
  std::array<double, kProbes> rho{}, overlap{};
  double low = 1, high = k;
  DivisionFactor best{high, 0};
  for (int round = 0; round < kRounds; ++round) {
    const double step = (high - low) / (kProbes - 1);
    for (int i = 0; i < kProbes; ++i) rho[static_cast<size_t>(i)] = low + step * i;
    rho.back() = high;
    rows.overlaps(node, rho, overlap);
    size_t least = kProbes - 1;
    while (least > 0) {
      const double b = overlap[least - 1];
      if (1 - std::pow(1 - b, k) > rho[least - 1] * b) break;
      --least;
    }
    best = {rho[least], overlap[least]};
    if (least == 0) break;
    low = rho[least - 1];
    high = rho[least];
  }
  return best;
}

int32_t k_seq_level(DraftTreeView tree, int32_t node, std::span<const int32_t> children, TreeRows& rows) {
  const auto k = static_cast<int>(children.size());
  if (k == 1) return specinfer_level(tree, node, children, rows);  // the token rule
  const auto [rho, overlap] = least_division_factor(node, k, rows);
  for (int32_t child : children)
    if (rows.accept(child, rows.p(node, tree.id(child)), rho * rows.q(node, tree.id(child)))) return child;
  // p - min(q, p / rho) * A / b, with A the chance that some child is accepted.
  const double factor = overlap > 0 ? (1 - std::pow(1 - overlap, k)) / overlap : 0;
  rows.reject(node, {.scale = 1, .weight = factor, .floor = std::max(0.0, 1 - factor / rho)});
  return kTreeRoot;
}

template <class Level>
TreeOutcome walk_down(DraftTreeView tree, TreeRows& rows, Level level) {
  TreeOutcome outcome;
  std::vector<int32_t> children;
  int32_t node = kTreeRoot;
  while (true) {
    children_of(tree, node, children);
    const int32_t child = children.empty() ? kTreeRoot : level(tree, node, children, rows);
    if (child == kTreeRoot) break;
    outcome.path.push_back(child);
    node = child;
  }
  outcome.next = rows.draw(node);
  return outcome;
}

// Tests leaves, first in depth-first order; a rejected one is deleted, and what its parent's row has left
// raises or lowers the parent's own chance. For a chain this is block verification.
class Traversal {
 public:
  Traversal(DraftTreeView tree, TreeRows& rows) : tree_(tree), rows_(rows) {
    weights_.resize(tree.ids.size());
    deleted_.resize(tree.ids.size());
    reweigh(kTreeRoot);
  }

  TreeOutcome decide() {
    while (true) {
      const int32_t leaf = first_leaf();
      if (leaf == kTreeRoot || rows_.accept(leaf, weight(leaf), 1)) {
        TreeOutcome outcome;
        path_to(tree_, leaf, outcome.path);
        outcome.next = rows_.draw(leaf);
        return outcome;
      }
      deleted_[static_cast<size_t>(leaf)] = true;
      const int32_t parent = tree_.parent(leaf);
      const double before = weight(parent);
      const double mass = rows_.reject(parent, {.scale = before});
      rows_.remove_from_q(parent, tree_.id(leaf));
      // 0 / 0 where the parent's chance was 1 and nothing is left: then the leaf could not have been
      // rejected.
      const double after = mass > 0 ? mass / (mass + 1 - before) : 0;
      if (parent != kTreeRoot) weights_[static_cast<size_t>(parent)] = after;
      reweigh(parent);
    }
  }

 private:
  double weight(int32_t node) const { return node == kTreeRoot ? 1 : weights_[static_cast<size_t>(node)]; }

  int32_t first_leaf() const {
    int32_t node = kTreeRoot;
    for (size_t i = 0; i < deleted_.size(); ++i)  // children stand behind their parents
      if (!deleted_[i] && tree_.parent(static_cast<int32_t>(i)) == node) node = static_cast<int32_t>(i);
    return node;
  }

  // The chances of all nodes under `top`: min(1, the parent's times p / q).
  void reweigh(int32_t top) {
    for (size_t i = static_cast<size_t>(top + 1); i < deleted_.size(); ++i) {
      const int32_t parent = tree_.parent(static_cast<int32_t>(i));
      if (deleted_[i] || !under(parent, top)) continue;
      const double joint = weight(parent) * rows_.p(parent, tree_.id(static_cast<int32_t>(i)));
      const double q = rows_.q(parent, tree_.id(static_cast<int32_t>(i)));
      weights_[i] = q > joint ? joint / q : (joint > 0 ? 1 : 0);
    }
  }
  bool under(int32_t node, int32_t top) const {
    while (node > top) node = tree_.parent(node);
    return node == top;
  }

  const DraftTreeView tree_;
  TreeRows& rows_;
  std::vector<double> weights_;
  std::vector<bool> deleted_;
};

}  // namespace

TreeOutcome decide_tree(Rule rule, DraftTreeView tree, TreeRows& rows) {
  switch (rule) {
    case Rule::kSpecInfer:
      return walk_down(tree, rows, specinfer_level);
    case Rule::kKSeq:
      return walk_down(tree, rows, k_seq_level);
    case Rule::kSwor:
      return walk_down(tree, rows, without_replacement_level);
    case Rule::kTraversal:
      return Traversal(tree, rows).decide();
    default:
      break;
  }
  check_failed(__FILE__, __LINE__, "rule", fmt::format("{} decides no trees", rule_name(rule)));
}

}  // namespace outrider
