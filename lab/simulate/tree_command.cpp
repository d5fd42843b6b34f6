#include "lab/simulate/tree_command.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "base/version.h"
#include "lab/simulate/pages.h"
#include "lab/simulate/report_files.h"
#include "lab/simulate/row_costs.h"
#include "lab/simulate/tree_forms.h"

namespace outrider {
namespace {

constexpr int kMaxNodes = 256;

Status check(const TreeForecastOptions& o) {
  const double sum = std::accumulate(o.ranks.begin(), o.ranks.end(), 0.0);
  const bool chances = std::all_of(o.ranks.begin(), o.ranks.end(), [](double r) { return r >= 0 && r <= 1; });
  if (o.ranks.empty() || o.ranks.size() > 64 || !chances || sum > 1 + 1e-6)
    return invalid_argument(
        fmt::format("--ranks {} must be chances whose sum is at most 1", fmt::join(o.ranks, " ")));
  for (const int nodes : o.nodes)
    if (nodes < 1 || nodes > kMaxNodes)
      return invalid_argument(fmt::format("--nodes {} must be 1 to {}", nodes, kMaxNodes));
  return {};
}

class TreeComparison {
 public:
  TreeComparison(const TreeForecastOptions& options, RowCosts costs)
      : o_(options),
        costs_(std::move(costs)),
        shapes_(options.ranks, *std::max_element(options.nodes.begin(), options.nodes.end()),
                options.max_depth) {}

  TreeRow row(int nodes) const {
    TreeRow row{.nodes = nodes, .pass = pass(nodes), .chain = chain(nodes)};
    row.best_chain = chain(1);
    for (int length = 2; length <= nodes; ++length)
      if (const TreeFigures longer = chain(length); longer.speedup() > row.best_chain.speedup())
        row.best_chain = longer;
    std::vector<int> parents;
    for (int depth = 1; depth <= std::min(nodes, o_.max_depth); ++depth) {
      const BestTree tree = shapes_.best(nodes, depth);
      const TreeFigures figures = of_tree(tree);
      if (figures.speedup() <= row.tree.speedup()) continue;
      row.tree = figures;
      parents = tree.parents;
    }
    walk(parents, row);
    return row;
  }

 private:
  // The cost of verifying `nodes` nodes in each text of the batch, relative to a plain pass over the batch.
  double pass(int nodes) const { return costs_.of(o_.batch * (nodes + 1.0)) / costs_.of(o_.batch); }
  // A level of the draft is one pass of the draft model, over the nodes that have children.
  double draft_level(int rows) const {
    return o_.draft_cost * costs_.of(o_.batch * static_cast<double>(rows)) / costs_.of(o_.batch);
  }

  TreeFigures chain(int length) const {
    const std::vector<int> parents = [&] {
      std::vector<int> out(static_cast<size_t>(length));
      std::iota(out.begin(), out.end(), -1);
      return out;
    }();
    return {.nodes = length,
            .depth = length,
            .tokens = tree_tokens(o_.ranks, parents),
            .seconds = pass(length) + 2 * o_.delay + length * draft_level(1)};
  }

  TreeFigures of_tree(const BestTree& tree) const {
    std::vector<int> level(tree.parents.size());
    std::vector<bool> has_children(tree.parents.size() + 1, false);
    for (size_t i = 0; i < level.size(); ++i) {
      const int parent = tree.parents[i];
      level[i] = parent < 0 ? 1 : level[static_cast<size_t>(parent)] + 1;
      has_children[static_cast<size_t>(parent + 1)] = true;
    }
    std::vector<int> rows(static_cast<size_t>(tree.depth), 0);  // of the draft's passes, by level
    if (tree.depth > 0) rows[0] = 1;
    for (size_t i = 0; i < level.size(); ++i)
      if (has_children[i + 1]) ++rows[static_cast<size_t>(level[i])];
    double seconds = pass(static_cast<int>(tree.parents.size())) + 2 * o_.delay;
    for (const int of_level : rows) seconds += draft_level(of_level);
    return {.nodes = static_cast<int>(tree.parents.size()),
            .depth = tree.depth,
            .tokens = tree.tokens,
            .seconds = seconds};
  }

  // Rounds of the tree, one by one: at each node the rank of the target's token is drawn, and the walk goes
  // on while the node has a child of that rank.
  void walk(const std::vector<int>& parents, TreeRow& row) const {
    std::vector<std::vector<int>> children(parents.size() + 1);
    for (size_t i = 0; i < parents.size(); ++i)
      children[static_cast<size_t>(parents[i] + 1)].push_back(static_cast<int>(i));
    std::mt19937_64 random(o_.seed);
    std::uniform_real_distribution<double> uniform;
    double sum = 0, squares = 0;
    for (int round = 0; round < o_.rounds; ++round) {
      double tokens = 1;
      for (size_t node = 0;; ++tokens) {
        double draw = uniform(random);
        size_t rank = 0;
        while (rank < o_.ranks.size() && draw >= o_.ranks[rank]) draw -= o_.ranks[rank++];
        if (rank >= children[node].size()) break;
        node = static_cast<size_t>(children[node][rank] + 1);
      }
      sum += tokens;
      squares += tokens * tokens;
    }
    row.simulated = sum / o_.rounds;
    const double variance = squares / o_.rounds - row.simulated * row.simulated;
    row.half_width = 1.96 * std::sqrt(std::max(0.0, variance) / o_.rounds);
  }

