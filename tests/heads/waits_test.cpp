// Number of waits for the device and of bytes copied to the host while a head drafts. The emulation counts
// both.
#include <gtest/gtest.h>

#include <random>

#include "base/draft_tree.h"
#include "heads/early_exit_drafter.h"
#include "kernels/sampling/penalties.h"
#include "tests/emulation/stream.h"
#include "tests/heads/golden_heads.h"

namespace outrider {
namespace {

// States that depend on their position.
class AnyStates final : public HiddenStateSource {
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

  // Number of waits for the device in one draft of at most `gammas` tokens for each sequence, after the texts
  // have been prefilled.
  uint64_t waits(std::vector<int32_t> gammas, const SamplingParams& sampling, StopRule stop = {}) {
    std::vector<HeadTask> tasks;
    for (size_t i = 0; i < gammas.size(); ++i)
      tasks.push_back({.sequence = SequenceId(i),
                       .committed = std::span(text_).first(text_.size() - i),
                       .sampling = &sampling,
                       .round = Round(1),
                       .gamma = gammas[i],
                       .stop = stop});
    drafter_->draft(tasks, hidden_states_, drafts_);
    for (HeadTask& task : tasks) task.round = Round(2);
    const uint64_t before = cuda::emulation::host_waits();
    drafter_->draft(tasks, hidden_states_, drafts_);
    return cuda::emulation::host_waits() - before;
  }

  const std::unique_ptr<Head> head_ = testing::load_head_or_die(
      GetParam(), {.max_sequences = kSequences, .max_positions = 120, .kv_tokens = kSequences * 160});
  const std::unique_ptr<HeadDrafter> drafter_ = make_head_drafter(*head_, {.max_sequences = kSequences});
  AnyStates hidden_states_{*head_};
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

// A target's first layers, too; besides, the inputs of the steps behind the first one wait until its own,
// which are read at once, have left the host.
TEST(WaitsOfFirstLayers, OneForADraftBesidesItsInputs) {
  constexpr int32_t kGamma = 5;
  const auto single = make_single_collectives();
  const auto target = testing::load_or_die(testing::golden_model("qwen3-bf16"),
                                           {.device = {.kind = Device::Kind::kCuda},
                                            .max_positions = 60,
                                            .run_sequences = 2,
                                            .exit_layer = 1,
                                            .kv_tokens = 120},
                                           *single);
  EarlyExitDrafter drafter(*target, *single, 1, {.max_sequences = 2});
  const std::vector<TokenId> text(9, TokenId(9));
  const KvHandle kv = target->kv().create();
  const BatchSlice slice{kv, std::span(text).first(8), 0};
  ASSERT_TRUE(target->forward({&slice, 1}).ok());
  class NoStates final : public HiddenStateSource {
    void read(SequenceId, int64_t, FloatRows) override { FAIL(); }
  } hidden_states;
  const StopRule watched{.kind = StopKind::kSvip, .threshold = 100, .scale = 1};
  for (const auto& [rule, stop, expected] : {std::tuple{Rule::kInvariant, StopRule(), 2},
                                             {Rule::kToken, StopRule(), 2},
                                             {Rule::kGreedy, watched, kGamma}}) {
    const SamplingParams sampling{.rule = rule, .temperature = rule == Rule::kGreedy ? 0.0f : 1.0f};
    const HeadTask task{.sequence = SequenceId(1),
                        .committed = text,
                        .sampling = &sampling,
                        .round = Round(1),
                        .gamma = kGamma,
                        .stop = stop,
                        .kv = kv};
    std::vector<HeadDraft> drafts;
    const uint64_t before = cuda::emulation::host_waits();
    drafter.draft({&task, 1}, hidden_states, drafts);
    EXPECT_EQ(cuda::emulation::host_waits() - before, static_cast<uint64_t>(expected)) << rule_name(rule);
    EXPECT_EQ(drafts[0].ids.size(), static_cast<size_t>(kGamma));
  }
}

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

// Trees whose nodes are ranked on the device.
class TreesThere : public ::testing::TestWithParam<testing::GoldenHead> {
 protected:
  static constexpr int32_t kSequences = 3;
  static constexpr uint64_t kRowBytes = 64;  // that come to the host

  struct Cost {
    uint64_t waits, bytes;
  };
  // Cost of drafts for texts that have been prefilled.
  Cost draft(const SamplingParams& sampling, const TreeShape& shape, size_t sequences = 1) {
    std::vector<HeadTask> tasks;
    for (size_t i = 0; i < sequences; ++i)
      tasks.push_back({.sequence = SequenceId(i),
                       .committed = std::span(text_).first(text_.size() - i),
                       .sampling = &sampling,
                       .counts = &counts_,
                       .round = Round(1),
                       .gamma = 3,
                       .tree = &shape});
    drafter_->draft(tasks, hidden_states_, drafts_);
    const Cost before{cuda::emulation::host_waits(), cuda::emulation::bytes_to_host()};
    drafter_->draft(tasks, hidden_states_, drafts_);
    return {cuda::emulation::host_waits() - before.waits, cuda::emulation::bytes_to_host() - before.bytes};
  }

