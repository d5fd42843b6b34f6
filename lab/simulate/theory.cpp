#include "lab/simulate/theory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cluster/acceptance_process.h"
#include "coordinator/gamma/acceptance.h"
#include "lab/simulate/tree_forms.h"

namespace outrider {
namespace {

using Json = nlohmann::json;
constexpr int kLongest = 64;

std::vector<double> rates_or(const TheoryOptions& options, std::vector<double> usual) {
  return options.acceptance.empty() ? std::move(usual) : options.acceptance;
}

// E(g) = (1 - alpha^(g+1)) / (1 - alpha); the published table has these columns.
std::string tokens_table(const TheoryOptions& options) {
  std::string out = "Expected tokens per round, E(gamma) at acceptance alpha\n\nalpha ";
  for (const int gamma : options.gammas) out += fmt::format("{:>6}", fmt::format("g={}", gamma));
  out += "\n";
  for (const double alpha : rates_or(options, {0.5, 0.7, 0.8, 0.9, 0.95})) {
    out += fmt::format("{:<6.2f}", alpha);
    for (const int gamma : options.gammas) out += fmt::format("{:6.2f}", expected_tokens(alpha, gamma));
    out += "\n";
  }
  return out;
}

// The acceptance that gives this many tokens a round, the inverse of E(gamma); used by --acceptance length:.
double acceptance_for(double tokens, int gamma) {
  const auto process = AcceptanceProcess::of_length(tokens, gamma, 1);
  return process.ok() ? process->rate(SequenceId(1), 0, 0) : NAN;
}

std::string inverse_table(const TheoryOptions& options) {
  std::string out = "\nAcceptance that gives so many tokens per round (-: more than gamma + 1)\n\ntokens";
  for (const int gamma : options.gammas) out += fmt::format("{:>6}", fmt::format("g={}", gamma));
  out += "\n";
  for (const double tokens : {1.5, 2.0, 3.0, 4.0, 5.0}) {
    out += fmt::format("{:<6.1f}", tokens);
    for (const int gamma : options.gammas) {
      const double alpha = acceptance_for(tokens, gamma);
      out += std::isnan(alpha) ? fmt::format("{:>6}", "-") : fmt::format("{:6.3f}", alpha);
    }
    out += "\n";
  }
  return out;
}

template <class Speedup>
BestGamma best_of(const Speedup& speedup) {
  BestGamma best{1, speedup(1)};
  for (int gamma = 2; gamma <= kLongest; ++gamma)
    if (const double value = speedup(gamma); value > best.speedup * (1 + 1e-12)) best = {gamma, value};
  return best;
}

// The pipelines of --pipeline, by acceptance and draft cost.
struct PipelineForm {
  const char* name;
  const char* title;
  BestGamma (*best)(const TheoryOptions&, double alpha, double rho);
};
const PipelineForm kPipelines[] = {
    {"lockstep", "Best gamma / speed-up, lockstep",
     [](const TheoryOptions& o, double alpha, double rho) {
       return best_lockstep_gamma(alpha, rho, o.delay, o.per_token, kLongest);
     }},
    {"ahead", "The same, drafting ahead (the first token of the next block is tested by the bonus token)",
     [](const TheoryOptions& o, double alpha, double rho) {
       return best_of([&](int gamma) {
         return ahead_carry_speedup(alpha, gamma, gamma * rho, 1 + gamma * o.per_token, o.delay);
       });
     }},
    {"fanout", "The same, outcomes prepared for (--hit-rate of the verdicts find their draft ready)",
     [](const TheoryOptions& o, double alpha, double rho) {
       return best_of([&](int gamma) {
         return outcome_cache_speedup(alpha, gamma, rho, o.delay, o.per_token, o.hit_rate);
       });
     }},
};

std::string cost_text(const TheoryOptions& o) {
  const std::string delay = o.delay > 0 ? fmt::format("{:g} of a step one way", o.delay) : "no delay";
  const std::string verify =
      o.per_token > 0 ? fmt::format("{:g} of a step more for each draft token of a pass", o.per_token)
                      : "verification of a block as dear as one token";
  return delay + ", " + verify;
}

std::string optimum_table(const TheoryOptions& options, const PipelineForm& form) {
  std::string out =
      fmt::format("\n{}: {}\n(rho: draft step over target step)\n\nalpha ", form.title, cost_text(options));
  for (const double rho : options.draft_cost) out += fmt::format("{:>11}", fmt::format("rho={:.2f}", rho));
  out += "\n";
  for (const double alpha : rates_or(options, {0.6, 0.7, 0.8, 0.9})) {
    out += fmt::format("{:<6.4g}", alpha);
    for (const double rho : options.draft_cost) {
      const BestGamma best = form.best(options, alpha, rho);
      out += fmt::format("{:>11}", fmt::format("{} / {:.2f}", best.gamma, best.speedup));
    }
    out += "\n";
  }
  return out;
}

// Rows: acceptance of the target, of the draft model, and what a draft step costs.
std::string cascade_table(const TheoryOptions& options) {
  std::string out = fmt::format(
      "\nDrafts for the drafter (--draft-drafter): best gamma+guesses / speed-up; {:g} of a draft step for\n"
      "each guess read\n(beta: chance that a guess is the draft model's own token)\n\nalpha  rho   ",
      options.guess_row);
  out += fmt::format("{:>13}", "none");
  for (const double beta : options.guess_acceptance)
    out += fmt::format("{:>13}", fmt::format("beta={:.2f}", beta));
  out += "\n";
  for (const double alpha : rates_or(options, {0.6, 0.8, 0.9}))
    for (const double rho : options.draft_cost) {
      out += fmt::format("{:<7.4g}{:<6.2f}", alpha, rho);
      const BestGamma plain = best_lockstep_gamma(alpha, rho, options.delay, options.per_token, kLongest);
      out += fmt::format("{:>13}", fmt::format("{} / {:.2f}", plain.gamma, plain.speedup));
      for (const double beta : options.guess_acceptance) {
        const BestCascade best =
            best_cascade(alpha, rho, options.delay, options.per_token, beta, options.guess_row);
        out += fmt::format("{:>13}", fmt::format("{}+{} / {:.2f}", best.gamma, best.guesses, best.speedup));
      }
      out += "\n";
    }
  return out;
}

std::string ranks_text(const TheoryOptions& options) {
  return fmt::format("chance of the r-th best child: {:.3g}", fmt::join(options.ranks, ", "));
}

std::string kary_table(const TheoryOptions& options) {
  std::string out = fmt::format("\nTokens per round of a tree with k children everywhere ({})\n\ndepth ",
                                ranks_text(options));
  for (size_t k = 1; k <= options.ranks.size(); ++k) out += fmt::format("{:>7}", fmt::format("k={}", k));
  out += "\n";
  for (const int depth : {1, 2, 3, 4, 6, 8}) {
    out += fmt::format("{:<6}", depth);
    for (size_t k = 1; k <= options.ranks.size(); ++k)
      out += fmt::format("{:7.3f}", kary_tokens(options.ranks, static_cast<int>(k), depth));
    out += "\n";
  }
  return out;
}

std::string shape_table(const TheoryOptions& options) {
  std::string out =
      "\nThe shape with the most tokens, by a dynamic programme (Chen et al. 2024), beside the chain\n\n";
  out += fmt::format("{:<6}{:>8}{:>8}{:>8}\n", "nodes", "chain", "tree", "depth");
  const int most = *std::max_element(options.nodes.begin(), options.nodes.end());
  const TreeShapes shapes(options.ranks, most, kLongest);
  for (const int nodes : options.nodes) {
    const BestTree tree = shapes.best(nodes, kLongest);
    out += fmt::format("{:<6}{:>8.3f}{:>8.3f}{:>8}\n", nodes, expected_tokens(options.ranks[0], nodes),
                       tree.tokens, tree.depth);
  }
  return out;
}

std::string pair_table(const TheoryOptions& options) {
  if (options.p.empty()) return "";
  const auto acceptance = shared_noise_acceptance(options.p, options.q, options.children);
  const auto ranks = rank_chances(acceptance);
  std::string out =
      "\nShared noise, the k best of q as children: chance that the target's token is among them\n\n"
      "k       P(k)  of rank k\n";
  for (size_t k = 0; k < acceptance.size(); ++k)
    out += fmt::format("{:<4}{:>8.5f}{:>11.5f}\n", k + 1, acceptance[k], ranks[k]);
  return out;
}

bool are_chances(const std::vector<double>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return std::all_of(values.begin(), values.end(), [](double v) { return v >= 0 && v <= 1; }) &&
         sum <= 1 + 1e-6;
}

Json best_json(const BestGamma& best) { return {{"gamma", best.gamma}, {"speedup", best.speedup}}; }

}  // namespace

double outcome_cache_speedup(double alpha, int gamma, double rho, double delay, double per_token,
                             double hit) {
  return expected_tokens(alpha, gamma) / (1 + per_token * gamma + 2 * delay + (1 - hit) * gamma * rho);
}

BestCascade best_cascade(double alpha, double rho, double delay, double per_token, double beta, double row) {
  constexpr int kMostGuesses = 16;
  BestCascade best{.speedup = 0};
  for (int gamma = 1; gamma <= kLongest; ++gamma)
    for (int guesses = 0; guesses <= std::min(kMostGuesses, gamma - 1); ++guesses) {
      const double draft = rho * staged_draft(beta, gamma, guesses).steps(row);
      const double speedup = expected_tokens(alpha, gamma) / (1 + per_token * gamma + draft + 2 * delay);
      if (speedup > best.speedup * (1 + 1e-12)) best = {gamma, guesses, speedup};
    }
  return best;
}

Status check(const TheoryOptions& o) {
  for (const double beta : o.guess_acceptance)
    if (!(beta >= 0 && beta <= 1))
      return invalid_argument(fmt::format("--guess-acceptance {} must be 0 to 1", beta));
  for (const double alpha : o.acceptance)
    if (!(alpha > 0 && alpha < 1))
      return invalid_argument(fmt::format("--acceptance {} must be between 0 and 1", alpha));
  for (const int gamma : o.gammas)
    if (gamma < 1 || gamma > 1000)
      return invalid_argument(fmt::format("--gammas {} must be 1 to 1000", gamma));
  for (const int nodes : o.nodes)
    if (nodes < 1 || nodes > 256) return invalid_argument(fmt::format("--nodes {} must be 1 to 256", nodes));
  if (o.ranks.empty() || o.ranks.size() > 64 || !are_chances(o.ranks))
    return invalid_argument(
        fmt::format("--ranks {} must be chances whose sum is at most 1", fmt::join(o.ranks, " ")));
  if (o.p.size() != o.q.size())
    return invalid_argument(
        fmt::format("--p has {} tokens and --q {}: both are of the same tokens", o.p.size(), o.q.size()));
  for (const auto* chances : {&o.p, &o.q}) {
    const double sum = std::accumulate(chances->begin(), chances->end(), 0.0);
    const bool positive = std::all_of(chances->begin(), chances->end(), [](double v) { return v > 0; });
    if (!chances->empty() && (!positive || std::abs(sum - 1) > 1e-3))
      return invalid_argument(fmt::format("{} must be chances above 0 whose sum is 1, not {:g}",
                                          chances == &o.p ? "--p" : "--q", sum));
  }
  return {};
}

std::string theory_report(const TheoryOptions& options) {
  std::string out = tokens_table(options) + inverse_table(options);
  for (const PipelineForm& form : kPipelines) out += optimum_table(options, form);
  out += cascade_table(options);
  return out + kary_table(options) + shape_table(options) + pair_table(options);
}

void fill_json(const TheoryOptions& options, Json& out) {
  out = {{"delay", options.delay},
         {"per_token", options.per_token},
         {"hit_rate", options.hit_rate},
         {"ranks", options.ranks},
         {"tokens_per_round", Json::array()},
         {"acceptance_for_tokens", Json::array()},
         {"kary_trees", Json::array()},
         {"best_trees", Json::array()}};
  for (const double alpha : rates_or(options, {0.5, 0.7, 0.8, 0.9, 0.95}))
    for (const int gamma : options.gammas)
      out["tokens_per_round"].push_back(
          {{"acceptance", alpha}, {"gamma", gamma}, {"tokens", expected_tokens(alpha, gamma)}});
  for (const double tokens : {1.5, 2.0, 3.0, 4.0, 5.0})
    for (const int gamma : options.gammas)
      if (const double alpha = acceptance_for(tokens, gamma); !std::isnan(alpha))
        out["acceptance_for_tokens"].push_back({{"tokens", tokens}, {"gamma", gamma}, {"acceptance", alpha}});
  for (const PipelineForm& form : kPipelines)
    for (const double alpha : rates_or(options, {0.6, 0.7, 0.8, 0.9}))
      for (const double rho : options.draft_cost) {
        Json cell = best_json(form.best(options, alpha, rho));
        cell.update({{"acceptance", alpha}, {"draft_cost", rho}});
        out["best_gamma"][form.name].push_back(std::move(cell));
      }
  for (const double alpha : rates_or(options, {0.6, 0.8, 0.9}))
    for (const double rho : options.draft_cost)
      for (const double beta : options.guess_acceptance) {
        const BestCascade best =
            best_cascade(alpha, rho, options.delay, options.per_token, beta, options.guess_row);
        out["best_cascades"].push_back({{"acceptance", alpha},
                                        {"draft_cost", rho},
                                        {"guess_acceptance", beta},
                                        {"guess_row", options.guess_row},
                                        {"gamma", best.gamma},
                                        {"guesses", best.guesses},
                                        {"speedup", best.speedup}});
      }
  for (size_t k = 1; k <= options.ranks.size(); ++k)
    for (const int depth : {1, 2, 3, 4, 6, 8})
      out["kary_trees"].push_back({{"children", k},
                                   {"depth", depth},
                                   {"tokens", kary_tokens(options.ranks, static_cast<int>(k), depth)}});
  const TreeShapes shapes(options.ranks, *std::max_element(options.nodes.begin(), options.nodes.end()),
                          kLongest);
  for (const int nodes : options.nodes) {
    const BestTree tree = shapes.best(nodes, kLongest);
    out["best_trees"].push_back({{"nodes", nodes},
                                 {"chain_tokens", expected_tokens(options.ranks[0], nodes)},
                                 {"tokens", tree.tokens},
                                 {"depth", tree.depth},
                                 {"parents", tree.parents}});
  }
  if (options.p.empty()) return;
  const auto acceptance = shared_noise_acceptance(options.p, options.q, options.children);
  out["shared_noise"] = {
      {"p", options.p}, {"q", options.q}, {"acceptance", acceptance}, {"ranks", rank_chances(acceptance)}};
}

}  // namespace outrider
