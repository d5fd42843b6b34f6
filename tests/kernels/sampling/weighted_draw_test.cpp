#include "kernels/sampling/weighted_draw.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/kernels/sampling/reference.h"
#include "tests/support/source_dir.h"

namespace outrider {
namespace {

using nlohmann::json;

const json& vectors() {
  static const json parsed = [] {
    std::ifstream file(outrider::source_dir() / "tests/vectors/sharded.json");
    return json::parse(file);
  }();
  return parsed;
}
uint64_t hex(const json& text) { return std::stoull(text.get<std::string>(), nullptr, 16); }

TEST(WeightedDraw, ReferenceWeightsAndSamples) {
  int tokens = 0, weights_checked = 0;
  for (const json& entry : vectors()["sampling"]) {
    // The reference exponentiates two-decimal doubles; fp32 logits are near them, hence the relative
    // tolerance.
    const auto logits = entry["logits"].get<std::vector<float>>();
    const auto w = reference::weights(logits);
    if (!entry["weights"].is_null())
      for (size_t v = 0; v < w.size(); ++v, ++weights_checked) {
        const double expected = std::stod(entry["weights"][v].get<std::string>());
        EXPECT_NEAR(static_cast<double>(w[v]), expected, expected * 1e-5 + 1);
      }
    for (int ranks : {1, 2, 3, 4, 8}) {
      reference::run_ranks(ranks, [&](Collectives& group) {
        const IndexRange range = vocab_range(static_cast<int64_t>(w.size()), {group.rank(), group.size()});
        WeightedSampler sampler(group);
        WeightedDraw draw{.row = {.logits = std::span(logits).subspan(static_cast<size_t>(range.begin),
                                                                      static_cast<size_t>(range.size())),
                                  .range = range,
                                  .max = *std::max_element(logits.begin(), logits.end())},
                          .bits = hex(entry["u64"])};
        EXPECT_EQ(sampler.draw(std::span(&draw, 1)), 0);
        EXPECT_EQ(draw.token.value(), entry["token"].get<int>());
      });
    }
    ++tokens;
  }
  EXPECT_GE(tokens, 10);
  EXPECT_GE(weights_checked, 100);
}

TEST(WeightedDraw, ReferenceResiduals) {
  int checked = 0;
  for (const json& entry : vectors()["residual"]) {
    std::vector<uint64_t> p;
    std::vector<double> q;
    uint64_t q_sum = 0;
    for (const json& w : entry["p_weights"]) p.push_back(std::stoull(w.get<std::string>()));
    for (const json& w : entry["q_weights"]) q_sum += std::stoull(w.get<std::string>());
    for (const json& w : entry["q_weights"])
      q.push_back(static_cast<double>(std::stoull(w.get<std::string>())) / static_cast<double>(q_sum));
    std::vector<uint64_t> residual(p.size());
    fill_residual(p, reference::sum(p), 1, q, residual);
    for (size_t v = 0; v < p.size(); ++v)
      EXPECT_EQ(std::to_string(residual[v]), entry["residual"][v].get<std::string>());
    EXPECT_EQ(reference::inverse_cdf(residual, hex(entry["u64"])).value(), entry["token"].get<int>());
    ++checked;
  }
  EXPECT_GE(checked, 6);
}

// A residual that rounding leaves empty: p and q are the same single token.
TEST(WeightedDraw, EmptyResidualFallsBackToTheTarget) {
  for (int ranks : {1, 2, 4}) {
    reference::run_ranks(ranks, [&](Collectives& group) {
      const std::vector<float> logits{reference::kMasked, reference::kMasked, 4, reference::kMasked};
      const IndexRange range = vocab_range(4, {group.rank(), group.size()});
      const std::vector<uint32_t> ids{2}, weights{1};
      WeightedDraw draw{.row = {.logits = std::span(logits).subspan(static_cast<size_t>(range.begin),
                                                                    static_cast<size_t>(range.size())),
                                .range = range,
                                .max = 4,
                                .residual = true,
                                .q = {ids, weights, 1},
                                .total = uint64_t{1} << 44},
                        .bits = 12345};
      EXPECT_EQ(WeightedSampler(group).draw(std::span(&draw, 1)), 1);
      EXPECT_EQ(draw.token, TokenId(2));
    });
  }
}

TEST(QView, WeightsOfDenseAndSparseRows) {
  const std::vector<uint32_t> ids{3, 7, 90}, weights{5, 6, 9};
  const QView sparse{ids, weights, 20};
  EXPECT_EQ(sparse.weight(TokenId(7)), 6u);
  EXPECT_EQ(sparse.weight(TokenId(8)), 0u);
  EXPECT_EQ(sparse.weight(TokenId(91)), 0u);
  EXPECT_EQ(sparse.probability(TokenId(3)), 0.25);
  const QView with_rest{ids, weights, 20 + 2 * 97, 0, 2, 100};
  EXPECT_EQ(with_rest.weight(TokenId(7)), 6u);
  EXPECT_EQ(with_rest.weight(TokenId(8)), 2u);
  EXPECT_EQ(with_rest.weight(TokenId(99)), 2u);
  EXPECT_EQ(with_rest.weight(TokenId(100)), 0u);
  const QView dense{{}, weights, 20};
  EXPECT_EQ(dense.weight(TokenId(2)), 9u);
  EXPECT_EQ(dense.weight(TokenId(3)), 0u);  // the draft's head is smaller than the target's
}

}  // namespace
}  // namespace outrider
