// The advice of `simulate plan`, checked against its own simulations, and its errors for bad input.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "lab/simulate/plan.h"

namespace outrider {
namespace {

TEST(Plan, RanksWhatFitsAndSaysWhy) {
  PlanOptions options;
  options.devices = 5;
  options.arrivals = "burst";
  options.requests = 1;
  options.output_tokens = 128;
  const Plan plan = make_plan(options).value();
  ASSERT_GT(plan.rows.size(), 20u);
  // 141 GB fit on two devices of 80 GB with little room, and not on one.
  // With a draft, or heads, beside it not even there.
  ASSERT_EQ(plan.impossible.size(), 3u);
  EXPECT_NE(plan.impossible[0].find("do not fit in 1 x"), std::string::npos) << plan.impossible[0];
  EXPECT_NE(plan.impossible[1].find("of the draft's weights"), std::string::npos) << plan.impossible[1];
  bool has_plain = false;
  for (const PlanRow& row : plan.rows) {
    EXPECT_FALSE(row.reason.empty());
    EXPECT_LE(row.devices, 5);
    EXPECT_LE(row.figures.tokens_per_second, 1.011 * plan.rows.front().figures.tokens_per_second);
    EXPECT_GT(row.figures.target_busy, 0);
    EXPECT_LE(row.figures.target_busy, 1.0001);
    has_plain |= row.run.place == DraftPlace::kNone && row.figures.tokens_per_round == 1;
  }
  EXPECT_TRUE(has_plain);
  EXPECT_NE(plan.rows.front().run.place, DraftPlace::kNone)
      << "acceptance 0.8 and a 1B draft pay for a 70B target";
  EXPECT_NE(plan_text(options, plan).find("Take "), std::string::npos);
  options.threads = 1;
  EXPECT_EQ(plan_text(options, make_plan(options).value()), plan_text(options, plan));
}

TEST(Plan, ADraftThatIsNeverAcceptedIsNotAdvised) {
  PlanOptions options;
  options.devices = 2;
  options.model = "8b";
  options.acceptance = "rates:0.02";
  options.requests = 12;
  options.output_tokens = 48;
  const Plan plan = make_plan(options).value();
  EXPECT_EQ(plan.rows.front().run.place, DraftPlace::kNone);
  EXPECT_EQ(plan.rows.front().reason, "no draft pays for its devices here");
}

// The module of a mixture is one of its layers: a token reads what it is sent to, memory holds all of it.
TEST(Plan, AMixtureDraftsWithAModuleOfItsOwnKind) {
  PlanOptions options;
  options.devices = 1;
  options.model = "v2-lite";
  options.draft_head = "mtp";
  options.places = {"none", "heads"};
  options.arrivals = "burst";
  options.requests = 2;
  options.output_tokens = 64;
  const Plan plan = make_plan(options).value();
  const auto head = std::find_if(plan.rows.begin(), plan.rows.end(),
                                 [](const PlanRow& row) { return row.run.place == DraftPlace::kHeads; });
  ASSERT_NE(head, plan.rows.end());
  EXPECT_NE(head->memory.find("31.4 GB of weights"), std::string::npos) << head->memory;
  // A layer of 64 experts, two matrices of a projection, and the output head: 1.6 GB.
  EXPECT_NE(head->memory.find("1.6 GB of the draft's weights"), std::string::npos) << head->memory;
  const std::string text = plan_text(options, plan);
  EXPECT_NE(text.find("2.66 G of them read for a token, 27 layers, 576 numbers cached"), std::string::npos)
      << text;
  const auto alone = std::find_if(plan.rows.begin(), plan.rows.end(),
                                  [](const PlanRow& row) { return row.run.place == DraftPlace::kNone; });
  ASSERT_NE(alone, plan.rows.end());
  EXPECT_GT(head->figures.tokens_per_second, alone->figures.tokens_per_second);
}

// A head beside the target leaves its devices idle while it drafts; at a worker a draft is two ways over the
// link later.
TEST(Plan, AHeadGoesWhereItIsFasterAndItSaysWhy) {
  PlanOptions options;
  options.devices = 5;
  options.draft_head = "eagle3";
  options.arrivals = "burst";
  options.requests = 1;
  options.output_tokens = 128;
  options.places = {"none", "heads", "head-workers"};
  options.delay_ms = 20;  // more than a pass
  const Plan far = make_plan(options).value();
  EXPECT_EQ(far.rows.front().run.place, DraftPlace::kHeads);
  EXPECT_EQ(far.rows.front().run.acceptance, "rates:0.8");
  const std::string told = advice(options, far);
  EXPECT_NE(told.find("beside the target is the better of its two places, --head-place target"),
            std::string::npos)
      << told;
  EXPECT_NE(told.find("2401.15077"), std::string::npos) << told;
  const auto apart = std::find_if(far.rows.begin(), far.rows.end(), [](const PlanRow& row) {
    return row.run.place == DraftPlace::kHeadWorkers;
  });
  ASSERT_NE(apart, far.rows.end());
  EXPECT_NE(layout_text(*apart).find("eagle3 worker"), std::string::npos);
  // Medusa's branches are right less often.
  options.delay_ms = 0.02;
  const double eagle3 = make_plan(options).value().rows.front().figures.tokens_per_second;
  options.draft_head = "medusa";
  EXPECT_LT(make_plan(options).value().rows.front().figures.tokens_per_second, 0.9 * eagle3);
  options.draft_head = "eagle4";
  const std::string refused = make_plan(options).status().message();
  EXPECT_NE(refused.find("--draft-head 'eagle4'"), std::string::npos) << refused;
}

// Usual layouts on eight devices, each as `simulate run` simulates it. The plan considers every one.
TEST(Plan, NoLayoutThatFitsIsFasterThanWhatItAdvises) {
  PlanOptions options;
  options.requests = 96;
  options.output_tokens = 96;
  options.arrivals = "closed:48";
  const Plan plan = make_plan(options).value();
  const double advised = plan.rows.front().figures.tokens_per_second;
  double best = 0;
  for (const DraftPlace place :
       {DraftPlace::kNone, DraftPlace::kOwn, DraftPlace::kColocated, DraftPlace::kCpu, DraftPlace::kHeads})
    for (const int tp : {2, 4, 8}) {
      SimulatedRun run{.hardware = fmt::format("h100:70b:tp{}", tp), .place = place};
      if (place != DraftPlace::kNone && place != DraftPlace::kHeads)
        run.draft_hardware = place == DraftPlace::kCpu ? "xeon8480:1b:1/2" : "h100:1b";
      run.groups = 8 / (tp + (place == DraftPlace::kOwn ? 1 : 0));
      if (run.groups == 0 || (place == DraftPlace::kCpu && run.groups > 4)) continue;
      if (place != DraftPlace::kNone) run.drafters = run.groups;
      run.delay_ms = options.delay_ms;
      run.gbit = options.gbit;
      run.arrivals = options.arrivals;
      run.requests = options.requests;
      run.prompt_tokens = options.prompt_tokens;
      run.output_tokens = options.output_tokens;
      for (const int texts : {8, 16, 32}) {
        run.max_num_seqs = texts;
        const auto played = play(run);
        if (!played.ok()) continue;  // no room
        best = std::max(best, played->figures.tokens_per_second);
        EXPECT_GE(advised, 0.99 * played->figures.tokens_per_second) << command_of(run);
      }
    }
  EXPECT_GT(best, 0.5 * advised);
}

// Eight devices as 1 x 8, 2 x 4, 4 x 2 and 8 x 1, plain, with drafters that all groups share, and with heads.
TEST(Plan, LayoutsOfSeveralGroupsAreWeighed) {
  PlanOptions options;
  options.model = "8b";
  options.requests = 64;
  options.output_tokens = 32;
  const Plan plan = make_plan(options).value();
  std::set<std::string> layouts;
  for (const PlanRow& row : plan.rows) {
    layouts.insert(layout_text(row));
    EXPECT_LE(row.devices, 8);
    EXPECT_EQ(row.run.coordinators, 1);
    const bool has_devices = row.run.place == DraftPlace::kOwn;
    EXPECT_EQ(row.devices, row.run.groups * row.tp + (has_devices ? row.run.drafters : 0));
    // Memory of the group's device alone: 16 GB of weights divided over tp devices.
    EXPECT_NE(row.memory.find(fmt::format("{:.1f} GB of weights", 16.06 / row.tp)), std::string::npos)
        << row.memory;
  }
  for (const char* layout : {"1 x tp8", "2 x tp4", "4 x tp2", "8 x tp1"})
    for (const char* drafts : {", no draft", ", draft in turns", ", draft on CPU", ", heads"})
      EXPECT_TRUE(layouts.contains(std::string(layout) + drafts)) << layout << drafts;
  for (const char* layout : {"7 x tp1 + 1 drafter", "6 x tp1 + 2 drafters", "4 x tp1 + 4 drafters",
                             "3 x tp2 + 2 drafters", "1 x tp4 + 4 drafters"})
    EXPECT_TRUE(layouts.contains(layout)) << layout;
}

TEST(Plan, TheFrontAndTheObjectivesAgree) {
  PlanOptions options;
  options.model = "8b";
  options.devices = 2;
  options.requests = 32;
  options.output_tokens = 64;
  options.arrivals = "closed:32";
  const Plan fast = make_plan(options).value();
  options.objective = "latency";
  const Plan quick = make_plan(options).value();
  EXPECT_GT(fast.rows.front().figures.tokens_per_second, quick.rows.front().figures.tokens_per_second);
  EXPECT_LT(quick.rows.front().figures.ms_per_token, fast.rows.front().figures.ms_per_token);
  size_t on_front = 0;
  for (const PlanRow& row : fast.rows) {
    on_front += row.on_front ? 1 : 0;
    if (!row.on_front) continue;
    for (const PlanRow& other : fast.rows) {
      EXPECT_FALSE(other.figures.tokens_per_second > row.figures.tokens_per_second &&
                   other.figures.ms_per_token < row.figures.ms_per_token);
    }
  }
  EXPECT_GE(on_front, 2u);
  // A limit between the two paces leaves what keeps it, the fastest of that first.
  const double limit = (fast.rows.front().figures.ms_per_token + quick.rows.front().figures.ms_per_token) / 2;
  options.objective = "throughput";
  options.service_level = fmt::format("token={}", limit);
  const Plan kept = make_plan(options).value();
  EXPECT_TRUE(kept.rows.front().keeps_level);
  EXPECT_LE(kept.rows.front().figures.ms_per_token, limit);
  for (const PlanRow& row : kept.rows)
    if (row.figures.ms_per_token <= limit) {
      EXPECT_LE(row.figures.tokens_per_second, 1.011 * kept.rows.front().figures.tokens_per_second);
    }
  options.service_level = "ttft=0.001ms";
  const Plan hopeless = make_plan(options).value();
  EXPECT_FALSE(hopeless.rows.front().keeps_level);
  EXPECT_NE(plan_text(options, hopeless).find("Nothing keeps ttft=0.001ms"), std::string::npos);
}

TEST(Plan, LimitsHaveUnits) {
  const ServiceLevel level = parse_service_level("ttft=0.5s,itl=20,pause=60ms").value();
  EXPECT_EQ(level.ttft, 500);
  EXPECT_EQ(level.itl, 20);
  EXPECT_EQ(level.pause, 60);
  EXPECT_FALSE(parse_service_level("").value().any());
  for (const char* bad : {"tftt=5", "ttft", "ttft=-1", "itl=x"})
    EXPECT_NE(parse_service_level(bad).status().message().find("write ttft=500ms"), std::string::npos) << bad;
}

TEST(Plan, ImpossibleHardwareIsAnErrorThatNamesIt) {
  const auto told = [](PlanOptions options) { return make_plan(options).status().message(); };
  EXPECT_NE(told({.devices = 1}).find("do not fit"), std::string::npos);
  EXPECT_NE(told({.gpu = "h10"}).find("did you mean 'h100'?"), std::string::npos);
  EXPECT_NE(told({.draft_model = "2b"}).find("no model preset '2b'"), std::string::npos);
  EXPECT_NE(told({.acceptance = "rates:2"}).find("rate 2 is not in 0..1"), std::string::npos);
  EXPECT_NE(told({.costs = "/no/such/report"}).find("/no/such/report: cannot be opened"), std::string::npos);
}

}  // namespace
}  // namespace outrider
