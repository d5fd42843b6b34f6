// The same schedules with what travels beside the protocol's messages: slices of q, rows of hidden states,
// and a head that drafts in both places.
#include <gtest/gtest.h>

#include "coordinator/gamma/policies.h"
#include "simulated_schedules.h"

namespace outrider {
namespace {

using namespace schedules;  // NOLINT: the names of these tests

// Dense q in slices. In every schedule a draft is either verified with the distributions it was drawn from,
// in all slices, or dropped by all ranks.
TEST_F(ProtocolSimulation, SlicesWithoutFaultsAreAllUsed) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed) run_slices(seed, {});
  EXPECT_GT(accepted_, 1000);
  EXPECT_GT(hits_, 1000);
  EXPECT_GT(sliced_, 5000);
  EXPECT_EQ(dropped_unprobed_, 0);
}

TEST_F(ProtocolSimulation, SlicesThatAreLost) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_slices(seed, {.slices = {.drop = 0.02}});
  EXPECT_GT(slices_struck_.drop, 300);
  EXPECT_GT(sliced_, 1000);
  EXPECT_GT(dropped(DropReason::kSliceMissing), 300);
}

TEST_F(ProtocolSimulation, SlicesOfOneRankThatAreLostOrLate) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_slices(seed,
               {.slices = {.drop = 0.03, .max_delay_us = 12'000, .only_rank = static_cast<int>(seed % 2)}});
  EXPECT_GT(sliced_, 1000);
  EXPECT_GT(dropped(DropReason::kSliceMissing), 100);
}

// As long as none is lost and none too late, nothing is given up.
TEST_F(ProtocolSimulation, SlicesThatAreRepeatedAndReordered) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_slices(seed, {.slices = {.duplicate = 0.5, .max_delay_us = 5'000, .reorder = true}});
  EXPECT_GT(slices_struck_.duplicate, 5000);
  EXPECT_GT(sliced_, 5000);
  EXPECT_EQ(dropped(DropReason::kSliceMissing), 0);
}

TEST_F(ProtocolSimulation, SlicesThatAreCorruptOrRefused) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_slices(seed, {.slices = {.corrupt = 0.02, .refuse_send = 0.1}});
  EXPECT_GT(slices_struck_.corrupt, 300);
  EXPECT_GT(slices_struck_.refuse_send, 300);
  EXPECT_GT(sliced_, 1000);
  EXPECT_GT(dropped(DropReason::kSliceMissing), 100);
}

// Drafts that come too late leave slices behind, which must not pass for those of a later round.
TEST_F(ProtocolSimulation, SlicesOfStaleDrafts) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_slices(seed, {.drop = 0.1,
                      .duplicate = 0.2,
                      .max_delay_us = 30'000,
                      .reorder = true,
                      .slices = {.max_delay_us = 9'000, .reorder = true}});
  EXPECT_GT(sliced_, 1000);
  EXPECT_GT(dropped(DropReason::kStaleRound), 100);
}

TEST_F(ProtocolSimulation, SlicesAndEverythingAtOnce) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_slices(seed, {.drop = 0.05,
                      .duplicate = 0.1,
                      .corrupt = 0.05,
                      .refuse_send = 0.05,
                      .max_delay_us = 5'000,
                      .reorder = true,
                      .worker_death = 0.05,
                      .silent_death = seed % 2 == 0,
                      .nonfinite = 0.01,
                      .target_failure = 0.002,
                      .cancel = 0.02,
                      .slices = {.drop = 0.02,
                                 .duplicate = 0.1,
                                 .corrupt = 0.02,
                                 .refuse_send = 0.02,
                                 .max_delay_us = 8'000,
                                 .reorder = true}});
  EXPECT_GT(sliced_, 1000);
  EXPECT_GT(dropped(DropReason::kSliceMissing), 100);
}

// Drafters that need hidden states of the target: every row belongs to its text, and lost rows are sent
// again.
TEST_F(ProtocolSimulation, RowsOfStatesWithoutFaults) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed) run_states(seed, {});
  EXPECT_GT(accepted_, 1000);
  EXPECT_GT(told_, 10'000);
  // A round whose rows are on their way when it is asked once more is drafted for twice.
  EXPECT_LT(dropped_unprobed_, accepted_ / 100);
  for (const DropReason reason : {DropReason::kWrongBase, DropReason::kWrongHash, DropReason::kBadIds})
    EXPECT_EQ(dropped(reason), 0);
}

TEST_F(ProtocolSimulation, RowsOfStatesThatAreLostLateOrTwice) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_states(seed, {.drop = 0.2, .duplicate = 0.3, .max_delay_us = 30'000, .reorder = true});
  EXPECT_GT(accepted_, 500);
}

TEST_F(ProtocolSimulation, RowsOfStatesForWorkersThatDie) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_states(seed, {.worker_death = 0.1, .silent_death = seed % 2 == 0});
  EXPECT_GT(struck_.worker_death, 500);
  EXPECT_GT(accepted_, 1000);
}

TEST_F(ProtocolSimulation, RowsOfStatesThroughFullQueuesAndALittleMemory) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_states(seed, {.refuse_send = 0.1}, 6 + static_cast<int64_t>(seed % 6));
  EXPECT_GT(struck_.refuse_send, 500);
  EXPECT_GT(preemptions_, 100);
  EXPECT_GT(accepted_, 300);
}

TEST_F(ProtocolSimulation, RowsOfStatesWithEverythingAtOnce) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_states(seed, everything(seed, 0.002), 0, 1 + static_cast<int32_t>(seed % 2));
  EXPECT_GT(accepted_, 200);
}

// Rows of a text are the same in every group, so a worker goes on with those that it has.
TEST_F(ProtocolSimulation, RowsOfStatesOfGroupsThatDie) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_states(seed, {.target_failure = 0.02}, 0, 3);
  EXPECT_GT(failovers_, 100);
  EXPECT_GT(accepted_, 1000);
}

