// Exact proof that the tree rules are lossless. It enumerates all drafts of a tree shape and all outcomes of
// the accept tests with their probabilities, and compares with the target's own distribution, for every tree
// of up to four nodes.
#include "target_worker/rules/tree_rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "target_worker/rules/decisions.h"
#include "tests/target_worker/table_models.h"
#include "tests/target_worker/whole_tree_rows.h"

namespace outrider {
namespace {

struct DrawnTree {
  std::vector<TokenId> ids;
  std::vector<int32_t> parents;

  Path path(int32_t node) const {
    Path result;
    for (; node != kTreeRoot; node = parents[static_cast<size_t>(node)])
      result.insert(result.begin(), ids[static_cast<size_t>(node)].value());
    return result;
  }
};

// Answers the first tests as told, the others with yes where they can pass.
class ScriptedRows final : public WholeTreeRows {
 public:
  ScriptedRows(std::vector<Row> p, std::vector<Row> q, std::vector<bool> told)
      : WholeTreeRows(std::move(p), std::move(q)), answers(std::move(told)) {}

  bool accept(int32_t node, double a, double b) override {
    EXPECT_TRUE(asked.insert({node, true}).second) << "node " << node << " was tested twice";
    const double chance = a < b ? a / b : a > 0 ? 1 : 0;
    if (chances.size() == answers.size()) answers.push_back(chance > 0);
    chances.push_back(chance);
    return answers[chances.size() - 1];
  }
  TokenId draw(int32_t node) override {
    drawn_from = row(p_, node);
    return TokenId(0);
  }

