// A draft worker that drafts ahead, under a p/q rule with dense q in slices, allocates no memory in a spec
// step whose shape it has seen before.
#include <gtest/gtest.h>

#include "draft_worker/draft_worker.h"
#include "tests/support/allocations.h"
#include "toy_language_model.h"
#include "toy_model.h"

namespace outrider {
namespace {

using testing::allocations_here;

constexpr int kGamma = 4, kMaxPositions = 1500;

// Keeps the ids of the last draft and nothing else.
class LastDraft final : public Transport {
 public:
  Status send(PeerId, const Message& message) override {
    if (const auto* draft = std::get_if<Draft>(&message)) {
      ids.assign(draft->ids.begin(), draft->ids.end());
      rows_with_drafts += draft->q.size();
      hits += draft->preparation.hit;
    } else {
      slices += std::holds_alternative<QSlice>(message);
    }
    return {};
  }
  std::optional<Incoming> receive(Clock::time_point) override { return std::nullopt; }
  const TransportStats& stats() const override { return stats_; }

  std::vector<TokenId> ids;
  size_t rows_with_drafts = 0;
  int hits = 0, slices = 0;

 private:
  TransportStats stats_;
};

// The committed tokens: the accepted part of the draft and one more token. `surprise`: that last token is one
// that no draft model predicts.
std::vector<TokenId> verdict(std::vector<TokenId> text, std::span<const TokenId> draft, bool surprise) {
  const size_t begin = text.size();
  for (const TokenId id : draft) {
    if (id != toy_next(text)) break;
    text.push_back(id);
  }
  text.push_back(surprise ? TokenId((toy_next(text).value() + 17) % kToyVocab) : toy_next(text));
  return {text.begin() + static_cast<ptrdiff_t>(begin), text.end()};
}

TEST(DraftingAllocation, NoneInSteadyState) {
  const auto model = make_toy_language_model(
      {.accuracy = 0.7, .max_positions = kMaxPositions, .kv_blocks = 2 * kMaxPositions / kBlockTokens});
  const auto drafter = make_model_drafter(*model, {.max_sequences = 1});
  LastDraft coordinator;
  std::vector<std::unique_ptr<Transport>> endpoints;
  for (int r = 0; r < 2; ++r) endpoints.push_back(std::make_unique<LastDraft>());
  auto* const endpoint = static_cast<LastDraft*>(endpoints[0].get());
  SliceSender slices(std::move(endpoints), kToyVocab, Generation(1));
  DraftWorker worker(*drafter, coordinator, {.slices = &slices});

  std::vector<TokenId> text{TokenId(3)};
  worker.handle(Open{.sequence = SequenceId(1),
                     .ids = text,
                     .prompt_length = 1,
                     .sampling = {.rule = Rule::kToken, .temperature = 1, .seed = Seed{7}}});
  std::vector<TokenId> committed;
  int64_t allocated = 0;
  for (uint32_t round = 1; round <= 200; ++round) {
    const Message propose = Propose{.sequence = SequenceId(1),
                                    .round = Round(round),
                                    .base = Position(static_cast<int32_t>(text.size())),
                                    .committed = committed,
                                    .gamma = kGamma,
                                    .q_kind = QKind::kSlices,
                                    .pipeline = Pipeline::kFanout,
                                    .fanout = 6};
    const int64_t before = allocations_here();
    worker.handle(propose);
    while (worker.work()) continue;
    if (round > 100) allocated += allocations_here() - before;
    ASSERT_EQ(coordinator.ids.size(), static_cast<size_t>(kGamma));
    committed = verdict(text, coordinator.ids, round % 5 == 0);
    text.insert(text.end(), committed.begin(), committed.end());
  }
  EXPECT_EQ(allocated, 0);
  EXPECT_EQ(endpoint->slices, 200);
  EXPECT_EQ(coordinator.rows_with_drafts, 0u);
  EXPECT_GT(coordinator.hits, 50);
  EXPECT_LT(coordinator.hits, 190);
}

}  // namespace
}  // namespace outrider