  const TreeForecastOptions& o_;
  RowCosts costs_;
  TreeShapes shapes_;
};

nlohmann::json figures_json(const TreeFigures& f) {
  return {{"nodes", f.nodes},
          {"depth", f.depth},
          {"tokens_per_round", f.tokens},
          {"round_in_plain_passes", f.seconds},
          {"speedup", f.speedup()}};
}

}  // namespace

Result<std::vector<TreeRow>> compare_trees(const TreeForecastOptions& options) {
  RETURN_IF_ERROR(check(options));
  ASSIGN_OR_RETURN(RowCosts costs, parse_row_costs(options.row_costs));
  const TreeComparison comparison(options, std::move(costs));
  std::vector<TreeRow> rows;
  for (const int nodes : options.nodes) rows.push_back(comparison.row(nodes));
  return rows;
}

double TreeRow::gain() const {
  const double gain = tree.speedup() / best_chain.speedup() - 1;
  return std::abs(gain) < 1e-9 ? 0 : gain;  // the same shape
}

std::string tree_text(const TreeForecastOptions& o, const std::vector<TreeRow>& rows) {
  std::string out = fmt::format(
      "Chains and trees of drafts, {} text{} at once; the r-th best child is the target's token with chance "
      "{:.3g}\n\n"
      "| nodes | a pass costs | chain: tokens, speed-up | best chain up to there | tree: tokens (walked) | "
      "levels | "
      "speed-up | over the best chain |\n|---|---|---|---|---|---|---|---|\n",
      o.batch, o.batch == 1 ? "" : "s", fmt::join(o.ranks, ", "));
  for (const TreeRow& row : rows)
    out += fmt::format(
        "| {} | {:.3f} | {:.2f}, {:.2f} | {} tokens: {:.2f}, {:.2f} | {:.2f} ({:.2f} +- {:.2f}) | {} | "
        "{:.2f} | "
        "{:+.1f} % |\n",
        row.nodes, row.pass, row.chain.tokens, row.chain.speedup(), row.best_chain.nodes,
        row.best_chain.tokens, row.best_chain.speedup(), row.tree.tokens, row.simulated, row.half_width,
        row.tree.depth, row.tree.speedup(), 100 * row.gain());
  return out + fmt::format(
                   "\nAssumed: ranks are independent and the same at every node; a pass over M rows costs {} "
                   "of one "
                   "row, with\nstraight lines between; a level of a draft costs {:g} of a plain pass times "
                   "the same "
                   "curve{}. Tokens and\nspeed-up are closed forms, of rounds in lockstep; 'walked': {} "
                   "rounds drawn "
                   "one by one, with a 95 % interval.\n",
                   fmt::join(o.row_costs, " and "), o.draft_cost,
                   o.delay > 0 ? fmt::format(", and a message {:g}", o.delay) : std::string(), o.rounds);
}

void fill_json(const TreeForecastOptions& o, const std::vector<TreeRow>& rows, nlohmann::json& out) {
  out = {{"simulated", true},
         {"version", kVersion},
         {"ranks", o.ranks},
         {"row_costs", o.row_costs},
         {"draft_cost", o.draft_cost},
         {"delay", o.delay},
         {"batch", o.batch},
         {"rounds", o.rounds},
         {"seed", o.seed},
         {"rows", nlohmann::json::array()}};
  for (const TreeRow& row : rows)
    out["rows"].push_back(
        {{"nodes", row.nodes},
         {"pass_cost", row.pass},
         {"chain", figures_json(row.chain)},
         {"best_chain", figures_json(row.best_chain)},
         {"tree", figures_json(row.tree)},
         {"tree_over_best_chain", row.gain()},
         {"walked", {{"tokens_per_round", row.simulated}, {"half_width_95", row.half_width}}}});
}

void add_tree_options(CLI::App& app, TreeForecastOptions& o) {
  app.add_option("--ranks", o.ranks,
                 "Chance that the target's token is the drafter's best child, second best, ...")
      ->capture_default_str();
  app.add_option(
         "--row-costs", o.row_costs,
         "ROWS=COST of a target pass, of one with a single row; straight lines between, and beyond the last\n"
         "as before it")
      ->capture_default_str();
  app.add_option("--draft-cost", o.draft_cost, "A draft step, of a plain target pass")
      ->check(number_in(0, 1e3))
      ->capture_default_str();
  app.add_option("--delay", o.delay, "One way between coordinator and drafter, in plain target passes")
      ->check(number_in(0, 1e6))
      ->capture_default_str();
  app.add_option("--nodes", o.nodes, "Drafted tokens of a round")->capture_default_str();
  app.add_option("--max-depth", o.max_depth, "Levels of a tree, at most")
      ->check(CLI::Range(1, kMaxNodes))
      ->capture_default_str();
  app.add_option("--batch", o.batch, "Texts in a pass")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--rounds", o.rounds, "Walked one by one, beside the closed form")
      ->check(CLI::Range(2, 100'000'000))
      ->capture_default_str();
  app.add_option("--seed", o.seed, "Of these rounds")->capture_default_str();
  add_report_options(app, o.files);
}

Status run_trees(const TreeForecastOptions& options) {
  RETURN_IF_ERROR(check(options.files));
  ASSIGN_OR_RETURN(const auto rows, compare_trees(options));
  std::fputs(tree_text(options, rows).c_str(), stdout);
  nlohmann::json report;
  fill_json(options, rows, report);
  return write(options.files, report, tree_page(options, rows));
}

}  // namespace outrider
