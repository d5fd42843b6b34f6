// Lossless speculation on CUDA, with every model on a device. Speculation of any length changes no byte;
// neither do trees, the prefix cache, preemption and the number of target ranks (threads that share the
// device). Golden models in every weight format.
#include <gtest/gtest.h>

#include <random>

#include "base/cuda.h"
#include "model/cuda_backend.h"
#include "tests/heads/golden_heads.h"
#include "tests/heads/own_module.h"
#include "tests/support/prefix_grammar.h"
#include "tests/support/test_cluster.h"
#include "tests/support/whole_tests.h"

namespace outrider {
namespace {

using testing::ClusterOptions;
using testing::DrafterKind;
using testing::Finished;
using testing::TestCluster;

constexpr Device kDevice{.kind = Device::Kind::kCuda};

// The emulation takes its time.
bool emulated() { return cuda::version_text() == "emulation"; }
// The entries labelled slow run the emulation's grids whole.
bool is_thin() { return emulated() && !testing::runs_whole_grids(); }

std::vector<Request> some_requests(int gamma) {
  std::mt19937 random(3);
  std::vector<Request> requests;
  for (Rule rule : {Rule::kGreedy, Rule::kInvariant, Rule::kNaive})
    // A token, and more than a chunk.
    for (int length : is_thin() ? std::vector{1, 17} : std::vector{1, 9, 17}) {
      Request request{.max_tokens = emulated() ? 8 : 40};
      for (int i = 0; i < length; ++i) request.prompt.emplace_back(static_cast<int32_t>(random() % 6 + 10));
      request.sampling.rule = rule;
      request.sampling.temperature = rule == Rule::kGreedy ? 0.0f : 1.2f;
      request.sampling.seed = Seed{100 + requests.size()};
      request.gamma = parse_gamma_policy("fixed:gamma=" + std::to_string(gamma)).value();
      requests.push_back(std::move(request));
    }
  return requests;
}

std::vector<std::vector<TokenId>> texts(std::vector<Finished> finished) {
  std::vector<std::vector<TokenId>> ids;
  for (Finished& f : finished) {
    EXPECT_TRUE(f.error.ok()) << f.error.message();
    ids.push_back(std::move(f.ids));
  }
  return ids;
}

struct Weights {
  std::string name;   // of the case
  std::string model;  // golden
  WeightFormat format = WeightFormat::kAuto;
  bool repeats = true;  // texts repeat what they had before
};

class CudaLossless : public ::testing::TestWithParam<Weights> {
 protected:
  void SetUp() override {
    const auto count = cuda_device_count();
    if (!count.ok()) GTEST_SKIP() << count.status().message();
  }
};

TEST_P(CudaLossless, SpeculationOfAnyLengthEqualsPlainDecoding) {
  TestCluster plain({.target = GetParam().model, .device = kDevice, .weight_format = GetParam().format});
  const auto expected = texts(plain.run(some_requests(0)));
  // The copy of the bf16 fixture is exact: every draft is accepted, and blocks end at their full length.
  const testing::PerturbedModel draft(GetParam().model, 0.2f);
  TestCluster cluster({.target = GetParam().model,
                       .draft = draft.path(),
                       .drafter = DrafterKind::kModel,
                       .max_num_seqs = 2,
                       .device = kDevice,
                       .weight_format = GetParam().format});
  for (int gamma : emulated() ? std::vector{1, 4, 8} : std::vector{1, 2, 3, 4, 5, 6, 7, 8})
    EXPECT_EQ(expected, texts(cluster.run(some_requests(gamma)))) << "gamma " << gamma;
  EXPECT_GT(cluster.totals().rounds.accepted, 20);
}

TEST_P(CudaLossless, RanksThatShareTheDeviceGiveTheSameText) {
  TestCluster one({.target = GetParam().model, .device = kDevice, .weight_format = GetParam().format});
  const auto expected = texts(one.run(some_requests(0)));
  for (int tp_size : emulated() ? std::vector{4} : std::vector{2, 4}) {
    TestCluster cluster({.target = GetParam().model,
                         .drafter = DrafterKind::kNgram,
                         .tp_size = tp_size,
                         .device = kDevice,
                         .weight_format = GetParam().format});
    EXPECT_EQ(expected, texts(cluster.run(some_requests(3)))) << "tensor-parallel size " << tp_size;
  }
}

// A draft model over ranks that share the device with each other and with the target's. Its tokens, and the
// rows of q that rules weigh, are those of one rank, where they are drawn on the host too.
TEST_P(CudaLossless, ADraftModelOverSeveralRanksDraftsWhatOneDoes) {
  const testing::PerturbedModel draft(GetParam().model, 0.2f);
  const auto requests = [] {
    auto all = some_requests(4);
    for (size_t i = 0; i < all.size(); i += 4) {
      all[i].sampling.rule = i % 8 ? Rule::kToken : Rule::kBlock;
      all[i].sampling.temperature = 1.2f;
    }
    return all;
  };
  std::vector<std::vector<TokenId>> expected;
  int64_t accepted = 0;
  for (const auto& [draft_ranks, tp_size] : {std::pair{1, 1}, {2, 2}, {4, 1}}) {
    // Two models on the emulation have two ranks, the others four.
    if (is_thin() && draft_ranks > 1 && (draft_ranks == 2) != (GetParam().format == WeightFormat::kAuto))
      continue;
    TestCluster cluster({.target = GetParam().model,
                         .draft = draft.path(),
                         .drafter = DrafterKind::kModel,
                         .tp_size = tp_size,
                         .draft_tp_size = draft_ranks,
                         .max_num_seqs = 2,
                         .device = kDevice,
                         .weight_format = GetParam().format});
    const auto actual = texts(cluster.run(requests()));
    if (draft_ranks == 1) expected = actual, accepted = cluster.totals().rounds.accepted;
    EXPECT_EQ(actual, expected) << draft_ranks << " ranks";
    EXPECT_EQ(cluster.totals().rounds.accepted, accepted) << draft_ranks << " ranks";
    EXPECT_GT(accepted, 10);
  }
}

// Checkpoints quantised by others, as they are stored: the model itself as its draft, then guesses from the
// text on several ranks.
class CudaPublished : public CudaLossless {};

TEST_P(CudaPublished, SpeculationOnAnyNumberOfRanksEqualsPlainDecoding) {
  const std::string model = (source_dir() / "tests/goldens/formats" / GetParam().model).string();
  TestCluster plain({.target = model, .device = kDevice});
  const auto expected = texts(plain.run(some_requests(0)));
  TestCluster drafted({.target = model,
                       .draft = model,
                       .drafter = DrafterKind::kModel,
                       .max_num_seqs = 2,
                       .device = kDevice});
  for (int gamma : emulated() ? std::vector{5} : std::vector{3, 8})
    EXPECT_EQ(expected, texts(drafted.run(some_requests(gamma)))) << "gamma " << gamma;
  EXPECT_GT(drafted.totals().rounds.accepted, 20);
  for (int tp_size : emulated() ? std::vector{4} : std::vector{2, 4}) {
    TestCluster ranks(
        {.target = model, .drafter = DrafterKind::kNgram, .tp_size = tp_size, .device = kDevice});
    EXPECT_EQ(expected, texts(ranks.run(some_requests(3)))) << "tensor-parallel size " << tp_size;
  }
}

// Drafts that branch. A row of logits for each node; match rules decide on the device, as rounds without a
// draft, and the path that stays is moved together there.
class CudaTrees : public CudaLossless {
 protected:
  ClusterOptions options(const TreeShape& shape, int tp_size) const {
    return {.target = GetParam().model,
            .draft = draft_.path(),
            .drafter = DrafterKind::kModel,
            .tp_size = tp_size,
            .max_num_seqs = 3,
            .device = kDevice,
            .weight_format = GetParam().format,
            .tree = shape};
  }
  const TreeShape fixed_{.widths = {2, 2, 1}}, best_{.widths = {}, .nodes = 6};

