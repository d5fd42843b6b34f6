// Policies of others, by their published equations on small numbers.
#include <gtest/gtest.h>

#include <cmath>

#include "coordinator/gamma/acceptance.h"
#include "coordinator/gamma/goodspeed.h"
#include "coordinator/gamma/policies.h"
#include "coordinator/gamma/shared_slope_fit.h"

namespace outrider {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Passes of 1, 2, 3, ... rows in seconds, and drafts of `draft` seconds a token.
CostModel costs(const std::vector<double>& passes, double draft) {
  CostModel cost;
  PassTimes target{.row_ns = static_cast<int64_t>(1e9 * passes[0])};
  for (size_t i = 1; i < passes.size(); ++i)
    target.by_rows.push_back({static_cast<int32_t>(i + 1), static_cast<float>(passes[i] / passes[0])});
  cost.expect_passes(target);
  cost.expect_drafts({.row_ns = static_cast<int64_t>(1e9 * draft)});
  return cost;
}

// ---- GOODSPEED ------------------------------------------------------------------------------------------

using Lengths = std::vector<int32_t>;

TEST(GoodSpeed, TheLargestGainFirst) {
  const std::vector<double> acceptance{0.8, 0.5}, equal{1, 1};
  const Lengths limits{16, 16};
  // Gains of the tokens: 0.8, 0.64, 0.512, 0.41 and 0.5, 0.25.
  EXPECT_EQ(fair_shares(acceptance, equal, limits, 3), (Lengths{3, 0}));
  EXPECT_EQ(fair_shares(acceptance, equal, limits, 4), (Lengths{3, 1}));
  EXPECT_EQ(fair_shares(acceptance, equal, limits, 5), (Lengths{4, 1}));
  EXPECT_EQ(fair_shares(acceptance, equal, limits, 0), (Lengths{0, 0}));
}

TEST(GoodSpeed, WhoHadLessGetsMore) {
  const std::vector<double> acceptance{0.8, 0.5}, goodput{3, 1};
  // Gains: 0.27, 0.21, 0.17, 0.14 and 0.5, 0.25, 0.125.
  EXPECT_EQ(fair_shares(acceptance, goodput, Lengths{16, 16}, 3), (Lengths{1, 2}));
  EXPECT_EQ(fair_shares(acceptance, goodput, Lengths{16, 16}, 5), (Lengths{3, 2}));
  EXPECT_EQ(fair_shares(acceptance, goodput, Lengths{16, 1}, 5), (Lengths{4, 1})) << "limits hold";
  EXPECT_EQ(fair_shares(acceptance, goodput, Lengths{1, 1}, 5), (Lengths{1, 1})) << "the rest is not spent";
}

// The division of the budget that it finds has the largest sum of expected tokens over goodput.
TEST(GoodSpeed, EqualsTheBestOfAllDivisions) {
  const std::vector<double> acceptance{0.9, 0.6, 0.3}, goodput{4, 2, 1.2};
  const Lengths limits{8, 8, 8};
  const auto utility = [&](const Lengths& lengths) {
    double sum = 0;
    for (size_t i = 0; i < 3; ++i) sum += expected_tokens(acceptance[i], lengths[i]) / goodput[i];
    return sum;
  };
  for (int32_t budget = 1; budget <= 8; ++budget) {
    double best = 0;
    for (int32_t a = 0; a <= budget; ++a)
      for (int32_t b = 0; a + b <= budget; ++b) best = std::max(best, utility({a, b, budget - a - b}));
    EXPECT_NEAR(utility(fair_shares(acceptance, goodput, limits, budget)), best, 1e-12) << budget;
  }
}

TEST(GoodSpeed, AveragesFollowTheRounds) {
  const auto make = parse_gamma_policy("goodspeed:budget=4,eta=0.5,beta=0.5").value();
  const auto one = make(), other = make();
  const GammaContext context{.limit = 100, .batch_size = 2};
  EXPECT_EQ(one->next(context), 4) << "the only one yet";
  EXPECT_EQ(other->next(context), 2);
  EXPECT_EQ(one->next(context), 2);
  // Acceptance 0.85 and 0.35, goodput 2 and 1: gains 0.425, 0.36, 0.31, 0.26 and 0.35, 0.12.
  one->update({.proposed = 2, .drafted = 2, .accepted = 2, .batch_size = 2});
  other->update({.proposed = 2, .drafted = 2, .accepted = 0, .batch_size = 2});
  EXPECT_EQ(one->next(context), 3);
  EXPECT_EQ(other->next(context), 1);
}

// ---- TurboSpec ------------------------------------------------------------------------------------------

TEST(TurboSpec, TakesTheLengthOfTheLargestGoodput) {
  // Acceptance 0.7 at first. Passes of 1, 2, 3, 4, 5 rows; a draft token takes 0.2.
  const std::vector<double> passes{1, 1.1, 1.2, 1.8, 2.4};
  const CostModel cost = costs(passes, 0.2);
  // One sequence: 1/1, 1.7/1.3, 2.19/1.6, 2.533/2.4.
  const auto alone = parse_gamma_policy("turbospec:max=4").value()();
  EXPECT_EQ(alone->next({.limit = 16, .batch_size = 1, .cost = &cost}), 2);
  // Two sequences: 2/1.1, 3.4/2.0, so none drafts (a trial may).
  const auto make = parse_gamma_policy("turbospec:max=1").value();
  const auto one = make(), other = make();
  EXPECT_EQ(one->next({.limit = 16, .batch_size = 2, .cost = &cost}), 0);
  EXPECT_EQ(other->next({.limit = 16, .batch_size = 2, .cost = &cost}), 0);
}

TEST(TurboSpec, OneAcceptanceForAll) {
  const CostModel cost = costs({1, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4}, 0.1);
  const auto make = parse_gamma_policy("turbospec").value();
  const auto one = make(), other = make();
  const GammaContext context{.limit = 16, .batch_size = 2, .cost = &cost};
  const int32_t before = other->next(context);
  for (int i = 0; i < 50; ++i) one->update({.proposed = 4, .drafted = 4, .accepted = 0, .batch_size = 2});
  EXPECT_LT(other->next(context), before);
  EXPECT_EQ(other->next(context), one->next(context));
}

// ---- vLLM -----------------------------------------------------------------------------------------------

TEST(SharedSlopeFit, BeginsWithTheMediansOfModels) {
  const SharedSlopeFit fit(4);
  EXPECT_DOUBLE_EQ(fit.chance(0, 2), sigmoid(0.8));
  EXPECT_DOUBLE_EQ(fit.chance(3, 0), sigmoid(-0.2));
  EXPECT_DOUBLE_EQ(fit.chance(9, 0), fit.chance(3, 0)) << "places beyond the last are the last";
}

// Two places, solved as the whole system of three equations by Cramer's rule.
TEST(SharedSlopeFit, OneNewtonStepOfAllCoefficients) {
  SharedSlopeFit fit(2);
  struct Observed {
    size_t place;
    double confidence;
    bool accepted;
  };
  const std::vector<Observed> tests{{0, 1, true}, {0, 3, true}, {0, 0.5, false}, {1, 2, true}, {1, 1, false}};
  double a = 1e-3, g = 0, b[2] = {}, c[2] = {1e-3, 1e-3}, e[2] = {}, n[2] = {};
  for (const Observed& t : tests) {
    const double p = sigmoid(0.5 * t.confidence - 0.2), w = p * (1 - p), error = t.accepted - p;
    a += w * t.confidence * t.confidence, g += error * t.confidence;
    b[t.place] += w * t.confidence, c[t.place] += w, e[t.place] += error, n[t.place] += 1;
    fit.observe(t.place, t.confidence, t.accepted);
  }
  fit.refit();
  const double determinant = a * c[0] * c[1] - b[0] * b[0] * c[1] - b[1] * b[1] * c[0];
  const double whole = (g * c[0] * c[1] - b[0] * e[0] * c[1] - b[1] * e[1] * c[0]) / determinant;
  const double change = whole * 5 / 55;
  EXPECT_NEAR(fit.slope(), 0.5 + change, 1e-12);
  for (size_t k = 0; k < 2; ++k)
    EXPECT_NEAR(fit.offset(k), -0.2 + (e[k] - b[k] * change) / c[k] * n[k] / (n[k] + 50), 1e-12) << k;
  const double slope = fit.slope();
  fit.refit();
  EXPECT_EQ(fit.slope(), slope) << "a window without observations changes nothing";
}

TEST(SharedSlopeFit, RefitsAfterAHundredSteps) {
  SharedSlopeFit fit(1);
  for (int i = 0; i < 99; ++i) fit.observe(0, 1, true), fit.step();
  EXPECT_EQ(fit.slope(), SharedSlopeFit::kFirstSlope);
  fit.step();
  EXPECT_GT(fit.offset(0), SharedSlopeFit::kFirstOffset);
}

TEST(SharedSlopeFit, TheSlopeStaysAboveZero) {
  SharedSlopeFit fit(1);
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 200; ++i) fit.observe(0, i % 2 == 0 ? 8 : 0, i % 2 == 1);
    fit.refit();
    EXPECT_GE(fit.slope(), 0);
  }
}