// ---- a head in both places ------------------------------------------------------------------------------

TEST_F(ProtocolSimulation, AHeadInBothPlacesWithoutFaults) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed) run_places(seed, {});
  EXPECT_GT(accepted_, 10'000);
  EXPECT_GT(at_target_, 10'000);
  EXPECT_GT(at_worker_, 500);
}

TEST_F(ProtocolSimulation, AHeadInBothPlacesWhereRowsAreLostLateOrTwice) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_places(seed, {.drop = 0.2, .duplicate = 0.3, .max_delay_us = 30'000, .reorder = true});
  EXPECT_GT(accepted_, 10'000);
  EXPECT_GT(at_worker_, 100);
}

TEST_F(ProtocolSimulation, AHeadInBothPlacesWithWorkersThatDie) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_places(seed, {.worker_death = 0.1, .silent_death = seed % 2 == 0});
  EXPECT_GT(struck_.worker_death, 100);
  EXPECT_GT(accepted_, 10'000);
}

TEST_F(ProtocolSimulation, AHeadInBothPlacesWithEverythingAtOnce) {
  for (uint64_t seed = 0; seed < kSchedules && !HasFailure(); ++seed)
    run_places(seed, everything(seed, 0.002), seed % 3 == 0 ? 8 : 0, 1 + static_cast<int32_t>(seed % 3));
  EXPECT_GT(accepted_, 1000);
  EXPECT_GT(at_worker_, 50);
}

// A hundred texts, one by one, where a pass takes 500 us.
struct PlacesRun {
  PlacesRun(int64_t own_draft_us, int64_t link_us, int workers) {
    ProtocolOptions options;
    options.max_num_seqs = 1;
    SimulatedCluster cluster(7, options, parse_gamma_policy("fixed:gamma=3").value(),
                             {.max_delay_us = link_us}, workers, 0.8, 0, 0, true);
    cluster.draft_at_targets(500, own_draft_us);
    std::vector<SimulatedRequest> requests(100);
    for (size_t i = 0; i < requests.size(); ++i) {
      for (int32_t n = 0; n < 4; ++n)
        requests[i].request.prompt.emplace_back((static_cast<int32_t>(i) + n) % kToyVocab);
      requests[i].request.max_tokens = 80;
      requests[i].request.ignore_eos = true;
      requests[i].submit_at_us = 200'000;  // all have joined
    }
    EXPECT_TRUE(cluster.run(requests));
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(cluster.outcomes().at(SequenceId(i + 1)).ids, plain(requests[i].request));
    totals = cluster.protocol().totals();
    seconds = totals.wall_seconds();
  }
  double worker_share() const {
    const auto at_worker = static_cast<double>(totals.head_rounds_at_worker);
    return at_worker / (at_worker + static_cast<double>(totals.head_rounds_at_target));
  }
  Totals totals;
  double seconds;
};

TEST(HeadInBothPlaces, DraftsWhereRoundsAreShorter) {
  const PlacesRun alone(50, 100, 0), far(50, 5'000, 1), hopeless(50, 50'000, 1),
      slow_at_target(3'000, 100, 1);
  EXPECT_EQ(alone.totals.head_rounds_at_worker, 0);
  EXPECT_LT(far.worker_share(), 0.02);
  EXPECT_LT(far.seconds, 1.03 * alone.seconds);
  EXPECT_EQ(hopeless.totals.head_rounds_at_worker, 0) << "rehearsals alone";
  EXPECT_LT(hopeless.seconds, 1.01 * alone.seconds);
  EXPECT_GT(slow_at_target.worker_share(), 0.7);
  EXPECT_LT(slow_at_target.seconds, 0.6 * PlacesRun(3'000, 100, 0).seconds);
}

}  // namespace
}  // namespace outrider