 private:
  const testing::PerturbedModel draft_{GetParam().model, 0.2f};
};

TEST_P(CudaTrees, TextWithTreesIsPlainText) {
  TestCluster plain({.target = GetParam().model, .device = kDevice, .weight_format = GetParam().format});
  const auto expected = texts(plain.run(some_requests(0)));
  ClusterOptions drafts_on_the_host = options(fixed_, 1);
  drafts_on_the_host.draft_device = Device{};
  for (const ClusterOptions& trees : {options(best_, emulated() ? 1 : 2), drafts_on_the_host}) {
    TestCluster cluster(trees);
    EXPECT_EQ(expected, texts(cluster.run(some_requests(3))));
    EXPECT_GT(cluster.totals().trees.accepted, 10);
    EXPECT_EQ(cluster.totals().dropped(DropReason::kTree), 0);
  }
}

// The device ranks the best tokens of each target row, also for nodes of trees.
TEST_P(CudaTrees, DraftsFromRankedRowsGiveTheTextOfPlainDecoding) {
  TestCluster plain({.target = GetParam().model, .device = kDevice, .weight_format = GetParam().format});
  const auto expected = texts(plain.run(some_requests(0)));
  for (const int tp_size : {1, 2}) {
    ClusterOptions recycling = options(tp_size == 1 ? best_ : TreeShape{}, tp_size);
    recycling.drafter = DrafterKind::kRecycling;
    TestCluster cluster(recycling);
    EXPECT_EQ(expected, texts(cluster.run(some_requests(3)))) << tp_size << " ranks";
    const RoundSums& rounds = cluster.totals().rounds;
    EXPECT_GT(GetParam().repeats ? rounds.accepted : rounds.drafted, 5) << tp_size << " ranks";
  }
}

// Tokens that a grammar forbids are masked in the logits on the device.
TEST_P(CudaTrees, GrammarsGiveTheTextOfPlainDecoding) {
  const auto vocab_size =
      static_cast<int32_t>(read_model_config(testing::golden_model(GetParam().model)).value().vocab_size);
  const auto constrained = [&](int gamma) {
    auto requests = some_requests(gamma);
    for (size_t i = 0; i < requests.size(); ++i)
      if (i % 4 != 3)
        requests[i].grammar = testing::make_prefix_grammar({.vocab_size = vocab_size, .seed = i + 1});
    return requests;
  };
  TestCluster plain({.target = GetParam().model, .device = kDevice, .weight_format = GetParam().format});
  const auto expected = texts(plain.run(constrained(0)));
  const auto requests = constrained(0);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!requests[i].grammar) continue;
    const auto matcher = requests[i].grammar->matcher();
    for (const TokenId id : expected[i]) EXPECT_TRUE(matcher->accept(id)) << "request " << i;
  }
  EXPECT_GT(plain.totals().masks, 20);
  for (const ClusterOptions& drafted : {options(fixed_, 1), options(TreeShape{.widths = {1, 1, 1}}, 2)}) {
    TestCluster cluster(drafted);
    EXPECT_EQ(expected, texts(cluster.run(constrained(3))));
    EXPECT_GT(cluster.totals().mask_cut_tokens, 0);
  }
}

