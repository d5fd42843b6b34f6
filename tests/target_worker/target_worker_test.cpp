// One rank's loop: plans in, verdicts out, and a KV cache that always equals a fresh prefill.
#include "target_worker/target_worker.h"

#include <gtest/gtest.h>

#include <future>
#include <random>
#include <utility>

#include "base/hash.h"
#include "tests/support/test_models.h"

namespace outrider {
namespace {

constexpr SequenceId kSequence(7);
constexpr int kVocab = 302;

std::vector<TokenId> random_ids(int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids;
  for (int i = 0; i < count; ++i) ids.emplace_back(static_cast<int32_t>(random() % kVocab));
  return ids;
}

struct Rank {
  explicit Rank(int max_sequences = 2) : options{.max_sequences = max_sequences} {}
  std::unique_ptr<Collectives> group = make_single_collectives();
  std::unique_ptr<Model> model =
      testing::load_or_die(testing::golden_model("qwen3"), {.max_positions = 120, .kv_tokens = 400}, *group);
  TargetOptions options;
  TargetWorker worker{*model, *group, options};
};

// The coordinator's view of one sequence.
struct Mirror {
  std::vector<TokenId> ids;
  int64_t kv = 0;
  Epoch epoch;
  uint64_t hash() const { return state_hash_term(kSequence, static_cast<int64_t>(ids.size()), kv, epoch); }
};

StepPlan plan_of(const Mirror& mirror, uint64_t step, std::vector<TokenId> draft, int32_t input_count) {
  return {.step = step,
          .state_hash = mirror.hash(),
          .entries = {{.sequence = kSequence,
                       .epoch = mirror.epoch,
                       .round = Round(static_cast<uint32_t>(step)),
                       .base = Position(static_cast<int32_t>(mirror.ids.size())),
                       .first_input = Position(static_cast<int32_t>(mirror.kv)),
                       .input_count = input_count,
                       .draft = std::move(draft)}}};
}

TEST(TargetWorker, KvEqualsFreshPrefillAfterEveryVerdict) {
  Rank rank, fresh;
  std::mt19937 random(8);
  Mirror mirror{.ids = random_ids(9, 1)};
  const SamplingParams sampling{.rule = Rule::kInvariant, .temperature = 0.6f, .seed = Seed{5}};
  StepPlan first = plan_of(mirror, 0, {}, 9);
  first.state_hash = 0;
  first.opens.push_back({.sequence = kSequence, .ids = mirror.ids, .prompt_length = 9, .sampling = sampling});
  std::vector<TokenId> likely;  // the text itself, so that drafts from it are accepted
  {
    Rank plain;
    Mirror m = mirror;
    StepPlan plan = first;
    for (uint64_t step = 0; step < 60; ++step) {
      const Verdict verdict = plain.worker.step(plan).verdicts.at(0);
      likely.push_back(verdict.next);
      m.ids.push_back(verdict.next);
      m.kv = static_cast<int64_t>(m.ids.size()) - 1;
      plan = plan_of(m, step + 1, {}, 1);
    }
  }
  int accepted = 0, rejected = 0;
  StepPlan plan = first;
  for (uint64_t step = 0; mirror.ids.size() < 60; ++step) {
    const Verdict verdict = rank.worker.step(plan).verdicts.at(0);
    const auto& draft = plan.entries[0].draft;
    ASSERT_EQ(verdict.status, VerdictStatus::kOk);
    mirror.ids.insert(mirror.ids.end(), draft.begin(), draft.begin() + verdict.accepted_count);
    mirror.ids.push_back(verdict.next);
    mirror.kv = static_cast<int64_t>(mirror.ids.size()) - 1;
    const bool rejection = verdict.accepted_count < static_cast<int>(draft.size());
    if (rejection) ++mirror.epoch;
    accepted += verdict.accepted_count;
    rejected += rejection;
    ASSERT_TRUE(std::equal(mirror.ids.begin() + 9, mirror.ids.end(), likely.begin()));

    const KvHandle prefill = fresh.model->kv().create();
    const BatchSlice slice{prefill, std::span(mirror.ids).first(mirror.ids.size() - 1), 0};
    ASSERT_TRUE(fresh.model->forward({&slice, 1}).ok());
    EXPECT_EQ(rank.worker.kv_content_hash(kSequence), fresh.model->kv().content_hash(prefill))
        << "step " << step;
    fresh.model->kv().release(prefill);

    // Right up to a random place, then wrong.
    std::vector<TokenId> next;
    const size_t at = mirror.ids.size() - 9;
    for (size_t i = 0; i < random() % 7; ++i)
      next.push_back(random() % 5 ? likely[at + i] : TokenId(static_cast<int32_t>(random() % kVocab)));
    plan = plan_of(mirror, step + 1, std::move(next), 1);
  }
  EXPECT_GT(accepted, 10);
  EXPECT_GT(rejected, 5);
  EXPECT_TRUE(
      rank.worker.step({.step = 99, .state_hash = mirror.hash(), .closes = {kSequence}}).verdicts.empty());
  EXPECT_EQ(rank.model->kv().free_blocks(), rank.model->kv().num_blocks());
}

// The best of each row, and those behind them, as the logprobs rank them: the same on any number of ranks.
TEST(TargetWorker, RowsAreRankedAlikeByAnyNumberOfRanks) {
  const Mirror mirror{.ids = random_ids(6, 4)};
  StepPlan plan = plan_of(mirror, 0, random_ids(3, 5), 6);
  plan.state_hash = 0;
  plan.opens.push_back({.sequence = kSequence,
                        .ids = mirror.ids,
                        .prompt_length = 6,
                        .sampling = {.repetition_penalty = 1.5f, .logprobs = 8}});
  plan.entries[0].successors = true;
  std::vector<TokenId> first;
  for (const int ranks : {1, 2, 4}) {
    const auto group =
        ranks == 1 ? std::vector<std::unique_ptr<Collectives>>{} : make_thread_collectives(ranks);
    const auto single = make_single_collectives();
    std::vector<Verdict> verdicts(static_cast<size_t>(ranks));
    std::vector<std::future<void>> running;
    for (int r = 0; r < ranks; ++r)
      running.push_back(std::async(std::launch::async, [&, r] {
        Collectives& own = ranks == 1 ? *single : *group[static_cast<size_t>(r)];
        const auto model =
            testing::load_or_die(testing::golden_model("qwen3"),
                                 {.shard = {r, ranks}, .max_positions = 120, .kv_tokens = 400}, own);
        TargetWorker worker(*model, own, {.max_sequences = 2});
        verdicts[static_cast<size_t>(r)] = worker.step(plan).verdicts.at(0);
      }));
    for (auto& run : running) run.get();
    if (first.empty()) first = verdicts[0].successors;
    for (const Verdict& verdict : verdicts) EXPECT_EQ(verdict.successors, first) << ranks;
    // Penalties change what is drawn, not what is ranked.
    ASSERT_EQ(first.size(), 4u * kSuccessors);
    for (int k = 0; k < kSuccessors; ++k)
      EXPECT_EQ(first[static_cast<size_t>(k)], verdicts[0].logprobs.at(0).top.at(static_cast<size_t>(k)).id);
  }
}

TEST(TargetWorker, PrefillChunksGiveNoVerdict) {
  Rank rank, whole;
  Mirror mirror{.ids = random_ids(20, 2)};
  StepPlan plan = plan_of(mirror, 0, {}, 8);
  plan.state_hash = 0;
  plan.opens.push_back({.sequence = kSequence, .ids = mirror.ids, .prompt_length = 20, .sampling = {}});
  StepPlan at_once = plan;
  at_once.entries[0].input_count = 20;
  EXPECT_TRUE(rank.worker.step(plan).verdicts.empty());
  mirror.kv = 8;
  const auto verdicts = rank.worker.step(plan_of(mirror, 1, {}, 12)).verdicts;
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].next, whole.worker.step(at_once).verdicts.at(0).next);
}

