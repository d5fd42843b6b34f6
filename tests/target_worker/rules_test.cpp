// The whole-row rules against the reference cases of tests/vectors/verify_cases.json.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/random.h"
#include "target_worker/acceptance_rule.h"
#include "target_worker/rules/decisions.h"
#include "tests/support/source_dir.h"

namespace outrider {
namespace {

using nlohmann::json;

const json& vectors() {
  static const json parsed = [] {
    std::ifstream file(outrider::source_dir() / "tests/vectors/verify_cases.json");
    return json::parse(file);
  }();
  return parsed;
}

std::vector<double> normalised(const json& weights) {
  auto row = weights.get<std::vector<double>>();
  const double sum = std::accumulate(row.begin(), row.end(), 0.0);
  for (double& w : row) w /= sum;
  return row;
}

// One case as it stands in the file; draws are text-book doubles.
class Case final : public RuleDraws {
 public:
  explicit Case(const json& entry) : entry_(entry) {
    for (int x : entry["draft"]) draft.emplace_back(x);
    if (entry.contains("p_weights"))
      for (const json& row : entry["p_weights"]) {
        p.push_back(normalised(row));
        logits.emplace_back(p.back().begin(), p.back().end());  // the same argmax
      }
    if (entry.contains("target_logits"))
      for (const json& row : entry["target_logits"]) logits.push_back(row.get<std::vector<float>>());
    if (entry.contains("q_weights"))
      for (const json& row : entry["q_weights"]) q.push_back(normalised(row));
  }

  RuleOutcome decide(Rule rule) {
    return acceptance_rule(rule).decide({.draft = draft, .logits = logits, .p = p, .q = q}, *this);
  }

  double accept_uniform(int i) override { return entry_["u_accept"][static_cast<size_t>(i)]; }
  float noise(int row, TokenId token) override {
    const Seed seed{std::stoull(entry_["seed"].get<std::string>(), nullptr, 16)};
    return static_cast<float>(draw_gumbel(seed, Position(entry_["first_position"].get<int>() + row), token));
  }
  double mass(std::span<const double> weights) override {
    return std::accumulate(weights.begin(), weights.end(), 0.0);
  }
  TokenId draw_target(int row) override {
    const double u = entry_.contains("u_position")
                         ? entry_["u_position"][static_cast<size_t>(row)].get<double>()
                         : entry_["u_residual"].get<double>();
    return inverse_cdf(p[static_cast<size_t>(row)], u);
  }
  TokenId draw_residual(int, std::span<const double> weights) override {
    return inverse_cdf(weights, entry_["u_residual"]);
  }

  std::vector<TokenId> draft;
  std::vector<std::vector<float>> logits;
  std::vector<std::vector<double>> p, q;

 private:
  TokenId inverse_cdf(std::span<const double> weights, double u) {
    const double target = u * mass(weights);
    double cumulative = 0;
    int last = -1;
    for (size_t v = 0; v < weights.size(); ++v) {
      if (weights[v] <= 0) continue;
      last = static_cast<int>(v);
      if ((cumulative += weights[v]) > target) break;
    }
    return TokenId(last);
  }

  const json& entry_;
};

void expect_verdict(const json& entry, const json& verdict, Rule rule) {
  Case test(entry);
  const RuleOutcome outcome = test.decide(rule);
  const auto emitted = verdict["emitted"].get<std::vector<int>>();
  EXPECT_EQ(outcome.accepted_count, verdict["accepted"].get<int>()) << entry;
  ASSERT_EQ(emitted.size(), static_cast<size_t>(outcome.accepted_count) + 1);
  for (size_t i = 0; i + 1 < emitted.size(); ++i) EXPECT_EQ(test.draft[i].value(), emitted[i]);
  EXPECT_EQ(outcome.next.value(), emitted.back()) << entry;
}

class Vectors : public testing::TestWithParam<Rule> {};

TEST_P(Vectors, Cases) {
  const std::string name = GetParam() == Rule::kInvariant ? "gumbel" : std::string(rule_name(GetParam()));
  const json& cases = vectors()["rules"][name];
  ASSERT_GE(cases.size(), 12u);
  for (const json& entry : cases) expect_verdict(entry, entry, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Rules, Vectors,
                         testing::Values(Rule::kGreedy, Rule::kInvariant, Rule::kNaive, Rule::kToken,
                                         Rule::kBlock),
                         [](const auto& rule) { return std::string(rule_name(rule.param)); });

TEST(Rules, DirectedCases) {
  ASSERT_GE(vectors()["directed"].size(), 5u);
  for (const json& entry : vectors()["directed"]) {
    expect_verdict(entry, entry["token"], Rule::kToken);
    expect_verdict(entry, entry["block"], Rule::kBlock);
  }
}

TEST(Rules, RatiosAndResidualMassesOfBlockVerification) {
  for (const json& entry : vectors()["rules"]["block"]) {
    Case test(entry);
    std::vector<TestedToken> tests;
    for (size_t i = 0; i < test.draft.size(); ++i) {
      const auto x = static_cast<size_t>(test.draft[i].value());
      tests.push_back({test.p[i][x], test.q[i][x], test.accept_uniform(static_cast<int>(i))});
    }
    std::vector<double> ratios, residual;
    block_ratios(tests, ratios);
    const auto expected_ratios = entry["running_ratio"].get<std::vector<double>>();
    const auto expected_mass = entry["residual_mass"].get<std::vector<double>>();
    ASSERT_EQ(ratios.size(), expected_ratios.size());
    for (size_t i = 0; i < ratios.size(); ++i) EXPECT_NEAR(ratios[i], expected_ratios[i], 1e-15);
    for (size_t i = 0; i < tests.size(); ++i) {
      residual_row(test.p[i], test.q[i], ratios[i], residual);
      EXPECT_NEAR(test.mass(residual), expected_mass[i], 1e-14);
    }
  }
}

TEST(Rules, AcceptIsStrictAndNeedsNoDivision) {
  EXPECT_EQ(count_token_accepted(std::vector<TestedToken>{{.p = 0, .q = 0.5, .u = 0}}), 0);
  EXPECT_EQ(count_token_accepted(std::vector<TestedToken>{{.p = 0.25, .q = 0.5, .u = 0.5}}), 0);
  EXPECT_EQ(count_token_accepted(std::vector<TestedToken>{{.p = 0.25, .q = 0, .u = 0.99}}), 1);
  EXPECT_EQ(count_token_accepted({}), 0);
}

}  // namespace
}  // namespace outrider
