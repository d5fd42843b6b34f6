// Exact proof of losslessness: the distribution of the tokens that one step emits, summed over all draft
// paths and integrated over the uniforms. It is compared with tests/vectors/enumeration.json and with the
// target's own distribution of gamma + 1 tokens.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "target_worker/acceptance_rule.h"
#include "target_worker/rules/decisions.h"
#include "target_worker/rules/rules.h"
#include "tests/support/source_dir.h"
#include "tests/target_worker/table_models.h"

namespace outrider {
namespace {

using nlohmann::json;
// Plays a script and records what the last token is drawn from.
class Script final : public RuleDraws {
 public:
  Script(const RuleInput& input, std::vector<double> uniforms)
      : input_(input), uniforms_(std::move(uniforms)) {}
  double accept_uniform(int i) override { return uniforms_[static_cast<size_t>(i)]; }
  float noise(int, TokenId) override { return 0; }
  double mass(std::span<const double> weights) override {
    return std::accumulate(weights.begin(), weights.end(), 0.0);
  }
  TokenId draw_target(int row) override {
    if (!targets.empty()) return targets[static_cast<size_t>(row)];
    drawn_from = input_.p[static_cast<size_t>(row)];
    return {};
  }
  TokenId draw_residual(int, std::span<const double> weights) override {
    drawn_from.assign(weights.begin(), weights.end());
    return {};
  }

  Row drawn_from;
  std::vector<TokenId> targets;  // naive: the target's own samples

 private:
  const RuleInput& input_;
  std::vector<double> uniforms_;
};

struct Enumeration {
  Law law;
  double accepted = 0;  // expected

