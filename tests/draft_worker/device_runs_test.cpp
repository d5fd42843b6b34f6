// Drafts on a CUDA device, or on its emulation. A drafter that draws on the device gives the same tokens, q,
// guesses and ends as a drafter that copies every row of logits to the host, and its sequences hold the same
// text afterwards. Covers every rule, filter and stop rule, with several sequences side by side.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "draft_worker/drafter.h"
#include "model/cuda_backend.h"
#include "model/token_runner.h"
#include "tests/support/test_models.h"

namespace outrider {
namespace {

constexpr int kSequences = 3;

// A model that counts how often logits came to the host.
class CountingModel final : public Model {
 public:
  CountingModel(const std::string& name, ModelOptions options, Collectives& single)
      : model_(testing::load_or_die(testing::golden_model(name), options, single)) {}

  Result<LogitsShard> forward(std::span<const BatchSlice> batch) override {
    ++forwards;
    return model_->forward(batch);
  }
  std::unique_ptr<TokenRunner> make_runner(int64_t vocab_size) override {
    return model_->make_runner(vocab_size);
  }
  KvCache& kv() override { return model_->kv(); }
  const ModelConfig& config() const override { return model_->config(); }
  int64_t max_positions() const override { return model_->max_positions(); }
  int64_t max_rows() const override { return model_->max_rows(); }
  int64_t max_logit_rows() const override { return model_->max_logit_rows(); }
  int64_t weight_bytes() const override { return model_->weight_bytes(); }
  std::string isa() const override { return model_->isa(); }

  int forwards = 0;

 private:
  std::unique_ptr<Model> model_;
};

struct Worker {
  Worker(const std::string& name, int64_t run_sequences, std::vector<TokenId> eos)
      : model(name,
              {.device = {.kind = Device::Kind::kCuda},
               .max_rows = 24,
               .max_positions = 80,
               .run_sequences = run_sequences,
               .kv_tokens = 800},
              *single),
        drafter(make_model_drafter(
            model, {.max_sequences = kSequences, .eos_ids = std::move(eos), .vocab_size = 250})) {}

  // Everything that was begun, in the order of the sequences.
  std::vector<DraftAnswer> work(size_t rounds) {
    std::vector<DraftAnswer> answers;
    while (answers.size() < rounds) CHECK(drafter->work(answers), "a round was begun and never answered");
    std::sort(answers.begin(), answers.end(),
              [](const DraftAnswer& a, const DraftAnswer& b) { return a.draft.sequence < b.draft.sequence; });
    return answers;
  }