// Rules that need q decide trees on the host, beside chains that are decided on the device.
TEST_P(CudaTrees, PqRulesDoNotDependOnRanks) {
  const auto requests = [] {
    auto all = some_requests(3);
    const Rule rules[] = {Rule::kSpecInfer, Rule::kKSeq, Rule::kSwor, Rule::kTraversal, Rule::kToken};
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].sampling.rule = rules[i % 5];
      all[i].sampling.temperature = 1.2f;
    }
    return all;
  };
  std::vector<std::vector<TokenId>> expected;
  for (const int tp_size : {1, 2}) {
    ClusterOptions trees = options(fixed_, tp_size);
    trees.q_kind = QKind::kSparse;
    trees.row_bytes = 64;
    TestCluster cluster(trees);
    const auto actual = texts(cluster.run(requests()));
    if (tp_size == 1) expected = actual;
    EXPECT_EQ(actual, expected);
    EXPECT_GT(cluster.totals().trees.accepted, 10);
    EXPECT_EQ(cluster.totals().dropped(DropReason::kBadQ), 0);
  }
}

// Half of the requests share their beginning. Their texts outgrow the KV block that they start with.
std::vector<Request> crowded_requests() {
  std::mt19937 random(5);
  std::vector<Request> requests;
  std::vector<TokenId> beginning;
  for (int i = 0; i < 20; ++i) beginning.emplace_back(static_cast<int32_t>(random() % 6 + 10));
  for (int i = 0; i < 4; ++i) {
    Request request{.prompt = beginning, .max_tokens = 22, .ignore_eos = true};
    if (i % 2) request.prompt.clear();
    while (request.prompt.size() < 28) request.prompt.emplace_back(static_cast<int32_t>(random() % 6 + 10));
    request.sampling.rule = i < 2 ? Rule::kInvariant : Rule::kNaive;
    request.sampling.seed = Seed{50 + static_cast<uint64_t>(i)};
    request.gamma = parse_gamma_policy("fixed:gamma=2").value();
    requests.push_back(std::move(request));
  }
  return requests;
}
constexpr int64_t kCrowdedTokens = 7 * kBlockTokens;

