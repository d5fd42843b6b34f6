// A forward pass of a shape seen before allocates nothing, and receiving slices of q never allocates.
#include <gtest/gtest.h>

#include "target_worker/slice_inbox.h"
#include "tests/support/allocations.h"
#include "tests/target_worker/verify_support.h"

namespace outrider {
namespace {

using testing::allocations_here;

TEST(Allocation, NoneInSteadyState) {
  std::mt19937_64 rng(1);
  std::vector<TestRound> rounds;
  std::vector<TokenCounts> counts;
  std::vector<VerifyRequest> requests;
  for (int i = 0; i < 15; ++i) {
    rounds.push_back(random_round(rng, static_cast<Rule>(i % 5), 3000, 4));
    counts.push_back(counts_of(rounds.back()));
  }
  std::vector<float> raw;
  int64_t rows = 0;
  for (size_t i = 0; i < rounds.size(); ++i) {
    const TestRound& round = rounds[i];
    requests.push_back({.sampling = &round.params,
                        .round = round.round,
                        .base = round.base(),
                        .draft = round.draft,
                        .q_kind = round.q_kind,
                        .q = round.q,
                        .first_row = rows,
                        .counts = &counts[i]});
    for (const auto& row : round.raw) raw.insert(raw.end(), row.begin(), row.end());
    rows += static_cast<int64_t>(round.raw.size());
  }
  const auto group = make_single_collectives();
  ShardedVerifier verifier(*group);
  std::vector<float> shard(raw.size());
  const LogitsShard logits{TensorView<float, 2>(shard.data(), {rows, 3000}), {0, 3000}, 3000};
  for (int pass = 0; pass < 3; ++pass) {
    std::copy(raw.begin(), raw.end(), shard.begin());
    const int64_t before = allocations_here();
    verifier.verify(requests, logits);
    if (pass > 0) {
      EXPECT_EQ(allocations_here() - before, 0) << "pass " << pass;
    } else {
      EXPECT_GT(allocations_here() - before, 0);
    }
  }
}

// Hands out slices that were made before, and takes their storage back.
class PreparedEndpoint final : public Transport {
 public:
  Status send(PeerId, const Message&) override { return unsupported("this end only takes"); }
  std::optional<Incoming> receive(Clock::time_point) override {
    if (slices.empty()) return std::nullopt;
    Incoming incoming;
    incoming.message = std::move(slices.back());
    slices.pop_back();
    return incoming;
  }
  void recycle(QSlice slice) override { returned.push_back(std::move(slice)); }
  const TransportStats& stats() const override { return stats_; }

  std::vector<QSlice> slices, returned;

 private:
  TransportStats stats_;
};

// Dense rows of token and block rules, from the first slice on; verified without allocating, too, once a pass
// of the shape was seen.
TEST(Allocation, NoneForSlicesOfDenseQ) {
  constexpr int32_t kVocab = 3000, kDrafted = 4, kSequences = 6;
  std::mt19937_64 rng(2);
  auto owned = std::make_unique<PreparedEndpoint>();
  PreparedEndpoint& endpoint = *owned;
  SliceInbox inbox(std::move(owned), {.range = {0, kVocab}, .sequences = kSequences, .rows = 8});
  const auto group = make_single_collectives();
  ShardedVerifier verifier(*group);
  SamplingParams rules[] = {{.rule = Rule::kToken, .temperature = 1},
                            {.rule = Rule::kBlock, .temperature = 1}};
  std::vector<PlanEntry> entries(kSequences);
  for (int i = 0; i < kSequences; ++i) {
    entries[i].sequence = SequenceId(static_cast<uint64_t>(i));
    entries[i].q_kind = QKind::kSlices;
    for (int j = 0; j < kDrafted; ++j) entries[i].draft.emplace_back(static_cast<int32_t>(rng() % kVocab));
    inbox.slots().open(entries[i].sequence);
  }
  std::vector<SlicedQ> sliced(kSequences);
  std::vector<VerifyRequest> requests(kSequences);
  std::vector<float> shard(kSequences * (kDrafted + 1) * kVocab);
  const LogitsShard logits{
      TensorView<float, 2>(shard.data(), {kSequences * (kDrafted + 1), kVocab}), {0, kVocab}, kVocab};
  endpoint.returned.reserve(kSequences);
  for (uint32_t round = 1; round < 5; ++round) {
    endpoint.slices.clear();
    endpoint.returned.clear();
    for (PlanEntry& entry : entries) {
      entry.round = Round(round);
      endpoint.slices.push_back({.sequence = entry.sequence, .round = entry.round, .rows = kDrafted});
      for (int i = 0; i < kDrafted * kVocab; ++i)
        endpoint.slices.back().weights.push_back(static_cast<uint16_t>(1 + rng() % 2000));
    }
    for (float& logit : shard) logit = static_cast<float>(rng() % 1000) / 100;
    const int64_t before = allocations_here();
    inbox.gather(entries, *group, {}, sliced);
    EXPECT_EQ(allocations_here() - before, 0) << "round " << round;
    for (size_t i = 0; i < kSequences; ++i) {
      ASSERT_FALSE(sliced[i].lost);
      requests[i] = {.sampling = &rules[i % 2],
                     .round = entries[i].round,
                     .base = Position(10),
                     .draft = entries[i].draft,
                     .q_kind = QKind::kSlices,
                     .q = sliced[i].rows,
                     .q_drafted = sliced[i].drafted,
                     .first_row = static_cast<int64_t>(i) * (kDrafted + 1)};
    }
    const int64_t gathered = allocations_here();
    verifier.verify(requests, logits);
    if (round > 1) {
      EXPECT_EQ(allocations_here() - gathered, 0) << "round " << round;
    }
    EXPECT_EQ(endpoint.returned.size(), static_cast<size_t>(kSequences));
  }
}

}  // namespace
}  // namespace outrider