  std::vector<bool> answers;
  std::vector<double> chances;
  std::map<int32_t, bool> asked;
  Row drawn_from;
};

struct TreeEnumeration {
  Law law;
  double accepted = 0;  // expected
};

void enumerate_tests(Rule rule, const TableModel& model, const DrawnTree& tree, double mass,
                     std::vector<bool> answers, TreeEnumeration& out) {
  std::vector<Row> p{model.p.at({})}, q{model.q.at({})};
  for (size_t i = 0; i < tree.ids.size(); ++i) {
    const Path path = tree.path(static_cast<int32_t>(i));
    p.push_back(model.p.at(path));
    q.push_back(model.q.at(path));
  }
  const size_t told = answers.size();
  ScriptedRows rows(std::move(p), std::move(q), std::move(answers));
  const TreeOutcome outcome = decide_tree(rule, {tree.ids, tree.parents}, rows);
  double weight = mass;
  for (size_t i = 0; i < rows.chances.size(); ++i) {
    const double chance = rows.chances[i];
    if (i >= told && rows.answers[i] && chance < 1) {  // the other branch, later
      std::vector<bool> other(rows.answers.begin(), rows.answers.begin() + static_cast<std::ptrdiff_t>(i));
      other.push_back(false);
      enumerate_tests(rule, model, tree, mass, std::move(other), out);
    }
    weight *= rows.answers[i] ? chance : 1 - chance;
  }
  Path emitted;
  for (int32_t node : outcome.path) emitted.push_back(tree.ids[static_cast<size_t>(node)].value());
  out.accepted += weight * static_cast<double>(emitted.size());
  emitted.push_back(0);
  for (int v = 0; v < model.vocab_size; ++v) {
    emitted.back() = v;
    out.law[emitted] += weight * rows.drawn_from[static_cast<size_t>(v)];
  }
}

// Draws node `next` of the shape in every way. Where q has no token left for a sibling, it and its
// descendants are not drafted.
void enumerate_drafts(Rule rule, const TableModel& model, const std::vector<int32_t>& shape, size_t next,
                      DrawnTree& tree, std::vector<int32_t>& place, double mass, TreeEnumeration& out) {
  if (next == shape.size()) return enumerate_tests(rule, model, tree, mass, {}, out);
  const int32_t parent = shape[next] == kTreeRoot ? kTreeRoot : place[static_cast<size_t>(shape[next])];
  constexpr int32_t kAbsent = -2;
  const auto go_on = [&](int32_t node, double weight) {
    place.push_back(node);
    enumerate_drafts(rule, model, shape, next + 1, tree, place, weight, out);
    place.pop_back();
  };
  if (parent == kAbsent) return go_on(kAbsent, mass);
  Row q = model.q.at(tree.path(parent));
  if (draws_without_replacement(rule))
    for (size_t i = 0; i < tree.ids.size(); ++i)
      if (tree.parents[i] == parent) q[static_cast<size_t>(tree.ids[i].value())] = 0;
  const double total = std::accumulate(q.begin(), q.end(), 0.0);
  if (total == 0) return go_on(kAbsent, mass);
  for (int v = 0; v < model.vocab_size; ++v) {
    if (q[static_cast<size_t>(v)] == 0) continue;
    tree.ids.emplace_back(v);
    tree.parents.push_back(parent);
    go_on(static_cast<int32_t>(tree.ids.size()) - 1, mass * q[static_cast<size_t>(v)] / total);
    tree.ids.pop_back();
    tree.parents.pop_back();
  }
}

TreeEnumeration enumerate(Rule rule, const TableModel& model, const std::vector<int32_t>& shape) {
  TreeEnumeration result;
  DrawnTree tree;
  std::vector<int32_t> place;
  enumerate_drafts(rule, model, shape, 0, tree, place, 1, result);
  return result;
}

// All shapes with this many nodes: every node hangs on one before it, or on the root.
std::vector<std::vector<int32_t>> shapes(size_t nodes) {
  std::vector<std::vector<int32_t>> result{{}};
  for (size_t i = 0; i < nodes; ++i) {
    std::vector<std::vector<int32_t>> longer;
    for (const auto& shape : result)
      for (int32_t parent = kTreeRoot; parent < static_cast<int32_t>(i); ++parent) {
        longer.push_back(shape);
        longer.back().push_back(parent);
      }
    result = std::move(longer);
  }
  return result;
}

TEST(TreeRules, KeepTheTargetsLawOnEverySmallTree) {
  std::mt19937_64 rng(23);
  for (Shape shape : {Shape::kDense, Shape::kZeros, Shape::kOneHotQ, Shape::kSameQ, Shape::kSparseQ}) {
    TableModel model{.vocab_size = 3, .p = {}, .q = {}};
    fill_model(rng, shape, 4, {}, model);
    Law target;
    extend(model, {}, 1, 4, target);
    for (size_t nodes = 0; nodes <= 3; ++nodes)
      for (const auto& tree : shapes(nodes))
        for (Rule rule : kTreeRules) {
          Law emitted;
          for (const auto& [path, mass] : enumerate(rule, model, tree).law)
            extend(model, path, mass, 4, emitted);
          EXPECT_LT(distance(emitted, target), 1e-12)
              << rule_name(rule) << " on tree " << testing::PrintToString(tree) << " shape "
              << static_cast<int>(shape);
        }
  }
  // Four nodes on one model: three siblings under one node, and all that is deeper.
  TableModel model{.vocab_size = 3, .p = {}, .q = {}};
  fill_model(rng, Shape::kDense, 5, {}, model);
  Law target;
  extend(model, {}, 1, 5, target);
  for (const auto& tree : shapes(4))
    for (Rule rule : kTreeRules) {
      Law emitted;
      for (const auto& [path, mass] : enumerate(rule, model, tree).law) extend(model, path, mass, 5, emitted);
      EXPECT_LT(distance(emitted, target), 1e-12)
          << rule_name(rule) << " on tree " << testing::PrintToString(tree);
    }
}

// The distribution of the tokens emitted by block verification and by token-wise rejection, from the same
// enumeration of chains.
TreeEnumeration enumerate_chain(bool block, const TableModel& model, size_t gamma) {
  TreeEnumeration result;
  std::vector<Path> paths{{}};
  for (size_t i = 0; i < gamma; ++i) {
    std::vector<Path> longer;
    for (const Path& path : paths)
      for (int v = 0; v < model.vocab_size; ++v) {
        longer.push_back(path);
        longer.back().push_back(v);
      }
    paths = std::move(longer);
  }
  for (const Path& path : paths) {
    double mass = 1;
    std::vector<TestedToken> tests;
    std::vector<Path> contexts;
    for (size_t i = 0; i <= gamma; ++i)
      contexts.emplace_back(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(i));
    for (size_t i = 0; i < gamma; ++i) {
      const auto x = static_cast<size_t>(path[i]);
      tests.push_back({.p = model.p.at(contexts[i])[x], .q = model.q.at(contexts[i])[x]});
      mass *= tests.back().q;
    }
    if (mass == 0) continue;
    std::vector<double> ratios(gamma + 1, 1);
    if (block) block_ratios(tests, ratios);
    double none_later = 1;  // chance that no later test passed; of the token rule: that all before passed
    for (size_t step = 0; step <= gamma; ++step) {
      const size_t n = block ? gamma - step : step;
      Row residual = model.p.at(contexts[n]);
      if (n < gamma) residual_row(model.p.at(contexts[n]), model.q.at(contexts[n]), ratios[n], residual);
      const double left = std::accumulate(residual.begin(), residual.end(), 0.0);
      double stops;  // at n
      if (block) {
        const double h = n == 0 ? 1 : n == gamma ? ratios[n] : left > 0 ? left / (left + 1 - ratios[n]) : 0;
        stops = none_later * h;
        none_later *= 1 - h;
      } else {
        const double pass = n == gamma ? 0 : std::min(1.0, tests[n].p / tests[n].q);
        stops = none_later * (1 - pass);
        none_later *= pass;
      }
      result.accepted += mass * stops * static_cast<double>(n);
      Path emitted(contexts[n]);
      emitted.push_back(0);
      for (int v = 0; v < model.vocab_size && left > 0; ++v) {
        emitted.back() = v;
        result.law[emitted] += mass * stops * residual[static_cast<size_t>(v)] / left;
      }
    }
  }
  return result;
}

TEST(TreeRules, OnAChainTraversalIsBlockVerificationAndTheOthersAreTheTokenRule) {
  std::mt19937_64 rng(29);
  for (Shape shape : {Shape::kDense, Shape::kZeros, Shape::kSparseQ}) {
    TableModel model{.vocab_size = 3, .p = {}, .q = {}};
    fill_model(rng, shape, 4, {}, model);
    for (size_t gamma = 1; gamma <= 4; ++gamma) {
      std::vector<int32_t> chain;
      for (size_t i = 0; i < gamma; ++i) chain.push_back(static_cast<int32_t>(i) - 1);
      for (Rule rule : kTreeRules) {
        const TreeEnumeration expected = enumerate_chain(rule == Rule::kTraversal, model, gamma);
        const TreeEnumeration round = enumerate(rule, model, chain);
        EXPECT_LT(distance(round.law, expected.law), 1e-12) << rule_name(rule) << " gamma " << gamma;
        EXPECT_NEAR(round.accepted, expected.accepted, 1e-12) << rule_name(rule) << " gamma " << gamma;
      }
    }
  }
}

// The most that k independent children can have accepted: 1 + min over H of P(H) - Q(H)^k, where H holds the
// tokens with the smallest p / q (Hu et al. 2025).
double optimum_of_independent_drafts(const Row& p, const Row& q, int k) {
  std::vector<size_t> order;
  for (size_t v = 0; v < p.size(); ++v)
    if (p[v] + q[v] > 0) order.push_back(v);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] * q[b] < p[b] * q[a]; });
  double best = 0, of_p = 0, of_q = 0;
  for (size_t v : order) {
    of_p += p[v];
    of_q += q[v];
    best = std::min(best, of_p - std::pow(of_q, k));
  }
  return 1 + best;
}