// Requests reuse the cached prefix of another request's prompt, and the youngest sequence is preempted when
// blocks run out. The device's blocks are shared, copied on write, truncated and refilled.
TEST_P(CudaTrees, PrefixCacheAndPreemptionChangeNoText) {
  const auto requests = crowded_requests();
  TestCluster whole({.target = GetParam().model,
                     .max_num_seqs = 3,
                     .device = kDevice,
                     .weight_format = GetParam().format,
                     .prefix_caching = false});
  const auto expected = texts(whole.run(requests));
  EXPECT_EQ(whole.totals().preemptions, 0);
  for (const DrafterKind drafter : {DrafterKind::kNone, DrafterKind::kModel}) {
    ClusterOptions tight = options(fixed_, 1);
    tight.drafter = drafter;
    tight.kv_tokens = kCrowdedTokens;
    TestCluster cluster(tight);
    EXPECT_EQ(expected, texts(cluster.run(requests)));
    EXPECT_GT(cluster.totals().prefix_hits, 0);
    EXPECT_GT(cluster.totals().preemptions, 0);
  }
}

// The target's own first layers draft. One rank draws on its device, several on the host from the logits of
// all.
class CudaEarlyExit : public CudaLossless {
 protected:
  static ClusterOptions options(int64_t layers, int tp_size, int batch) {
    return {.target = GetParam().model,
            .exit_layer = layers,
            .tp_size = tp_size,
            .max_num_seqs = batch,
            .device = kDevice,
            .weight_format = GetParam().format};
  }
  static ClusterOptions plain() {
    return {.target = GetParam().model, .device = kDevice, .weight_format = GetParam().format};
  }
};

TEST_P(CudaEarlyExit, TextIsPlainText) {
  TestCluster without(plain());
  const auto expected = texts(without.run(some_requests(0)));
  int64_t accepted = -1;
  for (const auto& [tp_size, batch] : {std::pair{1, 1}, {1, 4}, {2, 4}, {4, 3}}) {
    if (is_thin() && (tp_size == 4 || batch == 1)) continue;  // heads_emulated_test has them
    TestCluster cluster(options(1, tp_size, batch));
    EXPECT_EQ(expected, texts(cluster.run(some_requests(3)))) << tp_size << " ranks, batch " << batch;
    const Totals& totals = cluster.totals();
    EXPECT_GT(totals.rounds.rollbacks, 10);
    EXPECT_EQ(totals.drafts_received, totals.proposals);
    if (accepted < 0) accepted = totals.rounds.accepted;
    EXPECT_EQ(totals.rounds.accepted, accepted);  // the same drafts
  }
}

// A draft of all layers is the target's own choice.
TEST_P(CudaEarlyExit, AllLayersAreAlwaysRight) {
  const int64_t layers = read_model_config(testing::golden_model(GetParam().model)).value().num_layers;
  for (const int tp_size : {1, 2}) {
    TestCluster cluster(options(layers, tp_size, 3));
    auto requests = some_requests(4);
    std::erase_if(requests, [](const Request& r) { return r.sampling.rule == Rule::kNaive; });
    (void)texts(cluster.run(std::move(requests)));
    EXPECT_GT(cluster.totals().rounds.accepted, 15) << tp_size << " ranks";
    EXPECT_EQ(cluster.totals().rounds.rollbacks, 0) << tp_size << " ranks";
  }
}

TEST_P(CudaEarlyExit, PqRulesDoNotDependOnRanks) {
  std::vector<std::vector<TokenId>> expected;
  for (const int tp_size : {1, 2}) {
    ClusterOptions ranks = options(1, tp_size, 3);
    ranks.q_kind = GetParam().format == WeightFormat::kAuto ? QKind::kDense : QKind::kSparse;
    ranks.row_bytes = ranks.q_kind == QKind::kSparse ? 64 : 0;
    auto requests = some_requests(3);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].sampling.rule = i % 2 ? Rule::kToken : Rule::kBlock;
      requests[i].sampling.temperature = 1.2f;
    }
    TestCluster cluster(ranks);
    const auto actual = texts(cluster.run(std::move(requests)));
    if (tp_size == 1) expected = actual;
    EXPECT_EQ(actual, expected);
    EXPECT_GT(cluster.totals().rounds.accepted, 5);
    EXPECT_EQ(cluster.totals().dropped(DropReason::kBadQ), 0);
  }
}