// Log-probabilities of a text's tokens at generation equal those of the same text scored as a prompt.
TEST(TargetWorker, APromptIsScoredAsItWasGenerated) {
  Rank plain, scoring;
  Mirror mirror{.ids = random_ids(5, 3)};
  const SamplingParams sampling{.logprobs = 2};
  StepPlan plan = plan_of(mirror, 0, {}, 5);
  plan.state_hash = 0;
  plan.opens.push_back({.sequence = kSequence, .ids = mirror.ids, .prompt_length = 5, .sampling = sampling});
  std::vector<PositionLogprobs> generated;
  for (uint64_t step = 1; step <= 15; ++step) {
    const Verdict verdict = plain.worker.step(plan).verdicts.at(0);
    generated.push_back(verdict.logprobs.at(0));
    mirror.ids.push_back(verdict.next);
    mirror.kv = static_cast<int64_t>(mirror.ids.size()) - 1;
    plan = plan_of(mirror, step, {}, 1);
  }
  mirror.kv = 0;
  std::vector<PositionLogprobs> scored;
  for (const int32_t input_count : {3, 10, 7}) {
    StepPlan chunk = plan_of(mirror, static_cast<uint64_t>(mirror.kv), {}, input_count);
    chunk.entries[0].prompt_logprobs = 2;
    if (mirror.kv == 0) {
      chunk.state_hash = 0;
      chunk.opens.push_back({.sequence = kSequence, .ids = mirror.ids, .prompt_length = 20, .sampling = {}});
    }
    const StepResult result = scoring.worker.step(chunk);
    ASSERT_EQ(result.scores.size(), 1u);
    scored.insert(scored.end(), result.scores[0].logprobs.begin(), result.scores[0].logprobs.end());
    mirror.kv += input_count;
    EXPECT_EQ(result.verdicts.size(), mirror.kv == 20 ? 1u : 0u);
  }
  ASSERT_EQ(scored.size(), 19u);
  const auto values = [](const PositionLogprobs& at) {
    std::vector<std::pair<TokenId, float>> out{{at.chosen.id, at.chosen.logprob}};
    for (const TokenLogprob& token : at.top) out.emplace_back(token.id, token.logprob);
    return out;
  };
  for (size_t i = 0; i < 15; ++i) EXPECT_EQ(values(scored[4 + i]), values(generated[i])) << i;
  for (size_t i = 0; i < 19; ++i) EXPECT_EQ(scored[i].chosen.id, mirror.ids[i + 1]);
}