TEST(TreeRules, NoRuleForIndependentDraftsBeatsTheirOptimumAndKSeqComesWithinItsBound) {
  std::mt19937_64 rng(31);
  double without_replacement = 0, independent = 0;
  for (int trial = 0; trial < 40; ++trial) {
    TableModel model{.vocab_size = 4, .p = {}, .q = {}};
    fill_model(rng, trial % 2 ? Shape::kDense : Shape::kZeros, 1, {}, model);
    for (int k = 1; k <= 3; ++k) {
      const std::vector<int32_t> siblings(static_cast<size_t>(k), kTreeRoot);
      const double optimum = optimum_of_independent_drafts(model.p.at({}), model.q.at({}), k);
      const double specinfer = enumerate(Rule::kSpecInfer, model, siblings).accepted;
      const double kseq = enumerate(Rule::kKSeq, model, siblings).accepted;
      EXPECT_LE(specinfer, optimum + 1e-12);
      EXPECT_LE(kseq, optimum + 1e-12);
      EXPECT_GE(kseq, (1 - 1 / std::exp(1.0)) * optimum);  // SpecTr, Theorem 2
      if (k == 1) {
        EXPECT_NEAR(specinfer, optimum, 1e-12);
        EXPECT_NEAR(kseq, optimum, 1e-12);
      }
      independent += specinfer;
      without_replacement += enumerate(Rule::kSwor, model, siblings).accepted;
    }
  }
  EXPECT_GT(without_replacement, independent);
}

TEST(TreeRules, TraversalAcceptsAtLeastWhatTheWalkDownDoes) {
  std::mt19937_64 rng(37);
  for (int trial = 0; trial < 5; ++trial) {
    TableModel model{.vocab_size = 3, .p = {}, .q = {}};
    fill_model(rng, Shape::kDense, 4, {}, model);
    for (const auto& tree : shapes(3)) {
      const double down = enumerate(Rule::kSwor, model, tree).accepted;
      EXPECT_GE(enumerate(Rule::kTraversal, model, tree).accepted, down - 1e-12)
          << testing::PrintToString(tree);
    }
  }
}

}  // namespace
}  // namespace outrider