  void add(const Path& draft, int n, int next, double mass) {
    Path emitted(draft.begin(), draft.begin() + n);
    emitted.push_back(next);
    law[emitted] += mass;
    accepted += mass * n;
  }
};

// The uniform at which test i flips, all others failing (block) or irrelevant (token).
double threshold(Rule rule, std::span<const TestedToken> tests, size_t i, std::span<const double> ratios,
                 std::span<const double> residual_mass) {
  const auto passes = [&](double u) {
    if (rule == Rule::kToken) {
      const TestedToken test{tests[i].p, tests[i].q, u};
      return count_token_accepted(std::span(&test, 1)) == 1;
    }
    std::vector<TestedToken> all(tests.begin(), tests.end());
    for (TestedToken& test : all) test.u = 1;
    all[i].u = u;
    return count_block_accepted(all, ratios, residual_mass) == static_cast<int>(i) + 1;
  };
  double low = 0, high = 1;  // u < threshold passes
  if (!passes(0)) return 0;
  for (int step = 0; step < 60; ++step) {
    const double middle = (low + high) / 2;
    (passes(middle) ? low : high) = middle;
  }
  return high;
}

void enumerate_uniforms(Rule rule, const RuleInput& input, const Path& draft, double mass, Enumeration& out) {
  const size_t gamma = draft.size();
  Script zero(input, std::vector<double>(gamma, 0));
  const auto tests = tested_tokens(input, zero);
  std::vector<double> ratios, residual_mass, residual, flips;
  block_ratios(tests, ratios);
  for (size_t i = 0; i < gamma; ++i) {
    residual_row(input.p[i], input.q[i], ratios[i], residual);
    residual_mass.push_back(std::accumulate(residual.begin(), residual.end(), 0.0));
  }
  for (size_t i = 0; i < gamma; ++i) flips.push_back(threshold(rule, tests, i, ratios, residual_mass));
  for (size_t pattern = 0; pattern < size_t{1} << gamma; ++pattern) {
    double weight = mass;
    std::vector<double> uniforms(gamma);
    for (size_t i = 0; i < gamma; ++i) {
      const bool pass = pattern >> i & 1;
      weight *= pass ? flips[i] : 1 - flips[i];
      uniforms[i] = pass ? flips[i] / 2 : (1 + flips[i]) / 2;
    }
    if (weight == 0) continue;
    Script script(input, uniforms);
    const int n = acceptance_rule(rule).decide(input, script).accepted_count;
    const double total = script.mass(script.drawn_from);
    for (size_t v = 0; v < script.drawn_from.size(); ++v)
      if (script.drawn_from[v] > 0)
        out.add(draft, n, static_cast<int>(v), weight * script.drawn_from[v] / total);
  }
}

void enumerate_target_samples(const RuleInput& input, const Path& draft, double mass, Enumeration& out) {
  const size_t rows = draft.size() + 1, vocab_size = input.p[0].size();
  size_t combinations = 1;
  for (size_t i = 0; i < rows; ++i) combinations *= vocab_size;
  for (size_t code = 0; code < combinations; ++code) {
    Script script(input, {});
    double weight = mass;
    for (size_t i = 0, rest = code; i < rows; ++i, rest /= vocab_size) {
      script.targets.emplace_back(static_cast<int32_t>(rest % vocab_size));
      weight *= input.p[i][rest % vocab_size];
    }
    const RuleOutcome outcome = acceptance_rule(Rule::kNaive).decide(input, script);
    if (weight > 0) out.add(draft, outcome.accepted_count, outcome.next.value(), weight);
  }
}

void enumerate_drafts(Rule rule, const TableModel& model, int gamma, Path& draft, double mass,
                      Enumeration& out) {
  if (static_cast<int>(draft.size()) < gamma) {
    const Row& q = model.q.at(draft);
    for (int v = 0; v < model.vocab_size; ++v) {
      if (q[static_cast<size_t>(v)] == 0) continue;
      draft.push_back(v);
      enumerate_drafts(rule, model, gamma, draft, mass * q[static_cast<size_t>(v)], out);
      draft.pop_back();
    }
    return;
  }
  std::vector<TokenId> ids;
  std::vector<Row> p, q;
  for (int i = 0; i <= gamma; ++i) {
    const Path context(draft.begin(), draft.begin() + i);
    p.push_back(model.p.at(context));
    if (i == gamma) break;
    q.push_back(model.q.at(context));
    ids.emplace_back(draft[static_cast<size_t>(i)]);
  }
  const RuleInput input{.draft = ids, .logits = {}, .p = p, .q = q};
  if (rule == Rule::kNaive)
    enumerate_target_samples(input, draft, mass, out);
  else
    enumerate_uniforms(rule, input, draft, mass, out);
}

Enumeration enumerate(Rule rule, const TableModel& model, int gamma) {
  Enumeration result;
  Path draft;
  enumerate_drafts(rule, model, gamma, draft, 1, result);
  return result;
}

void expect_lossless(Rule rule, const TableModel& model, int gamma, const std::string& name) {
  const Enumeration round = enumerate(rule, model, gamma);
  Law emitted, target;
  for (const auto& [path, mass] : round.law)
    extend(model, path, mass, static_cast<size_t>(gamma) + 1, emitted);
  extend(model, {}, 1, static_cast<size_t>(gamma) + 1, target);
  EXPECT_LT(distance(emitted, target), 1e-13) << rule_name(rule) << " on " << name;
}

Path path_of(const std::string& text) {
  std::istringstream words(text);
  Path path;
  for (int v; words >> v;) path.push_back(v);
  return path;
}
double fraction(const json& text) {
  const auto value = text.get<std::string>();
  const size_t slash = value.find('/');
  return slash == std::string::npos ? std::stod(value)
                                    : std::stod(value.substr(0, slash)) / std::stod(value.substr(slash + 1));
}

TEST(Enumeration, LawsOfTheVectors) {
  std::ifstream file(outrider::source_dir() / "tests/vectors/enumeration.json");
  const json vectors = json::parse(file);
  ASSERT_EQ(vectors["laws"].size(), 9u);
  for (const json& entry : vectors["laws"]) {
    const Rule rule = rule_from_name(entry["rule"].get<std::string>()).value();
    TableModel model;
    const json& stored = vectors["models"][entry["model"].get<std::string>()];
    model.vocab_size = stored["V"];
    for (const auto& [context, rows] : stored["contexts"].items()) {
      for (const json& p : rows["p"]) model.p[path_of(context)].push_back(fraction(p));
      for (const json& q : rows["q"]) model.q[path_of(context)].push_back(fraction(q));
    }
    const int gamma = entry["gamma"];
    const Enumeration round = enumerate(rule, model, gamma);
    Law expected;
    for (const auto& [path, mass] : entry["emitted_law"].items()) expected[path_of(path)] = mass;
    EXPECT_LT(distance(round.law, expected), 1e-13) << entry["rule"] << " " << entry["model"];
    EXPECT_NEAR(round.accepted, entry["expected_accepted"].get<double>(), 1e-13);
    expect_lossless(rule, model, gamma, entry["model"]);
  }
}

TEST(Enumeration, LosslessOnRandomModels) {
  std::mt19937_64 rng(17);
  for (Shape shape : {Shape::kDense, Shape::kZeros, Shape::kOneHotQ, Shape::kSameQ, Shape::kSparseQ}) {
    for (int gamma : {1, 2, 3}) {
      TableModel model{.vocab_size = gamma == 3 ? 3 : 4, .p = {}, .q = {}};
      fill_model(rng, shape, static_cast<size_t>(gamma), {}, model);
      const std::string name =
          "shape " + std::to_string(static_cast<int>(shape)) + " gamma " + std::to_string(gamma);
      for (Rule rule : {Rule::kNaive, Rule::kToken, Rule::kBlock}) expect_lossless(rule, model, gamma, name);
      const double token = enumerate(Rule::kToken, model, gamma).accepted;
      const double block = enumerate(Rule::kBlock, model, gamma).accepted;
      EXPECT_GE(block, token - 1e-13) << name;
      if (gamma == 1 || shape == Shape::kOneHotQ) {
        EXPECT_NEAR(block, token, 1e-13) << name;
      }
      if (shape == Shape::kOneHotQ) {
        EXPECT_NEAR(enumerate(Rule::kNaive, model, gamma).accepted, token, 1e-13) << name;
      }
    }
  }
}

}  // namespace
}  // namespace outrider
