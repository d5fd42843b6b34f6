// The tests of draft heads again, with computation on a CUDA device or on its emulation.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "heads/cuda/device_attention.h"
#include "heads/head_draws.h"
#include "heads/head_tensors.h"
#include "model/cuda/model.h"
#include "model/cuda_backend.h"
#include "model_files/weight_map.h"
#include "tests/heads/golden_heads.h"
#include "tests/model/model_suite.h"

namespace outrider {
namespace {

std::shared_ptr<HeadCompute> on_device() {
  return make_device_compute({.kind = Device::Kind::kCuda}, nullptr).value();
}

// Without a device every test is skipped.
class OnDevice final : public ::testing::Environment {
 public:
  void SetUp() override {
    const auto count = cuda_device_count();
    if (!count.ok()) GTEST_SKIP() << count.status().message();
    testing::suite_compute = &on_device;
  }
};
const auto* const kOnDevice = ::testing::AddGlobalTestEnvironment(new OnDevice);

TEST(DeviceHeads, WhatDoesNotFitIsToldBeforeLoading) {
  for (const testing::GoldenHead& kind : testing::kGoldenHeads) {
    std::string notice;
    HeadOptions options{
        .kind = kind.kind, .compute = on_device(), .notice = [&](const std::string& text) { notice = text; }};
    const auto load = [&] {
      return Head::load(testing::golden_head(kind.name), testing::golden_model(testing::kHeadsTarget),
                        options);
    };
    ASSERT_TRUE(load().ok()) << kind.name;
    EXPECT_NE(notice.find("KV cache"), std::string::npos) << notice;
    options.max_sequences = int64_t{1} << 25;  // each takes rows of hidden states and logits
    const auto refused = load();
    ASSERT_FALSE(refused.ok()) << kind.name;
    EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(refused.status().message().find("--max-num-seqs"), std::string::npos)
        << refused.status().message();
  }
}

// The error about a head that does not fit a block names the keys of its config.json.
TEST(DeviceHeads, AttentionTooWideForABlockIsRefusedInItsOwnWords) {
  const ModelConfig target = read_model_config(testing::golden_model(testing::kHeadsTarget)).value();
  const auto refusal = [&](const char* head, int64_t shared_bytes) {
    const HeadConfig config = read_head_config(testing::golden_head(head), HeadKind::kMtp, target).value();
    const HeadAttentionPlan asked{.config = config.layer,
                                  .kv_blocks = 4,
                                  .max_rows = 4,
                                  .max_positions = 64,
                                  .bf16 = true,
                                  .latent = {}};
    const cuda::DeviceAttentionPlan plan(asked, WeightType::kBFloat16,
                                         {.multiprocessors = 2, .shared_bytes = shared_bytes});
    return plan.check();
  };
  EXPECT_TRUE(refusal("mtp-deepseek", 227 << 10).ok());
  EXPECT_TRUE(refusal("mtp", 227 << 10).ok());
  const std::string latent(refusal("mtp-deepseek", 1 << 10).message());
  for (const char* word :
       {"latent attention", "4 query heads", "kv_lora_rank 18", "qk_rope_head_dim 6", "shared memory"})
    EXPECT_NE(latent.find(word), std::string::npos) << latent;
  EXPECT_EQ(latent.find("KV head"), std::string::npos) << latent;
  const std::string heads(refusal("mtp", 1 << 10).message());
  EXPECT_NE(heads.find("to a KV head"), std::string::npos) << heads;
}

// A target loads the state projection of a head at a draft worker only if the device has room for it.
TEST(DeviceHeads, AProjectionThatDoesNotFitIsToldBeforeLoading) {
  const auto directory = testing::golden_head("eagle3"),
             target = testing::golden_model(testing::kHeadsTarget);
  const ModelConfig model = read_model_config(target).value();
  const HeadConfig config = read_head_config(directory, HeadKind::kEagle3, model).value();
  std::string notice;
  const auto load = [&](int64_t max_rows) {
    return HiddenStateProjection::load(directory, target, config, model, WeightFormat::kAuto, max_rows,
                                       on_device(), [&](const std::string& text) { notice = text; });
  };
  ASSERT_TRUE(load(8).ok());
  EXPECT_NE(notice.find("weights"), std::string::npos) << notice;
  const auto refused = load(int64_t{1} << 36);  // more than any device has
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
}

// Beside a target on the device its states are gathered there; what is read through the host has their bits.
TEST(DeviceHeads, StatesOfATargetComeWithoutTheHost) {
  constexpr int64_t kTokens = 120;  // more than one kernel gathers
  for (const char* name : {"qwen3", "qwen3-bf16"}) {
    auto single = make_single_collectives();
    const auto target = testing::load_or_die(testing::golden_model(name),
                                             {.device = {.kind = Device::Kind::kCuda},
                                              .max_positions = kTokens,
                                              .kv_tokens = 2 * kTokens,
                                              .aux_layers = {1, 2}},
                                             *single);
    std::vector<TokenId> ids;
    for (int32_t i = 0; i < kTokens; ++i) ids.emplace_back(i * 37 % 280);
    const KvHandle sequence = target->kv().create();
    const BatchSlice slice{sequence, ids, 1};
    ASSERT_TRUE(target->forward({&slice, 1}).ok());
    const int64_t width = 2 * target->config().hidden_size;
    std::vector<float> read[2];
    const auto beside = make_device_compute({.kind = Device::Kind::kCuda}, target.get()).value();
    for (const auto& [compute, to] : {std::pair{beside, &read[0]}, {on_device(), &read[1]}}) {
      const RowBuffer rows = compute->rows(kTokens, width + 6);  // rows that stand apart
      const FloatRows hidden_states = rows.slice(kTokens - 2, 4, width);
      compute->read_hidden_states(*target, sequence, 2, hidden_states);
      *to = testing::numbers_of(*compute, hidden_states);
    }
    EXPECT_TRUE(testing::same_bits(read[0], read[1])) << name;
    EXPECT_NE(*std::max_element(read[0].begin(), read[0].end()), 0) << name;

    const testing::RowsThere rounded(*beside, read[0], kTokens - 2);
    beside->round_to_bf16(rounded.all());
    for (float& number : read[1]) number = to_float(to_bf16(number));
    EXPECT_TRUE(testing::same_bits(testing::numbers_of(*beside, rounded.all()), read[1])) << name;
  }
}

// Rows of bf16 numbers, rounded and widened as on the host, and found not to be finite.
TEST(DeviceHeads, RowsAreNarrowedAsOnTheHost) {
  const auto there = on_device(), here = make_host_compute(1, 1 << 20);
  std::mt19937 random(5);
  for (const int64_t width : {1, 64, 300, 1000})
    for (const int64_t bad : {-1, 0, 3, 6}) {
      constexpr int64_t kCount = 7;
      std::vector<float> numbers(static_cast<size_t>(kCount * width));
      for (float& x : numbers) x = static_cast<float>(random() % 20'000) / 3'000 - 3;
      const float wrong[] = {NAN, -INFINITY, 3.4e38f};  // the last is infinite when it is rounded
      if (bad >= 0) numbers[static_cast<size_t>(bad * width + width / 2)] = wrong[random() % 3];
      const int64_t finite = bad < 0 ? kCount : bad;
      std::vector<float> widened[2];
      for (const auto& [compute, to] : {std::pair{there, &widened[0]}, {here, &widened[1]}}) {
        const testing::RowsThere rows(*compute, numbers, kCount);
        const RowBuffer room = compute->rows(kCount, width + 2);
        auto* const narrow = reinterpret_cast<uint16_t*>(room.data);
        EXPECT_EQ(compute->narrow(rows.all(), narrow), finite) << width;
        const RowBuffer apart = compute->rows(kCount, width + 5);
        compute->widen(narrow, apart.slice(finite, 3, width));
        compute->wait();
        if (finite > 0) *to = testing::numbers_of(*compute, apart.slice(finite, 3, width));
      }
      EXPECT_TRUE(testing::same_bits(widened[0], widened[1])) << width;
      for (size_t i = 0; i < widened[1].size(); ++i)
        ASSERT_EQ(widened[1][i], to_float(to_bf16(numbers[i]))) << width;
    }
}

// The device reads the embedding of a drawn token with the same bits as the host. The embedding is the head's
// own or, on the same device, the target's.
TEST(DeviceHeads, RowsOfDrawnTokensAreTheHosts) {
  for (const auto& [name, format] : {std::pair{"qwen3", WeightFormat::kAuto},
                                     {"qwen3-bf16", WeightFormat::kAuto},
                                     {"qwen3-fp16", WeightFormat::kAuto},
                                     {"qwen3-bf16", WeightFormat::kInt8}}) {
    auto single = make_single_collectives();
    const auto directory = testing::golden_model(name);
    const auto target = testing::load_or_die(directory,
                                             {.device = {.kind = Device::Kind::kCuda},
                                              .max_positions = 16,
                                              .kv_tokens = 16,
                                              .weight_format = format},
                                             *single);
    const void* const there = dynamic_cast<cuda::CudaModel&>(*target).whole_embedding();
    const int64_t width = target->config().hidden_size, vocabulary = target->config().vocab_size;
    for (const bool is_beside : {true, false}) {
      auto files = TensorFiles::open(directory).value();
      const auto map = map_weights(files, target->config(), ShardPlan(target->config(), {})).value();
      auto table = target_embedding(std::move(files), map, "head", name, width).value();
      const auto compute =
          make_device_compute({.kind = Device::Kind::kCuda}, is_beside ? target.get() : nullptr).value();
      ASSERT_TRUE(table.keep_at(*compute).ok());
      EXPECT_EQ(table.there().get() == there, is_beside && format == WeightFormat::kAuto) << name;

      const auto sampler = compute->sampler({.rows = 1, .vocab_size = vocabulary, .target_ids = {}});
      const SamplingParams greedy{.rule = Rule::kGreedy, .temperature = 0};
      const HeadSampler::Row row{.first = {.sampling = &greedy}, .tokens = 2};
      const RowBuffer rows = compute->rows(2, width + 4);  // rows that stand apart
      sampler->begin({&row, 1}, false);
      for (const int32_t token : {0, static_cast<int32_t>(vocabulary) - 1}) {
        std::vector<float> logits(static_cast<size_t>(vocabulary)), expected(static_cast<size_t>(width));
        logits[static_cast<size_t>(token)] = 1;
        sampler->draw(testing::RowsThere(*compute, logits, 1).all(), std::vector<int32_t>{0});
        const FloatRows to(rows.data + 3, {1, width}, {rows.stride, 1});
        sampler->read_drawn(table.there(), to);
        table.read(TokenId(token), expected);
        EXPECT_TRUE(testing::same_bits(testing::numbers_of(*compute, to), expected)) << name;
      }
      sampler->wait();
      EXPECT_EQ(sampler->token(0, 1), TokenId(static_cast<int32_t>(vocabulary) - 1));
    }
  }
}

// Logits of tokens that were made before: row after row of each chain.
class MadeLogits final : public HeadDraws::Steps {
 public:
  explicit MadeLogits(FloatRows logits) : logits_(logits) {}
  bool begin(std::span<const HeadDraws::Chain>) override { return true; }
  FloatRows next(std::span<HeadDraws::Chain> chains, HeadSampler&) override {
    for (HeadDraws::Chain& chain : chains) ++chain.row;
    return logits_;
  }

 private:
  const FloatRows logits_;
};

// From the same rows of logits the device draws what the host draws: tokens, q, and where a draft ends; one
// token at a time, and several.
TEST(DeviceHeads, DrawsAreTheHosts) {
  constexpr int64_t kChains = 5, kTokens = 4;
  std::mt19937 random(7);
  for (const testing::GoldenHead& kind :  // with a vocabulary of its own, and without
       {testing::GoldenHead{"eagle3", HeadKind::kEagle3}, {"eagle", HeadKind::kEagle}}) {
    const auto head =
        testing::load_head_or_die(kind, {.max_sequences = kChains, .max_positions = 64, .kv_tokens = 320});
    const std::vector<TokenId> eos{TokenId(3), TokenId(40)};
    HeadDraws there(*head, eos), here(head->vocab_size(), head->target_ids(), eos);
    const int64_t width =
        head->target_ids().empty() ? head->vocab_size() : static_cast<int64_t>(head->target_ids().size());
    const StopRule stops[]{{},
                           {.kind = StopKind::kSvip, .threshold = 1.9f, .scale = 1},
                           {.kind = StopKind::kConfidence, .threshold = 0.05f}};
    int drawn = 0, ended = 0;
    for (int turn = 0; turn < 60; ++turn) {
      std::vector<float> logits(static_cast<size_t>(kChains * kTokens * width));
      for (float& x : logits) x = static_cast<float>(random() % 2000) / 250 - 4;
      if (turn % 20 == 9) logits[static_cast<size_t>((2 * kTokens + turn / 20) * width)] = NAN;
      const testing::RowsThere rows(head->compute(), logits, kChains * kTokens);
      const std::vector<TokenId> text(4 + static_cast<size_t>(turn % 30), TokenId(9));
      std::vector<SamplingParams> sampling;
      std::vector<HeadTask> tasks;
      std::vector<HeadDraft> drafts[2];
      for (const Rule rule : {Rule::kGreedy, Rule::kInvariant, Rule::kNaive, Rule::kToken, Rule::kBlock})
        sampling.push_back({.rule = rule,
                            .temperature = rule == Rule::kGreedy ? 0.0f : 0.9f,
                            .top_k = turn % 3 == 1 ? 20 : 0,
                            .top_p = turn % 4 == 1 ? 0.8f : 1.0f,
                            .repetition_penalty = turn % 5 == 1 ? 1.3f : 1.0f,
                            .seed = Seed{random()}});
      TokenCounts counts;
      counts.add_output(text);
      for (size_t i = 0; i < sampling.size(); ++i)
        tasks.push_back({.sequence = SequenceId(i),
                         .committed = text,
                         .sampling = &sampling[i],
                         .counts = &counts,
                         .round = Round(2),
                         .gamma = 3 + static_cast<int32_t>(i % 3),
                         .stop = stops[turn % 3],
                         .row_bytes = i == 4 && turn % 2 ? 40 : 0});
      for (auto& of : drafts) of.resize(tasks.size());
      std::vector<HeadDraws::Chain> chains;
      for (const int64_t i : {3, 0, 4, 1, 2}) {  // in any order
        const auto at = static_cast<size_t>(i);
        chains.push_back({.task = &tasks[at],
                          .draft = &drafts[0][at],
                          .row = i * kTokens,
                          .most = static_cast<int32_t>(kTokens - chains.size() / 2)});
        if (turn % 3 == 0) drafts[0][at].ids = drafts[1][at].ids = {TokenId(11)};  // of the draft before
      }
      MadeLogits steps(rows.all());
      const int32_t tokens = there.draw(chains, rows.all(), turn < 40 ? &steps : nullptr);
      EXPECT_EQ(tokens, turn < 40 ? kTokens : 1);
      for (const HeadDraws::Chain& chain : chains) {
        const auto i = static_cast<size_t>(chain.task - tasks.data());
        bool goes_on = true;
        for (int32_t number = 0; goes_on && number < std::min(tokens, chain.most); ++number)
          goes_on = here.draw(tasks[i],
                              std::span(logits).subspan(
                                  (i * kTokens + static_cast<size_t>(number)) * static_cast<size_t>(width),
                                  static_cast<size_t>(width)),
                              drafts[1][i]);
        EXPECT_EQ(chain.goes_on, goes_on) << "turn " << turn << ", chain " << i;
        EXPECT_EQ(drafts[0][i].ids, drafts[1][i].ids) << "turn " << turn << ", chain " << i;
        EXPECT_EQ(drafts[0][i].eos, drafts[1][i].eos);
        ASSERT_EQ(drafts[0][i].q.size(), drafts[1][i].q.size());
        for (size_t q = 0; q < drafts[0][i].q.size(); ++q) {
          EXPECT_EQ(drafts[0][i].q[q].weights, drafts[1][i].q[q].weights);
          EXPECT_EQ(drafts[0][i].q[q].ids, drafts[1][i].q[q].ids);
        }
        drawn += static_cast<int>(drafts[0][i].ids.size());
        ended += !goes_on;
      }
    }
    EXPECT_GT(drawn, 300);
    EXPECT_GT(ended, 10);
  }
}

// From the same rows of logits nodes of trees have the children on a device that they have on the host, side
// by side with rules that draw children from q, which the host does.
TEST(DeviceHeads, TreesAreTheHosts) {
  constexpr int64_t kTasks = 4;
  std::mt19937 random(8);
  for (const testing::GoldenHead& kind :  // with a vocabulary of its own, and without
       {testing::GoldenHead{"eagle3", HeadKind::kEagle3}, {"eagle", HeadKind::kEagle}}) {
    const auto head = testing::load_head_or_die(
        kind, {.max_sequences = 5, .max_positions = 64, .kv_tokens = 320, .tree_nodes = 16});
    const std::vector<TokenId> eos{TokenId(3), TokenId(40)};
    HeadDraws there(*head, eos), here(head->vocab_size(), head->target_ids(), eos);
    const int64_t width =
        head->target_ids().empty() ? head->vocab_size() : static_cast<int64_t>(head->target_ids().size());
    const std::vector<TokenId> text(20, TokenId(9));
    TokenCounts counts;
    counts.add_output(text);
    int nodes = 0, fewer = 0;
    for (int turn = 0; turn < 20; ++turn) {
      const TreeShape fixed{.widths = {4, 3, 1}}, best{.widths = {}, .nodes = 12};
      std::vector<SamplingParams> sampling;
      for (const Rule rule : {Rule::kGreedy, Rule::kSpecInfer, Rule::kInvariant, Rule::kNaive})
        sampling.push_back({.rule = rule,
                            .temperature = rule == Rule::kGreedy ? 0.0f : 0.9f,
                            .top_k = turn % 3 == 1 ? 3 : 0,
                            .top_p = turn % 4 == 1 ? 0.8f : 1.0f,
                            .repetition_penalty = turn % 5 == 1 ? 1.3f : 1.0f,
                            .seed = Seed{random()}});
      std::vector<HeadTask> tasks;
      HeadTree trees[2][kTasks];
      for (size_t i = 0; i < sampling.size(); ++i) {
        const bool draws = needs_q(sampling[i].rule);
        tasks.push_back({.sequence = SequenceId(i),
                         .committed = text,
                         .sampling = &sampling[i],
                         .counts = &counts,
                         .round = Round(2),
                         .gamma = 3,
                         .tree = draws || turn % 2 ? &fixed : &best});
        there.begin_tree(tasks[i], 3, trees[0][i]);
        here.begin_tree(tasks[i], 3, trees[1][i]);
      }
      while (true) {
        std::vector<HeadDraws::Look> looks[2];
        for (size_t i = 0; i < tasks.size(); ++i)
          ASSERT_TRUE(
              std::ranges::equal(trees[0][i].growth.next(SIZE_MAX), trees[1][i].growth.next(SIZE_MAX)));
        for (size_t i = 0; i < tasks.size(); ++i)
          for (const int32_t node : trees[0][i].growth.next(SIZE_MAX))
            for (size_t of = 0; of < 2; ++of)
              looks[of].push_back({.task = &tasks[i],
                                   .tree = &trees[of][i],
                                   .node = node,
                                   .row = static_cast<int64_t>(looks[of].size())});
        if (looks[0].empty()) break;
        const auto rows = static_cast<int64_t>(looks[0].size());
        std::vector<float> logits(static_cast<size_t>(rows * width));
        for (float& x : logits) x = static_cast<float>(random() % 200) / 25 - 4;  // with ties
        if (turn % 10 == 9) logits[random() % logits.size()] = NAN;
        const testing::RowsThere on_device(head->compute(), logits, rows);
        there.look_behind(looks[0], on_device.all());
        here.look_behind(looks[1], FloatRows(logits.data(), {rows, width}));
      }
      for (size_t i = 0; i < tasks.size(); ++i) {
        HeadDraft drafts[2];
        for (size_t of = 0; of < 2; ++of) HeadDraws::take_tree(trees[of][i], drafts[of]);
        EXPECT_EQ(drafts[0].ids, drafts[1].ids) << "turn " << turn << ", task " << i;
        EXPECT_EQ(drafts[0].parents, drafts[1].parents) << "turn " << turn << ", task " << i;
        nodes += static_cast<int>(drafts[0].ids.size());
        fewer += drafts[0].ids.size() < 12;
      }
    }
    EXPECT_GT(nodes, 700);
    EXPECT_GT(fewer, 0);
  }
}

}  // namespace
}  // namespace outrider
