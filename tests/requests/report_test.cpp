// The comparison of --compare-plain over turns.
#include "requests/report.h"

#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>

namespace outrider::testing {
namespace {

TEST(PlainComparison, ASlowTurnSlowsBothSides) {
  // The second turn had half the clock.
  const std::array turns{PlainTurn{100, 200, 2.2}, PlainTurn{50, 100, 2.0}, PlainTurn{100, 200, 2.4}};
  const PlainComparison comparison = PlainComparison::of(turns, true);
  EXPECT_DOUBLE_EQ(comparison.speedup.value, 2);
  EXPECT_DOUBLE_EQ(comparison.speedup.low, 2);
  EXPECT_DOUBLE_EQ(comparison.speedup.high, 2);
  EXPECT_EQ(comparison.speedup.samples, 3);
  EXPECT_DOUBLE_EQ(comparison.plain_tokens_per_second, 100);
  EXPECT_DOUBLE_EQ(comparison.tokens_per_second, 200);
  EXPECT_DOUBLE_EQ(comparison.predicted_speedup, 2.2);
}

TEST(PlainComparison, OneTurnHasNoInterval) {
  const std::array turns{PlainTurn{100, 150, 1.6}};
  const PlainComparison comparison = PlainComparison::of(turns, false);
  EXPECT_DOUBLE_EQ(comparison.speedup.value, 1.5);
  EXPECT_FALSE(comparison.speedup.has_interval());
  EXPECT_FALSE(comparison.identical_output);
}

// A run that ends before its first token has no rate.
TEST(PlainComparison, ATurnWithoutARateTellsNothing) {
  const std::array turns{PlainTurn{0, 150, 0}, PlainTurn{100, 150, 1.6}};
  EXPECT_EQ(PlainComparison::of(turns, true).speedup.samples, 1);
  EXPECT_FALSE(PlainComparison::of({}, true).speedup.measured());
}

std::string compared(std::span<const PlainTurn> turns) {
  nlohmann::json metrics;
  fill_json(Totals(), metrics);
  return screen_report({}, Totals(), metrics, PlainComparison::of(turns, true));
}

// Three turns are too few for an interval: each is shown.
TEST(PlainComparison, FewTurnsAreShownThemselves) {
  const std::array turns{PlainTurn{100, 101, 1}, PlainTurn{100, 150, 1}, PlainTurn{100, 110, 1},
                         PlainTurn{100, 120, 1}};
  const std::string few = compared(std::span(turns).first(3));
  EXPECT_NE(few.find("speed-up 1.10 (1.01 to 1.50 in 3 turns"), std::string::npos) << few;
  const std::string more = compared(turns);
  EXPECT_EQ(more.find("(1.01 to 1.50 in 4 turns"), std::string::npos) << more;
}

std::string shown(const RunDescription& run, const Totals& totals) {
  nlohmann::json metrics;
  fill_json(totals, metrics);
  fill_json(TransportStats{}, totals, metrics["wire"]);
  return screen_report(run, totals, metrics, std::nullopt);
}

Totals drafted() {
  Totals totals;
  totals.rounds.add_round(4, 2, 3, false);
  totals.workers_joined = totals.drafts_received = 1;
  return totals;
}

TEST(ScreenReport, OneProcessHasNoWireAndNoDraftWorkers) {
  const std::string several = shown({.speculates = true}, drafted());
  EXPECT_NE(several.find("wire: "), std::string::npos) << several;
  EXPECT_NE(several.find(", draft workers 0 %"), std::string::npos) << several;
  const std::string one = shown({.speculates = true, .one_process = true}, drafted());
  EXPECT_EQ(one.find("wire: "), std::string::npos) << one;
  EXPECT_NE(one.find(", draft model 0 %"), std::string::npos) << one;
  const std::string text =
      shown({.speculates = true, .one_process = true, .drafts_from_text_alone = true}, drafted());
  EXPECT_NE(text.find("idle: target 0 %\n"), std::string::npos) << text;
  const std::string emulated =
      shown({.speculates = true, .one_process = true, .emulated_link = "delay=1ms"}, drafted());
  EXPECT_NE(emulated.find("wire: "), std::string::npos) << emulated;
}

TEST(ScreenReport, TheWireLineHasBytesPerToken) {
  Totals totals = drafted();  // 3 tokens, of which 2 were drafted
  const auto line = [](const Totals& of, uint64_t sent) {
    nlohmann::json metrics;
    TransportStats stats;
    stats.sent_bytes[0] = sent;
    fill_json(of, metrics);
    fill_json(stats, of, metrics["wire"]);
    const std::string text = screen_report({.speculates = true}, of, metrics, std::nullopt);
    const size_t at = text.find("wire: ");
    return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
  };
  EXPECT_EQ(line(totals, 300), "wire: 100 bytes per token; 2 draft tokens were accepted");
  for (int i = 0; i < 15; ++i) totals.rounds.add_round(4, 2, 3, false);  // 48 tokens, 32 of them drafted
  EXPECT_EQ(line(totals, 4800), "wire: 100 bytes per token; 150 per accepted draft token, 0 of them drafts");
}

TEST(ScreenReport, ADrafterOfTextIsNotSuspectedOfBadLogits) {
  Totals totals;
  totals.drafts_used = 3;
  totals.workers_joined = 1;
  const std::string text =
      shown({.drafter = "suffix", .speculates = true, .drafts_from_text_alone = true}, totals);
  EXPECT_NE(text.find("--drafter suffix found none"), std::string::npos) << text;
  EXPECT_EQ(text.find("logits"), std::string::npos) << text;
  EXPECT_NE(shown({.speculates = true}, totals).find("logits"), std::string::npos);
}

}  // namespace
}  // namespace outrider::testing