  // The same logits: biases of nothing, which are more than the device was planned for.
  static SamplingParams ranked_on_the_host(SamplingParams sampling) {
    sampling.logit_bias.insert(sampling.logit_bias.end(), 10'000, {TokenId(7), 0.0f});
    return sampling;
  }

  const std::unique_ptr<Head> head_ = testing::load_head_or_die(
      GetParam(),
      {.max_sequences = kSequences, .max_positions = 120, .kv_tokens = kSequences * 160, .tree_nodes = 64});
  const std::unique_ptr<HeadDrafter> drafter_ = make_head_drafter(*head_, {.max_sequences = kSequences});
  AnyStates hidden_states_{*head_};
  const std::vector<TokenId> text_ = std::vector<TokenId>(30, TokenId(9));
  const TokenCounts counts_ = [this] {
    TokenCounts counts;
    counts.add_output(text_);
    return counts;
  }();
  const TreeShape fixed_{.widths = {3, 2, 2}}, best_{.widths = {}, .nodes = 9};
  std::vector<HeadDraft> drafts_;
};

TEST_P(TreesThere, AreThoseThatTheHostRanks) {
  int nodes = 0;
  for (const Rule rule : {Rule::kGreedy, Rule::kInvariant, Rule::kNaive})
    for (int filters = 0; filters < 3; ++filters) {
      const TreeShape& shape = (filters + static_cast<int>(rule)) % 2 ? best_ : fixed_;
      const SamplingParams sampling{.rule = rule,
                                    .temperature = rule == Rule::kGreedy ? 0.0f : 1.1f,
                                    .top_k = filters == 1 ? 12 : 0,
                                    .min_p = filters == 2 ? 0.01f : 0.0f,
                                    .repetition_penalty = filters == 2 ? 1.5f : 1.0f,
                                    .seed = Seed{5}};
      const auto what = std::string(rule_name(rule)) + ", " + std::to_string(filters);
      const Cost there = draft(sampling, shape, kSequences);
      const auto drafted = drafts_;
      const Cost here = draft(ranked_on_the_host(sampling), shape, kSequences);
      for (size_t i = 0; i < drafted.size(); ++i) {
        EXPECT_EQ(drafted[i].ids, drafts_[i].ids) << what;
        EXPECT_EQ(drafted[i].parents, drafts_[i].parents) << what;
        nodes += static_cast<int>(drafted[i].ids.size());
      }
      EXPECT_LT(there.bytes, here.bytes) << what;
    }
  EXPECT_GT(nodes, 9 * kSequences * 6);
}

// Every depth but the last is looked behind, and the root.
TEST_P(TreesThere, OneWaitForADepth) {
  for (const Rule rule : {Rule::kGreedy, Rule::kInvariant}) {
    const SamplingParams sampling{.rule = rule, .temperature = rule == Rule::kGreedy ? 0.0f : 1.0f};
    for (const size_t sequences : {1, 2}) {
      const Cost cost = draft(sampling, fixed_, sequences);
      const auto depth = static_cast<size_t>(tree_depth({drafts_[0].ids, drafts_[0].parents}));
      const bool is_one_by_one = head_->config().kind == HeadKind::kHydra;
      EXPECT_EQ(cost.waits, is_one_by_one ? depth * sequences : depth) << rule_name(rule);
      EXPECT_LE(cost.bytes, sequences * (1 + 3 + 6) * kRowBytes) << rule_name(rule);
      EXPECT_EQ(drafts_[0].ids.size(), depth == 3 ? 3u + 6u + 12u : 3u + 6u);
    }
  }
}

// Rows for rules with q come to the host once, however deep the tree is.
TEST_P(TreesThere, RowsForTheHostComeOnce) {
  if (head_->config().kind != HeadKind::kMedusa) GTEST_SKIP() << "each depth has rows of its own";
  const SamplingParams sampling{.rule = Rule::kSpecInfer, .temperature = 1.0f};
  const TreeShape flat{.widths = {3}};
  EXPECT_EQ(draft(sampling, fixed_).bytes, draft(sampling, flat).bytes);
}

INSTANTIATE_TEST_SUITE_P(Heads, TreesThere, ::testing::ValuesIn(testing::kGoldenHeads),
                         testing::head_test_name);

}  // namespace
}  // namespace outrider