// The price of a row: tokens per second of the last step times the seconds of one more row.
TEST(Vllm, SendsWhatIsWorthItsRow) {
  const CostModel cost = costs({1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8}, 0.1);
  const auto policy = parse_gamma_policy("vllm:max=4").value()();
  const GammaContext context{.limit = 16, .batch_size = 1, .cost = &cost};
  EXPECT_EQ(policy->next(context), 4);
  EXPECT_EQ(policy->stop_rule().kind, StopKind::kChances);
  ASSERT_EQ(policy->stop_rule().places.size(), 4u);
  EXPECT_FLOAT_EQ(policy->stop_rule().places[0].slope, 0.5F);
  EXPECT_FLOAT_EQ(policy->stop_rule().places[0].least_sent, 0) << "at first all is verified";
  const std::vector<float> margins{4, 1};
  policy->update({.proposed = 4, .drafted = 2, .accepted = 1, .batch_size = 1, .margins = margins});
  policy->next(context);
  const double tokens = 1 + sigmoid(1.8) + sigmoid(1.8) * sigmoid(0.3);
  const double row = (cost.verify_seconds(7, 0) - cost.verify_seconds(3, 0)) / 4;
  const double seconds = cost.verify_seconds(3, 0) + cost.draft_phase_seconds(2, 2);
  EXPECT_NEAR(policy->stop_rule().places[3].least_sent, tokens / seconds * row, 1e-6);
  EXPECT_EQ(policy->next({.limit = 1, .batch_size = 1, .cost = &cost}), 1) << "no longer than there is room";
}

TEST(PublishedPolicies, WrongKeysAreRefused) {
  for (const char* wrong : {"goodspeed:budget=-1", "goodspeed:eta=0", "goodspeed:beta=2", "turbospec:decay=1",
                            "turbospec:max=0", "vllm:max=0", "vllm:guard=1"})
    EXPECT_FALSE(parse_gamma_policy(wrong).ok()) << wrong;
}

}  // namespace
}  // namespace outrider
