#include "coordinator/costs/cost_model.h"
#include "coordinator/costs/settled_passes.h"
#include "coordinator/costs/worker_cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace outrider {
namespace {

// Pass times of a target: every further row adds `price` passes.
PassTimes rows_at(double price) {
  PassTimes times;
  for (const int32_t rows : {2, 3, 5, 9, 17})
    times.by_rows.push_back({.rows = rows, .passes = static_cast<float>(1 + price * (rows - 1))});
  return times;
}

TEST(CostModel, TheFirstPassSetsTheScale) {
  CostModel cost;
  const double ratio = cost.draft_seconds(1) / cost.verify_seconds(1, 0);
  cost.observe_verify(1, 10, 0.004);
  EXPECT_NEAR(cost.verify_seconds(1, 10), 0.004, 1e-6);
  EXPECT_NEAR(cost.draft_seconds(1) / cost.verify_seconds(1, 0), ratio, 1e-9);
  cost.observe_draft_phase(4, 4, 0.002, 0.002);
  EXPECT_DOUBLE_EQ(cost.draft_seconds(1), 0.0005);
}

// Uses what the target measured before it joined: expensive rows are known to be expensive before the first
// forward pass of several rows, even when a stall delayed the first pass of all.
TEST(CostModel, RowsCostWhatTheTargetMeasured) {
  for (const double price : {0.0, 0.02, 0.3, 0.8}) {
    CostModel cost;
    cost.expect_passes(rows_at(price));
    EXPECT_TRUE(cost.rows_expected(1));
    EXPECT_FALSE(cost.rows_expected(64)) << "only passes of few rows were measured";
    EXPECT_FALSE(cost.is_in_seconds());
    for (const double seconds : {0.012, 0.004, 0.004, 0.004}) cost.observe_verify(1, 10, seconds);
    EXPECT_NEAR(cost.verify_seconds(5, 10) / cost.verify_seconds(1, 10), 1 + 4 * price,
                0.16 * (1 + 4 * price))
        << price;
    EXPECT_NEAR(cost.verify_seconds(1, 10), 0.004, 0.0015) << price;
  }
}

// A batch of many is bound by something else than the few rows that were measured.
TEST(CostModel, OfALargeBatchNothingWasMeasured) {
  CostModel cost, untold;
  cost.expect_passes(rows_at(0.3));
  for (CostModel* each : {&cost, &untold}) each->observe_verify(64, 10, 0.004);
  EXPECT_FALSE(cost.rows_expected(1));
  EXPECT_EQ(cost.verify_seconds(128, 10), untold.verify_seconds(128, 10));
}

// Rows of kernels for four rows at a time: between the measured points passes grow, and never shrink.
TEST(CostModel, AMeasuredStaircaseIsKnownBeforeTheFirstPass) {
  const RowCost measured[]{{2, 1.02f}, {3, 1.05f}, {5, 1.9f}, {9, 2.8f}, {17, 4.9f}};
  CostModel cost;
  cost.expect_passes({.row_ns = 50'000'000, .by_rows = {std::begin(measured), std::end(measured)}});
  EXPECT_TRUE(cost.is_in_seconds());
  EXPECT_NEAR(cost.verify_seconds(1, 0), 0.05, 1e-6);
  for (const RowCost& point : measured)
    EXPECT_NEAR(cost.verify_seconds(point.rows, 0), 0.05 * point.passes, 1e-4) << point.rows;
  for (int32_t rows = 2; rows < 40; ++rows)
    EXPECT_GE(cost.verify_seconds(rows, 0), cost.verify_seconds(rows - 1, 0)) << rows;
  // The machine is twice as slow later. The curve keeps its form, also where only one length was passed.
  for (int i = 0; i < 100; ++i) cost.observe_verify(3, 10, 0.105);
  EXPECT_NEAR(cost.verify_seconds(1, 10), 0.1, 0.005);
  EXPECT_NEAR(cost.verify_seconds(5, 10), 0.19, 0.01);
}

// A target behind a link: its passes take 15 ms longer than it measured, for any number of rows.
TEST(CostModel, ALinkToTheTargetMakesNoRowDearer) {
  const RowCost measured[]{{2, 1.15f}, {3, 1.6f}, {5, 2.8f}, {9, 4.8f}, {17, 9.f}};
  CostModel cost;
  cost.expect_passes({.row_ns = 1'200'000, .by_rows = {std::begin(measured), std::end(measured)}});
  for (int passes = 1; passes <= 200; ++passes) {
    cost.observe_verify(2, 10, 0.015 + 0.0012 * 1.15);
    EXPECT_NEAR(cost.verify_seconds(2, 10), 0.01638, 1e-4) << passes;
    EXPECT_LE(cost.verify_seconds(6, 10), 0.023) << passes << " passes; without the factor of 2: 0.019";
  }
}

TEST(CostModel, AMeasurementWithoutOrderIsNone) {
  for (const std::vector<RowCost>& measured :
       {std::vector<RowCost>{{5, 2}, {2, 1}}, {{1, 1}}, {{2, 0}}, {{-3, 2}}, {{2, NAN}}}) {
    CostModel cost;
    cost.expect_passes({.row_ns = 1000, .by_rows = measured});
    EXPECT_FALSE(cost.rows_expected(1));
    EXPECT_FALSE(cost.is_in_seconds());
  }
}

// A draft model that was measured before the first request, and a draft that confirms it: no doubt.
TEST(CostModel, AMeasuredDraftModelIsKnownBeforeTheFirstDraft) {
  CostModel cost;
  cost.expect_drafts({.row_ns = 20'000'000, .by_rows = {{5, 1.8f}}, .prefill_token_ns = 6'000'000});
  EXPECT_FALSE(cost.draft_expected()) << "passes have no scale";
  PassTimes target = rows_at(0.1);
  target.row_ns = 40'000'000;
  cost.expect_passes(target);
  EXPECT_TRUE(cost.draft_expected());
  EXPECT_FALSE(cost.draft_known());
  EXPECT_NEAR(cost.draft_phase_seconds(3, 3), 0.06, 1e-3);
  EXPECT_NEAR(cost.draft_phase_seconds(3, 12), 0.06 + 9 * 0.004, 1e-3);
  EXPECT_DOUBLE_EQ(cost.read_token_seconds(), 0.006);
  cost.observe_verify(1, 10, 0.04);
  cost.observe_draft_phase(2, 2, 0.05, 0.05);
  EXPECT_FALSE(cost.draft_doubted());
  EXPECT_NEAR(cost.draft_seconds(1), 0.025, 0.002) << "a measured draft counts more";
}

TEST(CostModel, WhatATargetMeasuredWronglyIsCorrected) {
  CostModel cost;
  cost.expect_passes(rows_at(0.5));
  for (int i = 0; i < 80; ++i) cost.observe_verify(i % 4 == 0 ? 1 : 5, 10, 0.004);
  EXPECT_NEAR(cost.verify_seconds(5, 10) / cost.verify_seconds(1, 10), 1, 0.15);
}

TEST(CostModel, NonsenseAndWhatComesLateIsNoMeasure) {
  for (const double price : {-2.0, double{NAN}, -double{INFINITY}}) {
    CostModel cost, untold;
    cost.expect_passes(rows_at(price));
    EXPECT_FALSE(cost.rows_expected(1));
    cost.observe_verify(1, 10, 0.004);
    untold.observe_verify(1, 10, 0.004);
    EXPECT_EQ(cost.verify_seconds(9, 10), untold.verify_seconds(9, 10));
  }
  CostModel vast;
  vast.expect_passes(rows_at(INFINITY));
  vast.observe_verify(1, 10, 0.004);
  EXPECT_NEAR(vast.verify_seconds(1, 10), 0.004, 1e-4);
  EXPECT_LE(vast.verify_seconds(5, 10), 0.0201) << "at most a whole pass for each row";

  CostModel late;  // a group that came back: what its passes told is better
  for (int i = 0; i < 20; ++i) late.observe_verify(1 + i % 5, 10, 0.004);
  const double before = late.verify_seconds(5, 10);
  late.expect_passes(rows_at(0.9));
  EXPECT_EQ(late.verify_seconds(5, 10), before);
}

// A drafter beside the first pass may be done before it.
TEST(CostModel, AProbeDraftBeforeTheFirstPassKeepsItsSeconds) {
  CostModel cost;
  cost.observe_probe_draft({.tokens = 2, .busy = 0.010, .exchange = 0.003, .prefill = 0.020});
  cost.observe_verify(1, 10, 0.001);
  EXPECT_DOUBLE_EQ(cost.draft_seconds(1), 0.005);
  // It may have waited for a pass before each of its own.
  EXPECT_NEAR(cost.exchange_seconds(), 0.003 - 2 * cost.verify_seconds(1, 0), 1e-9);
  cost.observe_probe_draft({.tokens = 2, .busy = 0.010, .exchange = 0.003, .prefill = 0.020}, 0.0014);
  EXPECT_NEAR(cost.exchange_seconds(), 0.003 - 2 * 0.0014, 1e-9);
}

// A drafter that looks into the text may find nothing at first, and one that had a prompt to read tells
// nothing of a token. What was believed of a token is a share of a pass until something better is known.
TEST(CostModel, AProbeDraftThatTellsNothingOfATokenKeepsTheRatio) {
  for (const ProbeDrafting& probe_draft : {ProbeDrafting{.tokens = 0, .busy = 0.0, .exchange = 4e-5},
                                           {.tokens = 1, .busy = {}, .exchange = 4e-5}}) {
    CostModel cost;
    const double share = cost.draft_seconds(1) / cost.verify_seconds(1, 0);
    cost.observe_probe_draft(probe_draft);
    cost.observe_verify(1, 10, 0.001);
    EXPECT_NEAR(cost.draft_seconds(1), share * cost.verify_seconds(1, 0), 1e-9);
    cost.observe_probe_draft({.tokens = 2, .busy = 1e-3, .exchange = 4e-5});
    EXPECT_DOUBLE_EQ(cost.draft_seconds(1), 5e-4) << "the first that tells: the ratio was a guess";
    cost.observe_probe_draft({.tokens = 2, .busy = 4e-3, .exchange = 4e-5});
    EXPECT_DOUBLE_EQ(cost.draft_seconds(1), 5e-4) << "the least of them, as before";
  }
}

// The first draft's token is taken off what reading took, where it is known in seconds.
TEST(CostModel, APromptReadBeforeTheFirstPassIsNotFree) {
  CostModel cost;
  cost.observe_probe_draft({.tokens = 1, .busy = {}, .exchange = 4e-5});
  cost.observe_prefill(100, 0.02);
  EXPECT_DOUBLE_EQ(cost.read_token_seconds(), 2e-4);
}

TEST(CostModel, LearnsHowFastPromptsAreRead) {
  CostModel cost;
  EXPECT_EQ(cost.read_token_seconds(), 0);
  cost.observe_prefill(100, 0.2);
  EXPECT_DOUBLE_EQ(cost.read_token_seconds(), 0.002);
  cost.observe_prefill(100, 20);  // held up: counts for twice the usual
  EXPECT_DOUBLE_EQ(cost.read_token_seconds(), 0.002 + 0.25 * 0.002);
  for (int i = 0; i < 40; ++i) cost.observe_prefill(50, 0.5);
  EXPECT_NEAR(cost.read_token_seconds(), 0.01, 1e-4);
}

TEST(SettledPasses, APassBesideAProbeDraftIsNoMeasure) {
  SettledPasses passes;
  EXPECT_TRUE(passes.next(true)) << "the first of all: nothing else is known";
  EXPECT_FALSE(passes.next(true));
  passes.probe_draft();
  EXPECT_FALSE(passes.next()) << "it came while this pass was under way";
  EXPECT_TRUE(passes.next());
}

TEST(CostModel, LearnsRowsAndContextAndForgets) {
  CostModel cost;
  for (int i = 0; i < 400; ++i) {
    const int rows = 1 + i % 9, context = 100 + 7 * (i % 60);
    cost.observe_verify(rows, context, 0.010 + 0.0005 * rows + 2e-6 * context);
  }
  EXPECT_NEAR(cost.verify_seconds(5, 300), 0.0131, 1e-4);
  EXPECT_NEAR(cost.verify_seconds(1, 500), 0.0115, 1e-4);
  for (int i = 0; i < 400; ++i) cost.observe_verify(1 + i % 9, 100, 0.020 + 0.001 * (1 + i % 9));
  EXPECT_NEAR(cost.verify_seconds(5, 100), 0.025, 1e-4);
}

// Rows alone explain everything, and the context never moves: it must not be blamed for the base.
TEST(CostModel, AConstantContextIsNotACost) {
  CostModel cost;
  for (int i = 0; i < 200; ++i) cost.observe_verify(1 + i % 5, 1000, 0.010 + 0.001 * (1 + i % 5));
  EXPECT_EQ(cost.verify().per_context, 0);
  EXPECT_NEAR(cost.verify_seconds(3, 5000), 0.013, 1e-4);
}

TEST(CostModel, TellsDelayFromDrafting) {
  CostModel cost;
  cost.observe_draft_phase(4, 4, 0.004, 0.006);
  EXPECT_NEAR(cost.exchange_seconds(), 0.002, 1e-12);
  EXPECT_NEAR(cost.draft_phase_seconds(8, 8), 0.010, 1e-9);
}

// After one batch and one sequence alone it is known whether a worker serves its sequences together or in
// turn.
TEST(CostModel, TellsDraftersThatBatchFromThoseThatDoNot) {
  CostModel together, in_turn;
  for (int i = 0; i < 50; ++i) together.observe_draft_phase(4, 32, 0.004, 0.004);
  for (int i = 0; i < 50; ++i) in_turn.observe_draft_phase(4, 32, 0.032, 0.032);
  together.observe_draft_phase(4, 4, 0.004, 0.004);
  in_turn.observe_draft_phase(4, 4, 0.004, 0.004);
  for (const int batch : {1, 4, 8}) {
    EXPECT_NEAR(together.draft_phase_seconds(4, 4 * batch), 0.004, 2e-4) << batch;
    EXPECT_NEAR(in_turn.draft_phase_seconds(4, 4 * batch), 0.004 * batch, 2e-3) << batch;
  }
}

// DFlash drafts a block in one pass, so after two tokens it is known what twelve cost.
TEST(CostModel, ADraftOfABlockTakesAsLongAtAnyLength) {
  CostModel cost;
  cost.set_draft_blocks(true);
  for (int i = 0; i < 20; ++i) {
    cost.observe_verify(1, 10, 0.010);
    cost.observe_draft_phase(2, 2, 0.004, 0.005);
  }
  for (const int32_t length : {1, 2, 12}) EXPECT_NEAR(cost.draft_phase_seconds(length, length), 0.005, 1e-4);
  for (int i = 0; i < 100; ++i) cost.observe_draft_phase(4, 8, 0.006, 0.007);
  EXPECT_NEAR(cost.draft_phase_seconds(12, 24), 0.007, 2e-4) << "of two sequences";
  WorkerCost worker;
  worker.set_blocks(true);
  for (int i = 0; i < 20; ++i) worker.observe(2, 2, 0.004);
  for (int i = 0; i < 20; ++i) worker.observe(4, 8, 0.006);
  EXPECT_NEAR(worker.cost().seconds(12, 12), 0.004, 1e-4);
  EXPECT_NEAR(worker.cost().seconds(12, 24), 0.006, 2e-4);
  cost.set_draft_blocks(false);
  EXPECT_FALSE(cost.draft_known()) << "a token of another drafter may cost anything";
}

// Kernels have steps: what a line misses is learnt by the number of rows.
TEST(CostModel, KnowsStepsThatNoLineHas) {
  CostModel cost;
  const auto seconds = [](int rows) { return rows < 10 ? 0.010 : 0.016; };
  for (int i = 0; i < 400; ++i) cost.observe_verify(1 + 2 * (i % 7), 10, seconds(1 + 2 * (i % 7)));
  for (const int rows : {1, 5, 9, 11, 13})
    EXPECT_NEAR(cost.verify_seconds(rows, 10), seconds(rows), 0.0018) << rows;
  const double between = cost.verify_seconds(10, 10);
  EXPECT_GT(between, cost.verify_seconds(9, 10));
  EXPECT_LT(between, cost.verify_seconds(11, 10));
}

// A mixture of 64 experts reads 8 experts for one row and E (1 - (1 - k / E)^rows) experts on average for
// more rows. A pass of few rows costs far more than a line fitted through all widths predicts, and each
// further row costs less.
TEST(CostModel, KnowsThatExpertsAddUp) {
  CostModel cost;
  const auto seconds = [](int rows) { return 0.002 + 0.001 * 64 * (1 - std::pow(1 - 8.0 / 64, rows)); };
  for (int i = 0; i < 600; ++i) cost.observe_verify(1 + i % 9, 300, seconds(1 + i % 9));
  for (int rows = 1; rows <= 9; ++rows)
    EXPECT_NEAR(cost.verify_seconds(rows, 300) / seconds(rows), 1, 0.06) << rows;
  // Widths that were not tried lie between their neighbours.
  CostModel few;
  const int widths[]{1, 2, 4, 8};
  for (int i = 0; i < 400; ++i) few.observe_verify(widths[i % 4], 300, seconds(widths[i % 4]));
  for (int rows : {3, 5, 6, 7}) EXPECT_NEAR(few.verify_seconds(rows, 300) / seconds(rows), 1, 0.08) << rows;
}

TEST(CostModel, ASpellIsNobodysCost) {
  CostModel cost;
  for (int i = 0; i < 100; ++i) cost.observe_verify(1 + i % 5, 10, 0.010);
  const double before = cost.verify_seconds(5, 10);
  for (int i = 0; i < 16; ++i) cost.observe_verify(5, 10, 0.500);
  EXPECT_LT(cost.verify_seconds(5, 10), 1.5 * before);
  EXPECT_LT(cost.verify_seconds(1, 10), 1.1 * before);
  for (int i = 0; i < 60; ++i) cost.observe_verify(1 + i % 5, 10, 0.100);
  EXPECT_GT(cost.verify_seconds(5, 10), 4 * before) << "what goes on is believed";
}

// The first draft may wait for what is used for the first time; if the second one does too, it is the link.
TEST(CostModel, OneSlowExchangeIsDoubted) {
  CostModel cost;
  cost.observe_verify(1, 10, 0.001);
  cost.observe_draft_phase(1, 1, 0.0001, 0.0051);
  EXPECT_TRUE(cost.draft_doubted());
  EXPECT_FALSE(cost.draft_known());
  cost.observe_draft_phase(1, 1, 0.0001, 0.0002);
  EXPECT_TRUE(cost.draft_known());
  EXPECT_NEAR(cost.exchange_seconds(), 0.0001, 1e-6);
  CostModel far;
  far.observe_verify(1, 10, 0.001);
  for (int i = 0; i < 2; ++i) far.observe_draft_phase(1, 1, 0.0001, 0.0051);
  EXPECT_TRUE(far.draft_known());
  EXPECT_NEAR(far.exchange_seconds(), 0.005, 1e-6);
}

// No pass of one row has been measured. Its estimate follows the measurements of wider passes, not the prior.
TEST(CostModel, ThePriorDoesNotFlattenWhatWasMeasured) {
  CostModel cost;
  for (int i = 0; i < 8; ++i) cost.observe_verify(8 + 4 * (i % 2), 10, 0.0004 + 0.00006 * (8 + 4 * (i % 2)));
  EXPECT_NEAR(cost.verify_seconds(4, 10), 0.00064, 0.1 * 0.00064);
}

TEST(CostModel, ReportsHowWellItPredicted) {
  CostModel cost;
  for (int i = 0; i < 400; ++i) cost.observe_verify(1 + i % 5, 10, 0.010 + 0.001 * (i % 5));
  nlohmann::json report;
  cost.fill_json(report);
  EXPECT_EQ(report["passes"], 400);
  EXPECT_NEAR(report["verify_predicted_over_measured"], 1, 0.02);
  EXPECT_LT(report["verify_mean_absolute_error"], 0.02);
}

}  // namespace
}  // namespace outrider
