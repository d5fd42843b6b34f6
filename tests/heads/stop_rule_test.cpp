#include "heads/stop_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/sampling/confidence.h"

namespace outrider {
namespace {

std::vector<float> logits_of(const std::vector<double>& q) {
  std::vector<float> logits;
  for (const double p : q)
    logits.push_back(p > 0 ? static_cast<float>(std::log(p)) + 3 : -std::numeric_limits<float>::infinity());
  return logits;
}

// Entropies -sum p ln p, and decisions by hand.
TEST(StopRule, EntropyRulesOnKnownDistributions) {
  struct Case {
    std::vector<double> q;
    double entropy;
    bool svip, adaedl;
  };
  const Case cases[] = {{{0.97, 0.01, 0.01, 0.01}, 0.16770053683981007, false, false},
                        {{0.7, 0.1, 0.1, 0.1}, 0.9404479886553263, true, true},
                        {{0.4, 0.3, 0.2, 0.1}, 1.2798542258336674, true, true},
                        {{0.25, 0.25, 0.25, 0.25}, 1.3862943611198906, true, true},
                        {{1.0, 0, 0, 0}, 0, false, false}};
  const StopRule svip{.kind = StopKind::kSvip, .threshold = 0.3f, .scale = 0.15f};
  const StopRule adaedl{.kind = StopKind::kAdaEdl, .threshold = 0.6f, .scale = 0.2f};
  for (const Case& c : cases) {
    const DraftConfidence confidence = confidence_of(logits_of(c.q), TokenId(0));
    EXPECT_NEAR(confidence.entropy, c.entropy, 1e-6);
    EXPECT_NEAR(confidence.probability, c.q[0], 1e-6);
    EXPECT_EQ(stops_before(svip, confidence.entropy), c.svip) << c.entropy;
    EXPECT_EQ(stops_before(adaedl, confidence.entropy), c.adaedl) << c.entropy;
    EXPECT_FALSE(stops_after(svip, 0.0));
  }
}

TEST(StopRule, ConfidenceLooksAtTheTokenThatIsSent) {
  const StopRule rule{.kind = StopKind::kConfidence, .threshold = 0.4f};
  EXPECT_FALSE(stops_before(rule, 10.0));
  EXPECT_FALSE(stops_after(rule, 0.41));
  EXPECT_TRUE(stops_after(rule, 0.39));
  EXPECT_FALSE(stops_after(StopRule{}, 0.0));
}

}  // namespace
}  // namespace outrider
