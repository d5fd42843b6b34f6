// Hidden states of layers: the same bits for every batch, chunk and rank. They are stored with the KV entries
// of their tokens.
#include <gtest/gtest.h>

#include "model_files/weight_sources.h"
#include "tests/model/model_suite.h"
#include "tests/model/tree_suite.h"

namespace outrider {
namespace {

ModelOptions with_aux_layers(std::vector<int64_t> aux_layers, Shard shard = {}) {
  return {.device = testing::suite_device(),
          .shard = shard,
          .threads = 2,
          .bytes_per_thread = 1,
          .kv_tokens = 1024,
          .aux_layers = std::move(aux_layers)};
}

std::vector<float> states_of(const Model& model, KvHandle sequence, int64_t tokens, size_t aux_layers) {
  const auto width = aux_layers * static_cast<size_t>(model.config().hidden_size);
  std::vector<float> out(static_cast<size_t>(tokens) * width);
  for (int64_t i = 0; i < tokens; ++i)
    model.read_hidden_states(sequence, i, std::span(out).subspan(static_cast<size_t>(i) * width, width));
  return out;
}

std::vector<float> states_in_chunks(Model& model, std::span<const TokenId> ids, size_t chunk,
                                    size_t aux_layers) {
  const KvHandle sequence = model.kv().create();
  for (size_t i = 0; i < ids.size(); i += chunk) {
    const BatchSlice slice{sequence, ids.subspan(i, std::min(chunk, ids.size() - i)), 0};
    EXPECT_TRUE(model.forward({&slice, 1}).ok());
  }
  auto out = states_of(model, sequence, static_cast<int64_t>(ids.size()), aux_layers);
  model.kv().release(sequence);
  return out;
}

class AuxLayers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = testing::no_suite_device(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

// The emulation of devices takes its time.
bool is_slow() { return testing::suite_tree_rounds() == 1; }

TEST_F(AuxLayers, StatesHaveTheSameBitsForEveryChunkAndRank) {
  for (const std::string name : {"qwen3-bf16", "llama-bias", "qwen3"}) {
    if (is_slow() && name != "qwen3-bf16") continue;
    const auto single = make_single_collectives();
    const std::vector<int64_t> aux_layers{0, 1, 2};
    const auto model =
        testing::load_or_die(testing::golden_model(name), with_aux_layers(aux_layers), *single);
    const auto ids = testing::random_ids(40, model->config().vocab_size, 5);
    const auto expected = states_in_chunks(*model, ids, 1, aux_layers.size());
    for (const size_t chunk : {3u, 16u, 40u})
      EXPECT_TRUE(testing::same_bits(expected, states_in_chunks(*model, ids, chunk, aux_layers.size())))
          << name << chunk;
    for (const int ranks : is_slow() ? std::vector{4} : std::vector{2, 4, 8})
      testing::run_group(ranks, [&](Collectives& group) {
        const auto shard = testing::load_or_die(testing::golden_model(name),
                                                with_aux_layers(aux_layers, {group.rank(), ranks}), group);
        EXPECT_TRUE(testing::same_bits(expected, states_in_chunks(*shard, ids, 7, aux_layers.size())))
            << name << ", rank " << group.rank() << " of " << ranks;
      });
  }
}

// The hidden state in front of the first layer is the embedding. The last one is the input of the final norm.
TEST_F(AuxLayers, AreTheInputsOfTheirLayers) {
  const auto single = make_single_collectives();
  const auto model = testing::load_or_die(testing::golden_model("qwen3"), with_aux_layers({0, 2}), *single);
  const auto files = TensorFiles::open(testing::golden_model("qwen3")).value();
  const TensorInfo& embedding = *files.find("model.embed_tokens.weight");
  const TensorInfo& norm = *files.find("model.norm.weight");
  const auto ids = testing::random_ids(9, model->config().vocab_size, 6);
  const KvHandle sequence = model->kv().create();
  const BatchSlice slice{sequence, ids, static_cast<int64_t>(ids.size())};
  const auto logits = model->forward({&slice, 1});
  ASSERT_TRUE(logits.ok());
  const auto hidden = static_cast<size_t>(model->config().hidden_size);
  const auto hidden_states = states_of(*model, sequence, 9, 2);
  for (size_t i = 0; i < ids.size(); ++i) {
    double squares = 0;
    const bool has_hidden = logits->hidden.extent(0) > 0;  // hosts
    for (size_t h = 0; h < hidden; ++h) {
      const float x = hidden_states[(2 * i + 1) * hidden + h];
      squares += static_cast<double>(x) * static_cast<double>(x);
      EXPECT_EQ(
          hidden_states[2 * i * hidden + h],
          tensor_element(embedding, static_cast<int64_t>(ids[i].value()) * static_cast<int64_t>(hidden) +
                                        static_cast<int64_t>(h)));
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + model->config().rms_norm_eps);
    for (size_t h = 0; h < hidden && has_hidden; ++h)
      EXPECT_NEAR(logits->hidden.row(static_cast<int64_t>(i))[h],
                  static_cast<double>(hidden_states[(2 * i + 1) * hidden + h]) * scale *
                      static_cast<double>(tensor_element(norm, static_cast<int64_t>(h))),
                  1e-4);
  }
}

// The content hash counts states, so chains, trees, forks, kept paths and rollbacks are all compared.
TEST_F(AuxLayers, FollowTreesForksAndRollbacks) {
  for (const auto kv : {ModelOptions::Kv::kFloat32, ModelOptions::Kv::kBFloat16}) {
    const auto single = make_single_collectives();
    ModelOptions options = with_aux_layers({1, 2});
    options.kv = kv;
    options.max_logit_rows = 128;
    const auto model = testing::load_or_die(testing::golden_model("qwen2"), options, *single);
    testing::expect_trees_equal_chains(*model, 11, testing::suite_tree_rounds());
    const auto without =
        testing::load_or_die(testing::golden_model("qwen2"),
                             {.device = testing::suite_device(), .kv_tokens = 1024, .kv = kv}, *single);
    const auto ids = testing::random_ids(20, model->config().vocab_size, 8);
    std::vector<uint64_t> hashes;
    for (Model* m : {model.get(), without.get()}) {
      const KvHandle sequence = m->kv().create();
      const BatchSlice slice{sequence, ids, 0};
      ASSERT_TRUE(m->forward({&slice, 1}).ok());
      hashes.push_back(m->kv().content_hash(sequence));
    }
    EXPECT_NE(hashes[0], hashes[1]);
  }
}

TEST_F(AuxLayers, LayersThatAreNotThereAreRefused) {
  const auto single = make_single_collectives();
  const auto model = Model::load(testing::golden_model("qwen2"), with_aux_layers({1, 3}), *single);
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.status().message().find("layer 3; the target has 2 layers"), std::string::npos);
}

}  // namespace
}  // namespace outrider
