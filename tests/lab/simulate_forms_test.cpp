// Closed forms of trees and theory against values that other code computed (tests/vectors/simulate.json and
// tree_acceptance.json).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lab/simulate/row_costs.h"
#include "lab/simulate/theory.h"
#include "lab/simulate/tree_command.h"
#include "lab/simulate/tree_forms.h"
#include "tests/support/source_dir.h"

namespace outrider {
namespace {

using nlohmann::json;

json vectors(const char* name) {
  std::ifstream file(source_dir() / "tests/vectors" / name);
  EXPECT_TRUE(file) << name;
  return json::parse(file);
}

TEST(Cascades, FollowFromTheirRenewals) {
  const StagedDraft none = staged_draft(0.7, 6, 0);
  EXPECT_DOUBLE_EQ(none.passes, 6);
  EXPECT_DOUBLE_EQ(none.steps(0.5), 6);
  const StagedDraft sure = staged_draft(1, 6, 2);  // three tokens a pass
  EXPECT_DOUBLE_EQ(sure.passes, 2);
  EXPECT_DOUBLE_EQ(sure.rows, 6);
  // A draft of two tokens has one guess: a right guess takes one pass, a wrong one takes two.
  EXPECT_DOUBLE_EQ(staged_draft(0.3, 2, 5).passes, 1.7);
  EXPECT_DOUBLE_EQ(staged_draft(0.3, 2, 5).rows, 2.7);
  // A long draft has (1 - beta^(k+1)) / (1 - beta) tokens a pass.
  const double tokens = (1 - std::pow(0.6, 4)) / 0.4;
  EXPECT_NEAR(staged_draft(0.6, 2000, 3).passes, 2000 / tokens, 2);
}

// One guess costs a row and spares a pass with chance beta: it pays from there on.
TEST(Cascades, PayWhereAGuessIsRightMoreOftenThanItsRowCosts) {
  for (const double row : {0.05, 0.2, 0.5}) {
    EXPECT_EQ(best_cascade(0.8, 0.1, 0, 0, 0.9 * row, row).guesses, 0) << row;
    EXPECT_GT(best_cascade(0.8, 0.1, 0, 0, 1.3 * row, row).guesses, 0) << row;
  }
  const BestGamma lockstep = best_lockstep_gamma(0.8, 0.1, 0.1, 0.01, 64);
  const BestCascade none = best_cascade(0.8, 0.1, 0.1, 0.01, 0, 0.1);
  EXPECT_EQ(none.gamma, lockstep.gamma);
  EXPECT_DOUBLE_EQ(none.speedup, lockstep.speedup);
}

TEST(TreeForms, SharedNoiseAcceptsAsTheQuadratureSays) {
  for (const json& c : vectors("tree_acceptance.json")["cases"]) {
    const auto p = c["p"].get<std::vector<double>>(), q = c["q"].get<std::vector<double>>();
    const auto acceptance = shared_noise_acceptance(p, q, 4);
    double chain = 0;
    for (size_t j = 0; j < p.size(); ++j) {
      double sum = 0;
      for (size_t i = 0; i < p.size(); ++i) sum += std::max(p[i] / p[j], q[i] / q[j]);
      chain += 1 / sum;
    }
    EXPECT_NEAR(acceptance[0], chain, 2e-5);
    for (size_t k = 1; k <= 4; ++k)
      EXPECT_NEAR(acceptance[k - 1], c["acceptance"][std::to_string(k)].get<double>(), 2e-5) << k;
  }
}

TEST(TreeForms, RanksAreWhatEveryFurtherChildAdds) {
  const std::vector<double> acceptance{0.7, 0.9, 0.95, 0.95};
  const auto ranks = rank_chances(acceptance);
  EXPECT_NEAR(ranks[0], 0.7, 1e-12);
  EXPECT_NEAR(ranks[1], 0.2, 1e-12);
  EXPECT_NEAR(ranks[3], 0, 1e-12);
}

TEST(TreeForms, TheShapeIsTheBestOfAllShapes) {
  for (const json& c : vectors("simulate.json")["trees"]) {
    const auto ranks = c["ranks"].get<std::vector<double>>();
    const int nodes = c["nodes"], depth = c["depth"];
    const BestTree tree = TreeShapes(ranks, nodes, depth).best(nodes, depth);
    EXPECT_NEAR(tree.tokens, c["tokens"].get<double>(), 1e-9) << c;
    EXPECT_NEAR(tree_tokens(ranks, tree.parents), tree.tokens, 1e-9)
        << "the shape has the tokens that are told";
    EXPECT_LE(static_cast<int>(tree.parents.size()), nodes);
    EXPECT_LE(tree.depth, depth);
    for (size_t i = 0; i < tree.parents.size(); ++i) EXPECT_LT(tree.parents[i], static_cast<int>(i));
    // A table for more nodes and levels holds the smaller ones.
    EXPECT_NEAR(TreeShapes(ranks, 40, 40).best(nodes, depth).tokens, tree.tokens, 1e-9);
  }
}

TEST(TreeForms, AsManyChildrenEverywhere) {
  for (const json& c : vectors("simulate.json")["kary"])
    EXPECT_NEAR(kary_tokens(c["ranks"].get<std::vector<double>>(), c["children"], c["depth"]),
                c["tokens"].get<double>(), 1e-9)
        << c;
}

TEST(TreeForms, RowsCostStraightLinesBetweenPoints) {
  const RowCosts costs({{16, 1.1}, {64, 1.3}});
  EXPECT_DOUBLE_EQ(costs.of(1), 1);
  EXPECT_NEAR(costs.of(8.5), 1.05, 1e-12);
  EXPECT_NEAR(costs.of(16), 1.1, 1e-12);
  EXPECT_NEAR(costs.of(40), 1.2, 1e-12);
  EXPECT_NEAR(costs.of(112), 1.5, 1e-12) << "beyond the last point as before it";
}

// Either of two equally likely nodes may be taken, and levels have other widths then: half a percent of a
// round.
TEST(Trees, ChainsAndTreesUnderAGpusCostCurve) {
  for (const json& c : vectors("simulate.json")["rounds"]) {
    TreeForecastOptions options;
    options.ranks = c["ranks"].get<std::vector<double>>();
    options.row_costs = c["row_costs"].get<std::vector<std::string>>();
    options.draft_cost = c["draft_cost"];
    options.delay = c["delay"];
    options.nodes = {c["nodes"]};
    const TreeRow row = compare_trees(options).value().front();
    EXPECT_NEAR(row.chain.tokens, c["chain_tokens"].get<double>(), 1e-9);
    EXPECT_NEAR(row.chain.speedup(), c["chain_speedup"].get<double>(), 1e-9);
    EXPECT_NEAR(row.best_chain.speedup(), c["best_chain_speedup"].get<double>(), 1e-9);
    EXPECT_NEAR(row.tree.speedup() / c["tree_speedup"].get<double>(), 1, 0.005) << c;
    EXPECT_NEAR(row.simulated, row.tree.tokens, 2 * row.half_width) << c;
    EXPECT_LT(row.half_width, 0.05 * row.tree.tokens);
  }
}

// The expectation that trees are built for: 10 to 30 % over the best chain at 16 nodes, with the acceptance
// by rank that shared noise has for a fair drafter; at 4 nodes next to nothing.
TEST(Trees, SixteenNodesAreTenToThirtyPercentAhead) {
  TreeForecastOptions options;
  options.nodes = {4, 16};
  const auto rows = compare_trees(options).value();
  EXPECT_LT(rows[0].tree.speedup() / rows[0].best_chain.speedup(), 1.10);
  EXPECT_GT(rows[1].tree.speedup() / rows[1].best_chain.speedup(), 1.10);
  EXPECT_LT(rows[1].tree.speedup() / rows[1].best_chain.speedup(), 1.30);
}

TEST(Trees, NumbersThatCannotBeAreTold) {
  const auto told = [](TreeForecastOptions options) { return compare_trees(options).status().message(); };
  EXPECT_NE(told({.ranks = {0.8, 0.4}}).find("--ranks 0.8 0.4 must be chances whose sum is at most 1"),
            std::string::npos);
  EXPECT_NE(told({.row_costs = {"16"}}).find("write ROWS=COST"), std::string::npos);
  EXPECT_NE(told({.row_costs = {"16=0.9"}}).find("at least 1"), std::string::npos);
  EXPECT_NE(told({.row_costs = {"16=1.1", "8=1.2"}}).find("increasing"), std::string::npos);
  EXPECT_NE(told({.nodes = {0}}).find("--nodes 0"), std::string::npos);
}

TEST(Theory, ThePublishedTablesToThePrintedDigits) {
  const std::string report = theory_report({});
  for (const char* row :
       {"0.50    1.88  1.97  1.99  2.00", "0.70    2.53  2.94  3.14  3.27", "0.80    2.95  3.69  4.16  4.57",
        "0.90    3.44  4.69  5.70  6.86", "0.95    3.71  5.30  6.73  8.62"})
    EXPECT_NE(report.find(row), std::string::npos) << row << "\n" << report;
  for (const char* entry :
       {"7 / 2.30", "6 / 2.17", "4 / 1.92",  "3 / 1.67",  "2 / 1.40",  "1 / 1.07",  "9 / 2.97", "8 / 2.76",
        "6 / 2.35", "4 / 1.98", "3 / 1.58",  "1 / 1.13",  "14 / 4.23", "11 / 3.82", "8 / 3.09", "6 / 2.47",
        "4 / 1.87", "2 / 1.22", "24 / 7.49", "19 / 6.37", "13 / 4.67", "10 / 3.43", "7 / 2.37", "3 / 1.38"})
    EXPECT_NE(report.find(entry), std::string::npos) << entry << "\n" << report;
}

TEST(Theory, FiguresFollowTheFlagsAndAreThereForPrograms) {
  TheoryOptions options;
  options.acceptance = {0.75};
  options.gammas = {4};
  options.draft_cost = {0.1};
  options.delay = 0.2;
  options.per_token = 0.02;
  options.p = {0.5, 0.3, 0.15, 0.05};
  options.q = {0.4, 0.2, 0.3, 0.1};
  ASSERT_TRUE(check(options).ok());
  json out;
  fill_json(options, out);
  EXPECT_NEAR(out["tokens_per_round"][0]["tokens"].get<double>(), 3.05078125, 1e-12);
  // At the best length no neighbour is better: 3 tokens are 2.734375 / (1 + 0.4 + 0.06 + 0.3).
  const json& best = out["best_gamma"]["lockstep"][0];
  EXPECT_GE(best["speedup"].get<double>(), 2.734375 / 1.76 - 1e-12);
  EXPECT_NEAR(outcome_cache_speedup(0.75, 3, 0.1, 0.2, 0.02, 1), 2.734375 / 1.46, 1e-12);
  EXPECT_NEAR(outcome_cache_speedup(0.75, 3, 0.1, 0.2, 0.02, 0), 2.734375 / 1.76, 1e-12);
  EXPECT_NEAR(out["shared_noise"]["acceptance"][0].get<double>(), 0.784615, 2e-5);
  EXPECT_NEAR(out["shared_noise"]["ranks"][1].get<double>(), 0.967236 - 0.784615, 4e-5);
  // 2.734375 tokens at gamma 3 come from an acceptance of 0.75.
  for (const json& entry : out["acceptance_for_tokens"]) EXPECT_GT(entry["acceptance"].get<double>(), 0.3);
}

TEST(Theory, NumbersThatCannotBeAreTold) {
  TheoryOptions options;
  options.p = {0.5, 0.5};
  EXPECT_NE(check(options).message().find("--p has 2 tokens and --q 0"), std::string::npos);
  options.q = {0.5, 0.6};
  EXPECT_NE(check(options).message().find("--q must be chances above 0 whose sum is 1, not 1.1"),
            std::string::npos);
  EXPECT_NE(check({.acceptance = {1.0}}).message().find("--acceptance 1 must be between 0 and 1"),
            std::string::npos);
}

}  // namespace
}  // namespace outrider
