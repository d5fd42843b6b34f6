// A draft of the target's first layers depends on the text and the request alone. It does not depend on
// ranks, on other drafts before or beside it, or on whether the device or the host draws.
#include "heads/early_exit_drafter.h"

#include <gtest/gtest.h>

#include "tests/heads/golden_heads.h"
#include "tests/model/model_suite.h"
#include "tests/support/whole_tests.h"

namespace outrider {
namespace {

constexpr int64_t kLayers = 1;

class NoStates final : public HiddenStateSource {
 public:
  void read(SequenceId, int64_t, FloatRows) override { FAIL() << "first layers read no states"; }
};

struct Ask {
  size_t tokens;  // of the text
  SamplingParams sampling;
  int32_t gamma;
  StopRule stop = {};
  int32_t row_bytes = 0;
};

// Every rule, with filters, penalties and stop rules, and more tokens than a device draws in a row.
std::vector<Ask> all_kinds() {
  const auto seeded = [](Rule rule, uint64_t seed) {
    return SamplingParams{
        .rule = rule, .temperature = rule == Rule::kGreedy ? 0.0f : 1.1f, .seed = Seed{seed}};
  };
  std::vector<Ask> asks{{5, seeded(Rule::kGreedy, 1), 4},
                        {17, seeded(Rule::kInvariant, 2), 20},
                        {1, seeded(Rule::kNaive, 3), 1},
                        {30, seeded(Rule::kToken, 4), 6},
                        {9, seeded(Rule::kBlock, 5), 3}};
  asks.push_back(asks[3]);
  asks.back().sampling.top_k = 20;
  asks.back().row_bytes = 64;
  asks.push_back(asks[1]);
  asks.back().sampling.top_p = 0.8f;
  asks.back().sampling.repetition_penalty = 1.3f;
  return asks;
}

// One rank of a target that drafts for texts in its cache.
class ExitDrafting {
 public:
  struct Limits {
    bool draws_there = true;  // where the target computes, if that is a device
    int64_t kv_tokens = 1600, max_positions = 60;
  };
  ExitDrafting(const std::string& name, Collectives& group, const Limits& limits)
      : model_(testing::load_or_die(
            testing::golden_model(name),
            {.device = {.kind = testing::suite_is_on_a_device() ? Device::Kind::kCuda : Device::Kind::kCpu},
             .shard = {group.rank(), group.size()},
             .max_positions = limits.max_positions,
             .run_sequences = limits.draws_there ? 8 : 0,
             .exit_layer = kLayers,
             .kv_tokens = limits.kv_tokens},
            group)),
        drafter_(*model_, group, kLayers, {.max_sequences = 8, .eos_ids = {TokenId(7), TokenId(90)}}),
        text_(testing::random_ids(static_cast<int>(limits.max_positions), model_->config().vocab_size, 3)) {}

  // For texts that were read anew. What the drafts leave in the cache is forgotten.
  std::vector<HeadDraft> draft(std::span<const Ask> asks) {
    std::vector<HeadTask> tasks;
    std::vector<TokenCounts> counts(asks.size());
    for (size_t i = 0; i < asks.size(); ++i) {
      const auto committed = std::span(text_).first(asks[i].tokens);
      counts[i].add_output(committed);
      tasks.push_back({.sequence = SequenceId(i),
                       .committed = committed,
                       .sampling = &asks[i].sampling,
                       .counts = &counts[i],
                       .round = Round(2),
                       .gamma = asks[i].gamma,
                       .stop = asks[i].stop,
                       .row_bytes = asks[i].row_bytes,
                       .kv = read(committed.first(committed.size() - 1))});
    }
    auto drafts = draft_for(tasks);
    for (size_t i = 0; i < asks.size(); ++i) {
      drafter_.close(SequenceId(i));
      model_->kv().release(tasks[i].kv);
    }
    return drafts;
  }

  std::vector<HeadDraft> draft_for(std::span<const HeadTask> tasks) {
    std::vector<HeadDraft> drafts;
    drafter_.draft(tasks, hidden_states_, drafts);
    for (const HeadTask& task : tasks)
      EXPECT_EQ(model_->kv().length(task.kv), static_cast<int64_t>(task.committed.size()) - 1);
    return drafts;
  }

  KvHandle read(std::span<const TokenId> ids) {
    const KvHandle sequence = model_->kv().create();
    append(sequence, ids);
    return sequence;
  }
  void append(KvHandle sequence, std::span<const TokenId> ids) {
    const BatchSlice slice{sequence, ids, 0};
    if (ids.empty()) return;
    EXPECT_TRUE(model_->forward({&slice, 1}).ok());
  }
  Model& model() { return *model_; }

