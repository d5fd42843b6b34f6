// How often the host waits for a device while a head drafts. On the emulation, which counts it.
#include <gtest/gtest.h>

#include <random>

#include "heads/head_drafter.h"
#include "tests/emulation/stream.h"
#include "tests/heads/golden_heads.h"

namespace outrider {
namespace {

// States that depend on their position.
class AnyStates final : public StateSource {
 public:
  explicit AnyStates(Head& head) : head_(head) {}
  void read(SequenceId, int64_t first, FloatRows to) override {
    const FloatRows written = head_.compute().open(to);
    for (int64_t r = 0; r < to.extent(0); ++r) {
      std::mt19937 random(static_cast<uint32_t>(first + r));
      for (float& x : written.row(r)) x = static_cast<float>(random() % 2001) / 500 - 2;
    }
    head_.compute().close(to);
  }

 private:
  Head& head_;
};

class WaitsOfHeads : public ::testing::TestWithParam<testing::GoldenHead> {
 protected:
  static constexpr int32_t kSequences = 3;

  // Waits of one draft, of so many tokens at most, behind texts that were read before.
  uint64_t waits(std::vector<int32_t> gammas, const SamplingParams& sampling, StopRule stop = {}) {
    std::vector<HeadTask> tasks;
    for (size_t i = 0; i < gammas.size(); ++i)
      tasks.push_back({.sequence = SequenceId(i),
                       .committed = std::span(text_).first(text_.size() - i),
                       .sampling = &sampling,
                       .round = Round(1),
                       .gamma = gammas[i],
                       .stop = stop});
    drafter_->draft(tasks, states_, drafts_);
    for (HeadTask& task : tasks) task.round = Round(2);
    const uint64_t before = cuda::emulation::host_waits();
    drafter_->draft(tasks, states_, drafts_);
    return cuda::emulation::host_waits() - before;
  }

  const std::unique_ptr<Head> head_ = testing::load_head_or_die(
      GetParam(), {.max_sequences = kSequences, .max_positions = 120, .kv_tokens = kSequences * 160});
  const std::unique_ptr<HeadDrafter> drafter_ = make_head_drafter(*head_, {.max_sequences = kSequences});
  AnyStates states_{*head_};
  const std::vector<TokenId> text_ = std::vector<TokenId>(30, TokenId(9));
  std::vector<HeadDraft> drafts_;
};

TEST_P(WaitsOfHeads, OneForADraft) {
  for (const Rule rule : {Rule::kGreedy, Rule::kInvariant, Rule::kToken}) {
    const SamplingParams sampling{.rule = rule, .temperature = rule == Rule::kGreedy ? 0.0f : 1.0f};
    EXPECT_EQ(waits({5}, sampling), 1u) << rule_name(rule);
    EXPECT_GT(drafts_[0].ids.size(), 1u);
    EXPECT_EQ(waits({2, 5, 1}, sampling), 1u) << rule_name(rule);
    EXPECT_EQ(drafts_[2].ids.size(), 1u);
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, WaitsOfHeads, ::testing::ValuesIn(testing::kGoldenHeads),
                         testing::head_test_name);

class WaitsOfPairs : public WaitsOfHeads {};

// Which one ends it, the host says.
TEST_P(WaitsOfPairs, OneForATokenThatMayBeTheLast) {
  const SamplingParams sampling{.rule = Rule::kInvariant, .temperature = 1};
  EXPECT_EQ(waits({5}, sampling, {.kind = StopKind::kSvip, .threshold = 100, .scale = 1}), 5u);
  EXPECT_EQ(waits({5}, sampling, {.kind = StopKind::kConfidence, .threshold = 1}), 1u);
  EXPECT_EQ(drafts_[0].ids.size(), 1u);
}

// Longer drafts are drawn in turns of sixteen tokens, and those with rows of q in shorter ones.
TEST_P(WaitsOfPairs, OneForATurnOfALongDraft) {
  EXPECT_EQ(waits({40}, {.rule = Rule::kGreedy, .temperature = 0}), 3u);
  EXPECT_EQ(drafts_[0].ids.size(), 40u);
  EXPECT_EQ(waits({9, 9, 9}, {.rule = Rule::kToken, .temperature = 1}), 2u);
}

INSTANTIATE_TEST_SUITE_P(Heads, WaitsOfPairs, ::testing::ValuesIn(testing::kPairHeads),
                         testing::head_test_name);

}  // namespace
}  // namespace outrider