// A coordinator and a target that no longer agree must not go on.
TEST(TargetWorker, AnotherStateIsFatal) {
  Rank rank;
  Mirror mirror{.ids = random_ids(4, 2)};
  StepPlan plan = plan_of(mirror, 0, {}, 4);
  plan.state_hash = 0;
  plan.opens.push_back({.sequence = kSequence, .ids = mirror.ids, .prompt_length = 4, .sampling = {}});
  (void)rank.worker.step(plan);
  mirror.kv = 4;  // the verdict moved C on; the mirror did not follow
  EXPECT_THROW((void)rank.worker.step(plan_of(mirror, 1, {}, 1)), std::runtime_error);
}

// Only the request whose logits are not finite fails; its sequence stays as it was.
TEST(TargetWorker, NonFiniteLogitsFailOneRequest) {
  Rank rank;
  const auto ids = random_ids(4, 2);
  StepPlan plan{.opens = {{.sequence = SequenceId(1), .ids = ids, .prompt_length = 4, .sampling = {}},
                          {.sequence = SequenceId(2), .ids = ids, .prompt_length = 4, .sampling = {}}}};
  plan.opens[0].sampling.logit_bias.push_back({TokenId(3), std::numeric_limits<float>::infinity()});
  for (uint64_t id : {1, 2})
    plan.entries.push_back(
        {.sequence = SequenceId(id), .round = Round(1), .base = Position(4), .input_count = 4});
  const auto verdicts = rank.worker.step(plan).verdicts;
  ASSERT_EQ(verdicts.size(), 2u);
  EXPECT_EQ(verdicts[0].status, VerdictStatus::kNonFinite);
  EXPECT_EQ(verdicts[1].status, VerdictStatus::kOk);
  const uint64_t hash =
      state_hash_term(SequenceId(1), 4, 0, Epoch(0)) + state_hash_term(SequenceId(2), 5, 4, Epoch(0));
  EXPECT_TRUE(rank.worker.step({.step = 1, .state_hash = hash, .closes = {SequenceId(1), SequenceId(2)}})
                  .verdicts.empty());
}