  std::unique_ptr<Collectives> single = make_single_collectives();
  CountingModel model;
  std::unique_ptr<Drafter> drafter;
};

struct TestSequence {
  SamplingParams sampling;
  StopRule stop;
  std::vector<TokenId> truth, unseen;
};

std::vector<TokenId> random_ids(std::mt19937& random, int count) {
  std::vector<TokenId> ids;
  for (int i = 0; i < count; ++i) ids.emplace_back(static_cast<int32_t>(random() % 250));
  return ids;
}

SamplingParams random_sampling(std::mt19937& random, Rule rule, bool filters) {
  SamplingParams sampling{.rule = rule,
                          .temperature = rule == Rule::kGreedy ? 0.0f : 0.5f + random() % 3 * 0.4f};
  sampling.seed = Seed{random()};
  if (filters && random() % 2) sampling.top_k = 20;
  if (filters && random() % 2) sampling.top_p = 0.9f;
  if (filters && random() % 3 == 0) sampling.min_p = 0.02f;
  if (random() % 3 == 0) sampling.repetition_penalty = 1.2f;
  if (random() % 3 == 0) sampling.logit_bias = {{TokenId(7), 2.0f}};
  return sampling;
}

void expect_same(const Draft& a, const Draft& b, const std::string& what) {
  EXPECT_EQ(a.sequence, b.sequence) << what;
  EXPECT_EQ(a.ids, b.ids) << what;
  EXPECT_EQ(a.prefix_hash, b.prefix_hash) << what;
  EXPECT_EQ(a.eos, b.eos) << what;
  ASSERT_EQ(a.q.size(), b.q.size()) << what;
  for (size_t i = 0; i < a.q.size(); ++i) {
    EXPECT_EQ(a.q[i].weights, b.q[i].weights) << what;
    EXPECT_EQ(a.q[i].ids, b.q[i].ids) << what;
    EXPECT_EQ(a.q[i].sum, b.q[i].sum) << what;
  }
}

// Cuts a draft to gamma tokens. Returns its last token if there were more.
std::optional<TokenId> cut(Draft& draft, size_t gamma) {
  if (draft.ids.size() <= gamma) return std::nullopt;
  const TokenId last = draft.ids.back();
  draft.ids.pop_back();
  if (!draft.q.empty()) draft.q.pop_back();
  draft.eos = false;
  return last;
}

StopRule stop_rule(int kind) {
  if (kind == 0) return {.kind = StopKind::kSvip, .threshold = 0.8f, .scale = 0.15f};
  if (kind == 1) return {.kind = StopKind::kConfidence, .threshold = 0.02f};
  return {};
}

class DeviceRuns : public ::testing::TestWithParam<QKind> {
 protected:
  void SetUp() override {
    if (const auto count = cuda_device_count(); !count.ok()) GTEST_SKIP() << count.status().message();
  }
};

TEST_P(DeviceRuns, DraftWhatTheHostDrafts) {
  std::vector<TokenId> eos;
  for (int32_t id = 3; id < 250; id += 12) eos.emplace_back(id);
  Worker host("qwen2", 0, eos), device("qwen2", runs_at_a_time(kSequences, 3), eos);
  ASSERT_EQ(host.model.make_runner(10), nullptr);
  std::mt19937 random(11);
  std::vector<TestSequence> sequences(kSequences);
  const std::vector<Rule> rules = GetParam() != QKind::kNone
                                      ? std::vector{Rule::kToken, Rule::kBlock, Rule::kToken}
                                      : std::vector{Rule::kGreedy, Rule::kInvariant, Rule::kNaive};
  int drafted = 0, ends = 0, guesses = 0, hits = 0;
  int branch_runs = 0;  // preparing passes whose logits stayed where they were
  // The first without filters: steps are graphs. The next with branches, the last with stop rules.
  std::array<size_t, kSequences> gammas{};
  for (int text = 0; text < 3; ++text) {
    const bool branches = text == 1;  // the host drafts one token more, which is what a branch is made for
    for (int i = 0; i < kSequences; ++i) {
      TestSequence& s = sequences[static_cast<size_t>(i)];
      s = {.sampling = random_sampling(random, rules[static_cast<size_t>(i)], text > 0)};
      s.truth = random_ids(random, 1 + static_cast<int>(random() % 30));  // more rows than fit a pass
      if (text == 2) s.stop = stop_rule(i);
      const Open open{.sequence = SequenceId(static_cast<uint64_t>(i)),
                      .ids = s.truth,
                      .prompt_length = static_cast<int32_t>(s.truth.size()),
                      .sampling = s.sampling};
      for (Worker* worker : {&host, &device}) ASSERT_TRUE(worker->drafter->open(open).ok());
    }
    for (uint32_t round = 1; round < 6; ++round) {
      const std::string what = "text " + std::to_string(text) + ", round " + std::to_string(round);
      for (int i = 0; i < kSequences; ++i) {
        const TestSequence& s = sequences[static_cast<size_t>(i)];
        Propose propose{.sequence = SequenceId(static_cast<uint64_t>(i)),
                        .round = Round(round),
                        .base = Position(static_cast<int32_t>(s.truth.size())),
                        .committed = s.unseen,
                        .gamma = static_cast<int32_t>(random() % 7),  // 0 is among them
                        .q_kind = GetParam(),
                        .row_bytes = 24,
                        .pipeline = branches ? Pipeline::kFanout : Pipeline::kLockstep,
                        .fanout = 3,
                        .stop = s.stop,
                        .wants_guess = true};
        gammas[static_cast<size_t>(i)] = static_cast<size_t>(propose.gamma);
        ASSERT_TRUE(device.drafter->begin(propose).ok());
        propose.gamma += branches;
        ASSERT_TRUE(host.drafter->begin(propose).ok());
      }
      auto expected = host.work(kSequences);
      const int forwards = device.model.forwards;
      const auto answers = device.work(kSequences);
      EXPECT_EQ(device.model.forwards, forwards) << what;  // no logits came to the host
      for (size_t i = 0; i < answers.size(); ++i) {
        ASSERT_TRUE(expected[i].status.ok() && answers[i].status.ok()) << answers[i].status.message();
        const Draft& draft = answers[i].draft;
        const TokenId bonus = cut(expected[i].draft, gammas[i]).value_or(random_ids(random, 1)[0]);
        ASSERT_NO_FATAL_FAILURE(expect_same(draft, expected[i].draft, what));
        drafted += static_cast<int>(draft.ids.size());
        hits += draft.preparation.hit;
        ends += draft.eos;
        guesses += draft.guess.value() >= 0;
        const size_t accepted = random() % 2 ? draft.ids.size() : random() % (draft.ids.size() + 1);
        TestSequence& s = sequences[i];
        s.unseen.assign(draft.ids.begin(), draft.ids.begin() + static_cast<ptrdiff_t>(accepted));
        s.unseen.push_back(accepted == draft.ids.size() ? bonus : random_ids(random, 1)[0]);
        s.truth.insert(s.truth.end(), s.unseen.begin(), s.unseen.end());
      }
      // The next rounds may start from branches.
      std::vector<DraftAnswer> none;
      for (uint32_t passes = random() % 4; passes > 0; --passes) {
        host.drafter->work(none);
        const int before = device.model.forwards;
        const bool worked = device.drafter->work(none);
        branch_runs += worked && device.model.forwards == before;
      }
      EXPECT_TRUE(none.empty());
      ASSERT_TRUE(device.model.kv().check_invariants().ok());
      if (!branches) {
        for (size_t i = 0; i < answers.size(); ++i)
          EXPECT_EQ(answers[i].draft.guess, expected[i].draft.guess) << what;
        EXPECT_EQ(device.model.kv().free_blocks(), host.model.kv().free_blocks()) << what;
      }
    }
    for (int i = 0; i < kSequences; ++i)
      for (Worker* worker : {&host, &device}) worker->drafter->close(SequenceId(static_cast<uint64_t>(i)));
    EXPECT_EQ(device.model.kv().free_blocks(), device.model.kv().num_blocks());
    for (TestSequence& s : sequences) s.unseen.clear();
  }
  EXPECT_GT(drafted, 60);
  EXPECT_GT(ends, 0);
  EXPECT_GT(hits, 0);
  EXPECT_GT(branch_runs, 0);
  if (GetParam() == QKind::kNone) {
    EXPECT_GT(guesses, 3);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceRuns, ::testing::Values(QKind::kNone, QKind::kDense, QKind::kSparse));

// Nodes of trees under match rules are ranked on the device, where the draft grows on while it is verified,
// too; chains beside them are drawn there.
TEST(DeviceTrees, AreThoseOfTheHost) {
  if (!cuda_device_count().ok()) GTEST_SKIP() << "no CUDA device";
  std::mt19937 random(23);
  const std::vector<TokenId> eos{TokenId(3), TokenId(40), TokenId(151)};
  Worker host("qwen3", 0, eos), device("qwen3", kSequences, eos);
  const TreeShape shapes[] = {
      {.widths = {3, 2, 1}}, {.widths = {}, .nodes = 7}, {.widths = {}, .parents = {-1, 0, 0, -1, 3}}};
  int nodes = 0, hits = 0, guesses = 0, grown = 0;
  for (int text = 0; text < 6; ++text) {
    std::vector<TestSequence> sequences(kSequences);
    for (int i = 0; i < kSequences; ++i) {
      TestSequence& s = sequences[static_cast<size_t>(i)];
      const Rule rules[] = {Rule::kGreedy, Rule::kInvariant, Rule::kNaive};
      s.sampling = random_sampling(random, rules[random() % 3], text % 3 > 0);
      // More than was planned: passes that this text is in are the host's.
      if (text == 5 && i == 0)
        s.sampling.logit_bias.insert(s.sampling.logit_bias.end(), 20'000, {TokenId(7), 0.0f});
      s.truth = random_ids(random, 1 + static_cast<int>(random() % 40));
      const Open open{.sequence = SequenceId(static_cast<uint64_t>(i)),
                      .ids = s.truth,
                      .prompt_length = static_cast<int32_t>(s.truth.size()),
                      .sampling = s.sampling};
      for (Worker* worker : {&host, &device}) ASSERT_TRUE(worker->drafter->open(open).ok());
    }
    for (uint32_t round = 1; round < 6; ++round) {
      const std::string what = "text " + std::to_string(text) + ", round " + std::to_string(round);
      for (int i = 0; i < kSequences; ++i) {
        const TestSequence& s = sequences[static_cast<size_t>(i)];
        const Propose propose{.sequence = SequenceId(static_cast<uint64_t>(i)),
                              .round = Round(round),
                              .base = Position(static_cast<int32_t>(s.truth.size())),
                              .committed = s.unseen,
                              .gamma = 3,
                              .q_kind = QKind::kNone,
                              .pipeline = text % 2 ? Pipeline::kFanout : Pipeline::kLockstep,
                              .fanout = 3,
                              .wants_guess = true,
                              .tree = random() % 4 ? shapes[random() % 3] : TreeShape()};
        for (Worker* worker : {&host, &device}) ASSERT_TRUE(worker->drafter->begin(propose).ok());
      }
      const auto expected = host.work(kSequences);
      const int forwards = device.model.forwards;
      const auto answers = device.work(kSequences);
      EXPECT_EQ(device.model.forwards > forwards, text == 5) << what;  // logits came to the host
      for (size_t i = 0; i < answers.size(); ++i) {
        ASSERT_TRUE(expected[i].status.ok() && answers[i].status.ok()) << answers[i].status.message();
        const Draft& draft = answers[i].draft;
        ASSERT_NO_FATAL_FAILURE(expect_same(draft, expected[i].draft, what));
        EXPECT_EQ(draft.parents, expected[i].draft.parents) << what;
        // It is known where one pass reads the last two tokens, and passes over chains differ.
        if (draft.guess.value() >= 0 && expected[i].draft.guess.value() >= 0) {
          EXPECT_EQ(draft.guess, expected[i].draft.guess) << what;
          ++guesses;
        }
        nodes += draft.parents.empty() ? 0 : static_cast<int>(draft.ids.size());
        hits += draft.preparation.hit && !draft.parents.empty();
        TestSequence& s = sequences[i];
        s.unseen.clear();
        if (const auto size = static_cast<int32_t>(draft.ids.size()); size > 0 && random() % 4) {
          std::vector<int32_t> path;
          path_to(draft.tree(), static_cast<int32_t>(random() % static_cast<uint32_t>(size)), path);
          for (const int32_t node : path) s.unseen.push_back(draft.ids[static_cast<size_t>(node)]);
        } else {
          s.unseen = random_ids(random, 1);
        }
        s.truth.insert(s.truth.end(), s.unseen.begin(), s.unseen.end());
      }
      std::vector<DraftAnswer> none;
      for (uint32_t passes = random() % 4; passes > 0; --passes) {
        grown += host.drafter->work(none);
        device.drafter->work(none);
      }
      ASSERT_TRUE(device.model.kv().check_invariants().ok());
    }
    for (int i = 0; i < kSequences; ++i)
      for (Worker* worker : {&host, &device}) worker->drafter->close(SequenceId(static_cast<uint64_t>(i)));
    EXPECT_EQ(device.model.kv().free_blocks(), device.model.kv().num_blocks());
  }
  EXPECT_GT(nodes, 150);
  EXPECT_GT(guesses, 8);
  EXPECT_GT(grown, 10);
  EXPECT_GT(hits, 0);
}

// Drafters of several sessions use one model in turns, each in its part of the cache (--share). Each drafts
// as a drafter with a model of its own does.
TEST(DraftersOfOneModel, DraftInTurnsWhatEachDraftsAlone) {
  if (!cuda_device_count().ok()) GTEST_SKIP() << "no CUDA device";
  const std::vector<TokenId> eos{TokenId(3)};
  for (const int64_t runs : {int64_t{0}, runs_at_a_time(kSequences, 0)}) {
    Worker shared("qwen2", runs, eos), alone[] = {{"qwen2", runs, eos}, {"qwen2", runs, eos}};
    shared.drafter.reset();
    KvCache& kv = shared.model.kv();
    kv.divide({kv.num_blocks() / 2, kv.num_blocks() / 2});
    std::unique_ptr<Drafter> sessions[2];
    for (size_t i = 0; i < 2; ++i) {
      kv.use_as(i);
      sessions[i] = make_model_drafter(
          shared.model, {.max_sequences = kSequences, .kept_texts = 2, .eos_ids = eos, .vocab_size = 250});
    }
    std::mt19937 random(5);
    int drafted = 0;
    for (uint64_t text = 0; text < 2; ++text) {
      std::vector<TokenId> truth[2], unseen[2];
      const SequenceId id(text);
      for (size_t i = 0; i < 2; ++i) {
        truth[i] = random_ids(random, 30);
        const Open open{.sequence = id,
                        .ids = truth[i],
                        .prompt_length = 30,
                        .sampling = random_sampling(random, Rule::kInvariant, text % 2 == 1)};
        kv.use_as(i);
        ASSERT_TRUE(sessions[i]->open(open).ok());
        ASSERT_TRUE(alone[i].drafter->open(open).ok());
      }
      for (uint32_t round = 1; round < 5; ++round) {
        std::vector<DraftAnswer> answers[2];
        for (size_t i = 0; i < 2; ++i) {
          const Propose propose{.sequence = id,
                                .round = Round(round),
                                .base = Position(static_cast<int32_t>(truth[i].size())),
                                .committed = unseen[i],
                                .gamma = 2 + static_cast<int32_t>(i)};
          kv.use_as(i);
          ASSERT_TRUE(sessions[i]->begin(propose).ok());
          ASSERT_TRUE(alone[i].drafter->begin(propose).ok());
        }
        while (answers[0].empty() || answers[1].empty())
          for (size_t i = 0; i < 2; ++i) {
            kv.use_as(i);
            sessions[i]->work(answers[i]);
          }
        for (size_t i = 0; i < 2; ++i) {
          const auto expected = alone[i].work(1);
          ASSERT_TRUE(answers[i][0].status.ok()) << answers[i][0].status.message();
          const Draft& draft = answers[i][0].draft;
          ASSERT_NO_FATAL_FAILURE(expect_same(draft, expected[0].draft, fmt::format("session {}", i)));
          drafted += static_cast<int>(draft.ids.size());
          unseen[i] = draft.ids;
          unseen[i].push_back(random_ids(random, 1)[0]);
          truth[i].insert(truth[i].end(), unseen[i].begin(), unseen[i].end());
        }
        ASSERT_TRUE(kv.check_invariants().ok()) << kv.check_invariants().message();
      }
      for (size_t i = 0; i < 2; ++i) {
        kv.use_as(i);
        sessions[i]->close(id);
        alone[i].drafter->close(id);
      }
    }
    EXPECT_GT(drafted, 25);
    for (auto& session : sessions) session.reset();
    EXPECT_EQ(kv.free_blocks(), kv.num_blocks());
  }
}

}  // namespace
}  // namespace outrider