 private:
  const std::unique_ptr<Model> model_;
  EarlyExitDrafter drafter_;
  NoStates hidden_states_;
  const std::vector<TokenId> text_;
};

void expect_same(const HeadDraft& a, const HeadDraft& b, const std::string& what) {
  EXPECT_EQ(a.ids, b.ids) << what;
  EXPECT_EQ(a.eos, b.eos) << what;
  ASSERT_EQ(a.q.size(), b.q.size()) << what;
  for (size_t i = 0; i < a.q.size(); ++i) {
    EXPECT_EQ(a.q[i].weights, b.q[i].weights) << what << ", row " << i;
    EXPECT_EQ(a.q[i].ids, b.q[i].ids) << what << ", row " << i;
  }
}

void expect_same(const std::vector<HeadDraft>& a, const std::vector<HeadDraft>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) expect_same(a[i], b[i], fmt::format("{}, draft {}", what, i));
}

class FirstLayersDraft : public ::testing::TestWithParam<std::string> {
 protected:
  std::vector<HeadDraft> drafts_of(int ranks, const ExitDrafting::Limits& limits, std::span<const Ask> asks) {
    std::vector<std::vector<HeadDraft>> drafts(static_cast<size_t>(ranks));
    testing::run_group(ranks, [&](Collectives& group) {
      drafts[static_cast<size_t>(group.rank())] = ExitDrafting(GetParam(), group, limits).draft(asks);
    });
    for (const auto& of_rank : drafts) expect_same(drafts[0], of_rank, fmt::format("{} ranks", ranks));
    return drafts[0];
  }
};

TEST_P(FirstLayersDraft, TheSameOnAnyNumberOfRanksAndAlone) {
  auto asks = all_kinds();
  for (const StopKind stop : {StopKind::kNone, StopKind::kConfidence, StopKind::kSvip}) {
    for (Ask& ask : asks)
      ask.stop = {.kind = stop, .threshold = stop == StopKind::kSvip ? 2.2f : 0.02f, .scale = 1};
    const auto expected = drafts_of(1, {.draws_there = false}, asks);
    size_t tokens = 0, rows = 0;
    for (const HeadDraft& draft : expected) tokens += draft.ids.size(), rows += draft.q.size();
    EXPECT_GT(tokens, stop == StopKind::kNone ? 40u : 7u);
    EXPECT_GT(rows, 3u);
    // Where a draft ends is decided on the host, from what all ranks know: a device has one number of ranks.
    const bool is_thin =
        stop != StopKind::kNone && testing::suite_is_on_a_device() && !testing::runs_whole_grids();
    for (const int ranks : is_thin ? std::vector{2} : std::vector{1, 2, 4})
      expect_same(drafts_of(ranks, {}, asks), expected, fmt::format("{} ranks", ranks));
    const auto single = make_single_collectives();
    ExitDrafting alone(GetParam(), *single, {});
    for (size_t i = 0; i < asks.size(); ++i)
      expect_same(alone.draft(std::span(asks).subspan(i, 1)).front(), expected[i],
                  fmt::format("alone, draft {}", i));
  }
}

// Where texts end, and where the cache has no room for all that was asked for.
TEST_P(FirstLayersDraft, AsMuchAsThereIsRoomFor) {
  const std::vector<Ask> asks{{20, {.rule = Rule::kGreedy, .temperature = 0}, 9},
                              {14, {.rule = Rule::kToken, .temperature = 1, .seed = Seed{3}}, 40},
                              {24, {.rule = Rule::kGreedy, .temperature = 0}, 9},
                              {23, {.rule = Rule::kInvariant, .temperature = 1, .seed = Seed{4}}, 9}};
  for (const int64_t blocks : {7, 8, 20}) {
    const ExitDrafting::Limits limits{.kv_tokens = blocks * kBlockTokens, .max_positions = 24};
    ExitDrafting::Limits on_the_host = limits;
    on_the_host.draws_there = false;
    const auto expected = drafts_of(1, on_the_host, asks);
    for (const int ranks : {1, 2})
      expect_same(drafts_of(ranks, limits, asks), expected,
                  fmt::format("{} blocks, {} ranks", blocks, ranks));
    if (blocks < 20) continue;
    EXPECT_LE(expected[0].ids.size(), 5u);  // the last token of a text is in no pass
    EXPECT_LE(expected[2].ids.size(), 1u);
  }
}

// Rounds of a text whose drafts are accepted in part, beside another text: the draft of a sequence that was
// just read.
TEST_P(FirstLayersDraft, AfterRejectionsWhatAFreshOneDrafts) {
  const auto single = make_single_collectives();
  ExitDrafting drafting(GetParam(), *single, {});
  const auto vocab = static_cast<uint32_t>(drafting.model().config().vocab_size);
  std::mt19937 random(5);
  const SamplingParams sampling{.rule = Rule::kToken, .temperature = 1.2f, .seed = Seed{9}};
  const SamplingParams other{.rule = Rule::kGreedy, .temperature = 0};
  auto text = testing::random_ids(5, vocab, 1);
  const KvHandle kv = drafting.read(std::span(text).first(4));
  for (uint32_t round = 1; text.size() < 40; ++round) {
    const KvHandle fresh = drafting.read(std::span(text).first(text.size() - 1));
    HeadTask task{.sequence = SequenceId(1),
                  .committed = text,
                  .sampling = &sampling,
                  .round = Round(round),
                  .gamma = 1 + static_cast<int32_t>(random() % 5),
                  .kv = kv};
    HeadTask beside{.sequence = SequenceId(2),
                    .committed = std::span(text),
                    .sampling = &other,
                    .round = Round(round),
                    .gamma = 3,
                    .kv = fresh};
    const auto together = drafting.draft_for(std::array{beside, task});
    task.sequence = SequenceId(round + 2);
    task.kv = fresh;
    const auto alone = drafting.draft_for({&task, 1});
    drafting.model().kv().release(fresh);
    expect_same(together[1], alone[0], fmt::format("round {}", round));
    const size_t before = text.size();
    const auto accepted = static_cast<ptrdiff_t>(random() % (alone[0].ids.size() + 1));
    text.insert(text.end(), alone[0].ids.begin(), alone[0].ids.begin() + accepted);
    text.emplace_back(static_cast<int32_t>(random() % vocab));
    drafting.append(kv, std::span(text).subspan(before - 1, text.size() - before));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, FirstLayersDraft, ::testing::Values("qwen3", "qwen3-bf16", "deepseek-v3"),
                         [](const auto& of) {
                           std::string name = of.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace outrider