// Every text with a token in its output fails, and plain decoding says so at the second one. Drafts change
// neither when, nor what was written before, nor the cache.
TEST(TargetWorker, ADraftWithoutLogitsBehindItFailsWherePlainDecodingDoes) {
  Mirror prompt{.ids = random_ids(9, 1)};
  constexpr float kLowest = std::numeric_limits<float>::lowest();  // both together are no number
  const SamplingParams sampling{
      .rule = Rule::kGreedy, .temperature = 0, .presence_penalty = kLowest, .frequency_penalty = kLowest};
  TokenId likeliest;
  for (int tokens_of_the_text : {-1, 0, 1}) {
    Rank rank, fresh;
    std::vector<TokenId> draft;
    if (tokens_of_the_text >= 0) draft = {likeliest, TokenId(5)};
    if (tokens_of_the_text == 0) draft.front() = TokenId(likeliest.value() == 7 ? 8 : 7);
    StepPlan plan = plan_of(prompt, 0, draft, 9);
    plan.state_hash = 0;
    plan.opens.push_back(
        {.sequence = kSequence, .ids = prompt.ids, .prompt_length = 9, .sampling = sampling});
    const Verdict verdict = rank.worker.step(plan).verdicts.at(0);
    ASSERT_EQ(verdict.status, VerdictStatus::kOk);
    EXPECT_EQ(verdict.accepted_count, 0);
    if (draft.empty()) likeliest = verdict.next;
    EXPECT_EQ(verdict.next, likeliest);
    const KvHandle prefill = fresh.model->kv().create();
    const BatchSlice slice{prefill, prompt.ids, 0};
    ASSERT_TRUE(fresh.model->forward({&slice, 1}).ok());
    EXPECT_EQ(rank.worker.kv_content_hash(kSequence), fresh.model->kv().content_hash(prefill));
    Mirror mirror = prompt;
    mirror.ids.push_back(likeliest);
    mirror.kv = 9;
    if (!draft.empty()) ++mirror.epoch;
    EXPECT_EQ(rank.worker.step(plan_of(mirror, 1, {TokenId(3)}, 1)).verdicts.at(0).status,
              VerdictStatus::kNonFinite);
  }
}

// Welcomes the leader, then never says a word again, and takes none.
class VanishedCoordinator final : public Transport {
 public:
  Status send(PeerId, const Message& message) override {
    if (std::holds_alternative<Hello>(message)) return {};
    ++undelivered;
    return unavailable("nobody is there");
  }
  std::optional<Incoming> receive(Clock::time_point) override {
    if (std::exchange(welcomed_, true)) return std::nullopt;
    return Incoming{kCoordinatorPeer, Welcome{.accepted = true}};
  }
  const TransportStats& stats() const override { return stats_; }
  int undelivered = 0;

 private:
  bool welcomed_ = false;
  TransportStats stats_;
};

// A coordinator that vanishes without a word does not leave a rank behind.
TEST(TargetWorker, EndsWhenTheCoordinatorIsGone) {
  Rank rank;
  VanishedCoordinator coordinator;
  std::string end;
  try {
    end = rank.worker.run(&coordinator).message();
  } catch (const std::exception& error) {
    end = error.what();
  }
  EXPECT_EQ(end, "the coordinator is gone");
  EXPECT_EQ(coordinator.undelivered, 10);
}

// Sends a plan and a Shutdown, and closes the connection before it takes the answer to the plan.
class EndedCoordinator final : public Transport {
 public:
  Status send(PeerId, const Message& message) override {
    return std::holds_alternative<Hello>(message) ? Status() : unavailable("the coordinator is gone");
  }
  std::optional<Incoming> receive(Clock::time_point) override {
    switch (read_++) {
      case 0:
        return Incoming{kCoordinatorPeer, Welcome{.accepted = true}};
      case 1:
        return Incoming{kCoordinatorPeer, StepPlan{}};
      case 2:
        return Incoming{kCoordinatorPeer, Shutdown{}};
      default:
        return std::nullopt;
    }
  }
  const TransportStats& stats() const override { return stats_; }

 private:
  int read_ = 0;
  TransportStats stats_;
};

TEST(TargetWorker, AnUnreadShutdownIsNoLoss) {
  Rank rank;
  EndedCoordinator coordinator;
  const Status end = rank.worker.run(&coordinator);
  EXPECT_TRUE(end.ok()) << end.message();
}

// Told to leave before it was welcomed: the job failed elsewhere while this rank still loaded.
TEST(TargetWorker, ShutdownInPlaceOfAWelcomeEndsIt) {
  for (const bool in_turns : {false, true}) {
    Rank rank;
    const auto hub = make_inproc_hub();
    auto coordinator = hub->coordinator_end();
    const auto leader = hub->connect();
    auto told = std::async(std::launch::async, [&] {
      const auto hello = coordinator->receive(Clock::now() + std::chrono::seconds(10));
      return hello && coordinator->send(hello->peer, Shutdown{}).ok();
    });
    if (in_turns) {
      EXPECT_TRUE(rank.worker.join(*leader).ok());
      EXPECT_FALSE(rank.worker.turn(*leader).value());
    } else {
      EXPECT_TRUE(rank.worker.run(leader.get()).ok());
    }
    EXPECT_TRUE(told.get());
  }
}

}  // namespace
}  // namespace outrider
