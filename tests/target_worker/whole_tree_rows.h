// The rows of a tree on one rank with the whole vocabulary, in text-book doubles. The test supplies the
// decision rule and the draws.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "base/random.h"
#include "target_worker/rules/sharded_tree_rows.h"

namespace outrider {

inline constexpr Rule kTreeRules[] = {Rule::kSpecInfer, Rule::kKSeq, Rule::kSwor, Rule::kTraversal};

class WholeTreeRows : public TreeRows {
 public:
  using Row = std::vector<double>;
  // rows[0] is the root's, rows[i + 1] that of node i; all sum to 1. A leaf's q may be empty.
  WholeTreeRows(std::vector<Row> p, std::vector<Row> q) : p_(std::move(p)), q_(std::move(q)) {}

  double p(int32_t node, TokenId child) override { return row(p_, node)[index(child)]; }
  double q(int32_t node, TokenId child) override { return row(q_, node)[index(child)]; }

  void overlaps(int32_t node, std::span<const double> rho, std::span<double> overlap) override {
    const Row& p = row(p_, node);
    const Row& q = row(q_, node);
    for (size_t i = 0; i < rho.size(); ++i) {
      overlap[i] = 0;
      for (size_t v = 0; v < p.size(); ++v) overlap[i] += std::min(q[v], p[v] / rho[i]);
    }
  }

  double reject(int32_t node, const Rejection& rejection) override {
    Row& p = row(p_, node);
    const Row& q = row(q_, node);
    Row left(p.size());
    for (size_t v = 0; v < p.size(); ++v)
      left[v] = std::max(rejection.floor * p[v], rejection.scale * p[v] - rejection.weight * q[v]);
    const double mass = std::accumulate(left.begin(), left.end(), 0.0);
    if (mass > 0) {
      for (double& w : left) w /= mass;
      p = left;
    }
    return mass;
  }

  void remove_from_q(int32_t node, TokenId child) override {
    Row& q = row(q_, node);
    q[index(child)] = 0;
    const double mass = std::accumulate(q.begin(), q.end(), 0.0);
    if (mass > 0)
      for (double& w : q) w /= mass;
  }

 protected:
  static size_t index(TokenId token) { return static_cast<size_t>(token.value()); }
  static Row& row(std::vector<Row>& rows, int32_t node) { return rows[static_cast<size_t>(node + 1)]; }

  std::vector<Row> p_, q_;
};

// Whole rows with the counter streams' numbers. The two arithmetics differ by 1e-16, so a decision would
// differ from that of fixed point once in some 10^14 draws.
class CountedTreeRows final : public WholeTreeRows {
 public:
  CountedTreeRows(DraftTreeView tree, const TreeDraws& draws, std::vector<Row> p, std::vector<Row> q)
      : WholeTreeRows(std::move(p), std::move(q)), draws_(draws) {
    tree_depths(tree, depths_);
  }

  bool accept(int32_t node, double a, double b) override {
    uint32_t ordinal = 0;
    for (int32_t other = 0; other < node; ++other) ordinal += depth(other) == depth(node);
    return draw_uniform(draws_.seed, Purpose::kAccept, draws_.base + (depth(node) - 1), draws_.round,
                        ordinal) *
               b <
           a;
  }
  TokenId draw(int32_t node) override {
    const double u = static_cast<double>(
                         draw_u64(draws_.seed, Purpose::kResidual, draws_.base + depth(node), draws_.round)) *
                     0x1p-64;
    const Row& row = WholeTreeRows::row(p_, node);
    double cumulative = 0;
    for (size_t v = 0; v < row.size(); ++v)
      if (u < (cumulative += row[v])) return TokenId(static_cast<int32_t>(v));
    return TokenId(-1);
  }

 private:
  int32_t depth(int32_t node) const { return node == kTreeRoot ? 0 : depths_[static_cast<size_t>(node)]; }
  const TreeDraws draws_;
  std::vector<int32_t> depths_;
};

}  // namespace outrider
