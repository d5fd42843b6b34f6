// The policy that derives draft lengths from confidence: its learning from margins, and its decisions at
// known acceptance rates, on a virtual clock with fixed seeds.
#include "coordinator/gamma/logistic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "comm/chances.h"
#include "coordinator/gamma/policies.h"

namespace outrider {
namespace {

double uniform(std::mt19937_64& random) { return std::uniform_real_distribution<>()(random); }

TEST(ChanceFit, FindsTheCoefficientsOfEveryPlace) {
  ChanceFit fit(0.9998, 50);
  std::mt19937_64 random(1);
  const ChanceLine truth[] = {{0.8, -0.3}, {1.2, 0.4}};
  for (int i = 0; i < 20000; ++i)
    for (size_t place = 0; place < 2; ++place) {
      const double margin = 4 * uniform(random), base = 0.5;
      const double chance = chance_of_log_odds(base + truth[place].slope * margin + truth[place].offset);
      fit.observe(place, base, margin, uniform(random) < chance);
    }
  for (size_t place = 0; place < 2; ++place) {
    EXPECT_NEAR(fit.line(place).slope, truth[place].slope, 0.2) << place;
    EXPECT_NEAR(fit.line(place).offset, truth[place].offset, 0.3) << place;
    for (const double margin : {0.5, 2.0, 3.5}) {
      const double want = chance_of_log_odds(truth[place].slope * margin + truth[place].offset);
      const double got = chance_of_log_odds(fit.line(place).slope * margin + fit.line(place).offset);
      EXPECT_NEAR(got, want, 0.03) << place << " " << margin;
    }
  }
}

// A margin that never moves, or tells nothing, leaves the text's own acceptance as it is.
TEST(ChanceFit, MarginsThatTellNothingChangeNothing) {
  for (const bool constant : {true, false}) {
    ChanceFit fit(0.998, 50);
    std::mt19937_64 random(2);
    for (int i = 0; i < 5000; ++i)
      fit.observe(0, log_odds_of(0.7), constant ? 2.0 : 4 * uniform(random), uniform(random) < 0.7);
    for (const double margin : {2.0, constant ? 2.0 : 0.5})
      EXPECT_NEAR(chance_of_log_odds(log_odds_of(0.7) + fit.line(0).slope * margin + fit.line(0).offset), 0.7,
                  0.05);
  }
}

// Sequences in lockstep with a drafter that obeys the rule. Half of the tokens are sure, half are not.
struct DraftMix {
  double sure = 0.97, unsure = 0.3;
  double share = 0.6;  // of sure ones
  double draft = 0.05, per_row = 0.05;
  int batch = 1;
};

double rate(const std::string& policy, const DraftMix& world, uint64_t seed, int steps = 3000) {
  const auto factory = parse_gamma_policy(policy).value();
  std::mt19937_64 random(seed);
  CostModel cost;
  std::vector<std::unique_ptr<GammaPolicy>> sequences(static_cast<size_t>(world.batch));
  double seconds = 0, tokens = 0;
  for (int step = 0; step < steps; ++step) {
    std::vector<int32_t> asked;
    std::vector<std::vector<float>> margins;
    std::vector<int32_t> accepted;
    int32_t longest = 0, total = 0;
    for (auto& policy_of : sequences) {
      if (!policy_of) policy_of = factory();
      asked.push_back(
          policy_of->next({.limit = 64, .batch_size = world.batch, .context_length = 100, .cost = &cost}));
      const StopRule rule = policy_of->stop_rule();
      std::vector<float>& own = margins.emplace_back();
      double survival = 1;
      int32_t right = 0;
      bool all = true;
      for (int32_t i = 0; i < asked.back(); ++i) {
        const double chance = uniform(random) < world.share ? world.sure : world.unsure;
        const double margin = 2 + log_odds_of(chance);
        survival *= chance_of(rule, static_cast<size_t>(i), margin);
        const bool hit = uniform(random) < chance;
        longest = std::max(longest, i + 1);  // its pass was made, sent or not
        if (stops_before(rule, static_cast<size_t>(i), survival)) break;
        own.push_back(static_cast<float>(margin));
        all &= hit;
        right += all;
        if (stops_after(rule, static_cast<size_t>(i), survival)) break;
      }
      accepted.push_back(right);
      total += static_cast<int32_t>(own.size());
    }
    const double verify = 1 + world.per_row * (world.batch + total - 1), draft = world.draft * longest;
    cost.observe_draft_phase(longest, std::max(longest, total), draft, draft);
    cost.observe_verify(world.batch + total, 100 * world.batch, verify);
    for (size_t i = 0; i < sequences.size(); ++i)
      sequences[i]->update({.proposed = asked[i],
                            .drafted = static_cast<int32_t>(margins[i].size()),
                            .accepted = accepted[i],
                            .batch_size = world.batch,
                            .cost = &cost,
                            .margins = margins[i]});
    if (step < steps / 10) continue;
    seconds += verify + draft;
    for (const int32_t count : accepted) tokens += count + 1;
  }
  return tokens / seconds;
}

double mean_rate(const std::string& policy, const DraftMix& world) {
  double sum = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) sum += rate(policy, world, seed) / 4;
  return sum;
}

TEST(Logistic, KnowsWhichTokensToSend) {
  for (const int batch : {1, 4, 16}) {
    const DraftMix world{.batch = batch};
    EXPECT_GE(mean_rate("logistic", world), 1.05 * mean_rate("ewma", world)) << batch;
  }
}

TEST(Logistic, IsAsGoodWhereAllTokensAreAlike) {
  for (const int batch : {1, 4, 16})
    for (const double chance : {0.5, 0.8, 0.95}) {
      const DraftMix world{.sure = chance, .unsure = chance, .batch = batch};
      EXPECT_GE(mean_rate("logistic", world), 0.99 * mean_rate("ewma", world)) << batch << " " << chance;
    }
}

// Until enough was tested, drafts are as long as ewma has them, and none is ended.
TEST(Logistic, EndsNothingBeforeItKnows) {
  auto policy = parse_gamma_policy("logistic:known-from=1000").value()();
  CostModel cost;
  for (int i = 0; i < 50; ++i) {
    const int32_t gamma = policy->next({.limit = 64, .cost = &cost});
    EXPECT_EQ(policy->stop_rule().kind, StopKind::kChances);
    EXPECT_TRUE(policy->stop_rule().places.empty());
    cost.observe_draft_phase(gamma, gamma, 0.05 * gamma, 0.05 * gamma);
    cost.observe_verify(gamma + 1, 100, 1 + 0.05 * gamma);
    const std::vector<float> margins(static_cast<size_t>(gamma), 2.0f);
    policy->update(
        {.proposed = gamma, .drafted = gamma, .accepted = gamma, .cost = &cost, .margins = margins});
  }
}

// Margins are a drafter's word: absurd ones leave rules that can be sent.
TEST(Logistic, SurvivesMarginsThatAreLies) {
  auto policy = parse_gamma_policy("logistic:known-from=10").value()();
  CostModel cost;
  for (int i = 0; i < 200; ++i) {
    const int32_t gamma = std::max(1, policy->next({.limit = 8, .cost = &cost}));
    for (const PlaceRule& place : policy->stop_rule().places)
      for (const float x : {place.slope, place.offset, place.least_sent, place.least_extended})
        ASSERT_TRUE(std::isfinite(x)) << i;
    cost.observe_draft_phase(gamma, gamma, 0.05 * gamma, 0.05 * gamma);
    cost.observe_verify(gamma + 1, 100, 1 + 0.05 * gamma);
    const std::vector<float> margins(static_cast<size_t>(gamma), i % 2 ? 3e38f : -3e38f);
    policy->update({.proposed = gamma,
                    .drafted = gamma,
                    .accepted = i % 3 ? gamma : 0,
                    .cost = &cost,
                    .margins = margins});
  }
}

}  // namespace
}  // namespace outrider