TEST_P(CudaEarlyExit, PreemptionChangesNoText) {
  const auto requests = crowded_requests();
  ClusterOptions wide = plain();
  wide.max_num_seqs = 3;
  wide.prefix_caching = false;
  TestCluster whole(wide);
  const auto expected = texts(whole.run(requests));
  ClusterOptions tight = options(1, 1, 3);
  tight.kv_tokens = kCrowdedTokens;
  TestCluster cluster(tight);
  EXPECT_EQ(expected, texts(cluster.run(requests)));
  EXPECT_GT(cluster.totals().prefix_hits, 0);
  EXPECT_GT(cluster.totals().preemptions, 0);
  EXPECT_GT(cluster.totals().rounds.drafted, 20);
}

// A head on the host reads hidden states that the device kept: inputs of layers, and what the last one
// yields, which only rank 0 keeps.
TEST(CudaHeads, TextWithAHeadIsPlainText) {
  if (const auto count = cuda_device_count(); !count.ok()) GTEST_SKIP() << count.status().message();
  TestCluster plain({.target = testing::kHeadsTarget, .device = kDevice});
  const auto expected = texts(plain.run(some_requests(0)));
  for (const auto& [head, tp_size] : {std::pair{testing::GoldenHead{"eagle3", HeadKind::kEagle3}, 1},
                                      {testing::GoldenHead{"eagle", HeadKind::kEagle}, 2}}) {
    TestCluster cluster({.target = testing::kHeadsTarget,
                         .head = testing::golden_head(head.name).string(),
                         .head_kind = head.kind,
                         .tp_size = tp_size,
                         .max_num_seqs = 3,
                         .device = kDevice});
    EXPECT_EQ(expected, texts(cluster.run(some_requests(3)))) << head.name;
    EXPECT_GT(cluster.totals().rounds.rollbacks, 10) << head.name;
  }
}

// Latent attention and mixtures in the target and in the module that is in its files, both on devices.
TEST(CudaHeads, TextWithAModuleInTheTargetsFilesIsPlainText) {
  if (const auto count = cuda_device_count(); !count.ok()) GTEST_SKIP() << count.status().message();
  const TemporaryDirectory directory;
  testing::write_target_with_module(testing::golden_model("deepseek-v3"), directory.path());
  const std::string target = directory.path().string();
  TestCluster plain({.target = target, .device = kDevice});
  const auto expected = texts(plain.run(some_requests(0)));
  for (const bool at_worker : {false, true}) {
    TestCluster cluster({.target = target,
                         .head = target,
                         .head_at_worker = at_worker,
                         .head_kind = HeadKind::kMtp,
                         .head_on_device = true,
                         .tp_size = at_worker ? 1 : 2,
                         .max_num_seqs = 3,
                         .device = kDevice});
    EXPECT_EQ(expected, texts(cluster.run(some_requests(3)))) << (at_worker ? "worker" : "target");
    EXPECT_GT(cluster.totals().rounds.rollbacks, 10);
  }
}

// Heads on the device of the target, whose states never leave it, and on that of a draft worker; as chains in
// batches, and as trees. Formats of weights, ranks and batches take turns, and so do places on the emulation.
class CudaHeadsOnDevices : public ::testing::TestWithParam<testing::GoldenHead> {
 protected:
  void SetUp() override {
    const auto count = cuda_device_count();
    if (!count.ok()) GTEST_SKIP() << count.status().message();
  }
  static size_t index() {
    const auto is_it = [](const testing::GoldenHead& head) { return head.name == GetParam().name; };
    return static_cast<size_t>(
        std::find_if(testing::kGoldenHeads.begin(), testing::kGoldenHeads.end(), is_it) -
        testing::kGoldenHeads.begin());
  }
  static ClusterOptions options(bool at_worker) {
    const size_t turn = index() + (at_worker ? 1 : 0);
    return {.target = testing::kHeadsTarget,
            .head = testing::golden_head(GetParam().name).string(),
            .head_at_worker = at_worker,
            .head_kind = GetParam().kind,
            .head_on_device = true,
            .head_format = turn % 2 ? WeightFormat::kBFloat16 : WeightFormat::kAuto,
            .tp_size = turn % 4 < 2 ? 1 : 2,
            .max_num_seqs = turn % 2 ? 4 : 1,
            .device = kDevice};
  }
  static const std::vector<std::vector<TokenId>>& plain_texts() {
    static const auto ids = [] {
      TestCluster plain({.target = testing::kHeadsTarget, .device = kDevice});
      return texts(plain.run(some_requests(0)));
    }();
    return ids;
  }
};

TEST_P(CudaHeadsOnDevices, TextIsPlainText) {
  for (const bool at_worker : {false, true})
    for (const bool branches : {false, true}) {
      if (emulated() && branches != (at_worker == (index() % 2 == 0))) continue;
      ClusterOptions all = options(at_worker);
      if (branches)
        all.tree = at_worker ? TreeShape{.widths = {2, 2, 1}} : TreeShape{.widths = {}, .nodes = 6};
      TestCluster cluster(all);
      EXPECT_EQ(plain_texts(), texts(cluster.run(some_requests(3))))
          << (at_worker ? "worker" : "target") << (branches ? ", trees" : "");
      EXPECT_GT(cluster.totals().rounds.rollbacks, 10);
      EXPECT_EQ(cluster.totals().dropped(DropReason::kTree), 0);
    }
}

// Rules with q: what is drafted beside one target rank is drafted beside two, and q goes with it.
TEST_P(CudaHeadsOnDevices, PqRulesDoNotDependOnRanks) {
  if (emulated() && index() % 3 > 0) GTEST_SKIP() << "the emulation takes its time";
  std::vector<std::vector<TokenId>> expected;
  for (const int tp_size : {1, 2}) {
    ClusterOptions ranks = options(false);
    ranks.tp_size = tp_size;
    ranks.max_num_seqs = 3;
    auto requests = some_requests(3);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].sampling.rule = i % 2 ? Rule::kToken : Rule::kBlock;
      requests[i].sampling.temperature = 1.2f;
    }
    TestCluster cluster(ranks);
    const auto actual = texts(cluster.run(std::move(requests)));
    if (tp_size == 1) expected = actual;
    EXPECT_EQ(actual, expected);
    EXPECT_EQ(cluster.totals().dropped(DropReason::kBadQ), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, CudaHeadsOnDevices, ::testing::ValuesIn(testing::kGoldenHeads),
                         testing::head_test_name);

INSTANTIATE_TEST_SUITE_P(Models, CudaLossless,
                         ::testing::Values(Weights{"fp32", "qwen3"}, Weights{"bf16", "qwen3-bf16"},
                                           Weights{"int8", "qwen3-bf16", WeightFormat::kInt8},
                                           Weights{"fp8", "qwen3-bf16", WeightFormat::kFloat8},
                                           Weights{"latents", "deepseek-v3", WeightFormat::kBFloat16},
                                           Weights{"states", "qwen3-next", WeightFormat::kBFloat16}),
                         [](const auto& instance) { return instance.param.name; });
INSTANTIATE_TEST_SUITE_P(Models, CudaEarlyExit,
                         ::testing::Values(Weights{"fp32", "qwen3"}, Weights{"bf16", "qwen3-bf16"},
                                           Weights{"experts", "mixtral", WeightFormat::kBFloat16},
                                           Weights{"latents", "deepseek-v3", WeightFormat::kBFloat16},
                                           Weights{"states", "qwen3.5"}),
                         [](const auto& instance) { return instance.param.name; });
INSTANTIATE_TEST_SUITE_P(Models, CudaPublished,
                         ::testing::Values(Weights{"gptq_act_order", "gptq-4bit-act-order"},
                                           Weights{"fp8_blocks", "fp8-blocks"}, Weights{"mxfp4", "mxfp4"},
                                           Weights{"gguf", "gguf-llama-mixed/model.gguf"}),
                         [](const auto& instance) { return instance.param.name; });
INSTANTIATE_TEST_SUITE_P(Models, CudaTrees,
                         ::testing::Values(Weights{"fp32", "qwen3"}, Weights{"bf16", "qwen3-bf16"},
                                           Weights{"gemma2_bf16", "gemma2", WeightFormat::kBFloat16},
                                           Weights{"latents", "deepseek-v2", WeightFormat::kBFloat16, false},
                                           Weights{"states", "qwen3-next", WeightFormat::kBFloat16, false}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace outrider
