// Forward passes through the first layers of a model. They give the bits of a checkpoint that has only these
// layers, on any number of ranks and in any batch. They leave nothing behind that affects a whole pass.
#include <nlohmann/json.hpp>

#include "model/exited_tokens.h"
#include "tests/model/model_suite.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::same_bits;

void write_first_layers(const std::filesystem::path& from, int64_t layers, const std::filesystem::path& to) {
  std::filesystem::copy_file(from / "model.safetensors", to / "model.safetensors");
  auto config = nlohmann::json::parse(std::ifstream(from / "config.json"));
  config["num_hidden_layers"] = layers;
  if (config.contains("layer_types"))
    config["layer_types"].erase(config["layer_types"].begin() + layers, config["layer_types"].end());
  if (config.contains("mlp_only_layers")) {
    json kept = json::array();
    for (const json& layer : config["mlp_only_layers"])
      if (layer < layers) kept.push_back(layer);
    config["mlp_only_layers"] = kept;
  }
  std::ofstream(to / "config.json") << config.dump();
}

class FirstLayers : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string reason = testing::no_suite_device(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

// Two texts in passes of many rows and of few, with logits of some rows and of all.
void expect_first_layers_alone(Model& whole, Model& first) {
  const int64_t layers = first.config().num_layers;
  const auto ids = testing::random_ids(29, whole.config().vocab_size, 3);
  const std::array<std::vector<TokenId>, 2> texts{ids, {ids.begin() + 5, ids.end()}};
  std::array<KvHandle, 2> exiting{whole.kv().create(), whole.kv().create()},
      alone{first.kv().create(), first.kv().create()};
  size_t done = 0;
  for (const auto& [tokens, logit_rows] : {std::pair<size_t, int64_t>{17, 1}, {1, 1}, {4, 4}, {2, 1}}) {
    std::vector<BatchSlice> slices;
    std::vector<float> expected;
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto part = std::span(texts[i]).subspan(done, tokens);
      slices.push_back({exiting[i], part, logit_rows});
      const BatchSlice slice{alone[i], part, logit_rows};
      const auto rows = testing::rows_of(first.forward({&slice, 1}).value().logits);
      expected.insert(expected.end(), rows.begin(), rows.end());
    }
    std::array<ExitedTokens, 2> exited;
    const std::array<ExitedTokens*, 2> keep{&exited[0], &exited[1]};
    for (ExitedTokens& of : exited) of.begin(static_cast<int64_t>(done), static_cast<int64_t>(tokens));
    EXPECT_TRUE(
        same_bits(expected, testing::rows_of(whole.forward_first(slices, layers, keep).value().logits)))
        << tokens << " tokens";
    done += tokens;
  }

  std::vector<std::vector<float>> logits;
  std::vector<uint64_t> hashes;
  for (const KvHandle sequence : {exiting[0], whole.kv().create()}) {
    whole.kv().truncate(sequence, 0);
    const BatchSlice slice{sequence, ids, 3};
    logits.push_back(testing::rows_of(whole.forward({&slice, 1}).value().logits));
    hashes.push_back(whole.kv().content_hash(sequence));
  }
  EXPECT_TRUE(same_bits(logits[0], logits[1]));
  EXPECT_EQ(hashes[0], hashes[1]);
}

TEST_P(FirstLayers, HaveTheBitsOfACheckpointWithoutTheOthers) {
  const auto model = testing::golden_model(GetParam());
  const int64_t layers = read_model_config(model).value().num_layers - 1;
  const TemporaryDirectory directory;
  write_first_layers(model, layers, directory.path());
  for (const int ranks : {1, 2, 4})
    testing::run_group(ranks, [&](Collectives& group) {
      SCOPED_TRACE(fmt::format("rank {} of {}", group.rank(), ranks));
      ModelOptions options{
          .device = testing::suite_device(), .shard = {group.rank(), ranks}, .kv_tokens = 192};
      const auto first = testing::load_or_die(directory.path(), options, group);
      options.exit_layer = ranks == 4 ? 0 : layers;  // planned for, or not
      const auto whole = testing::load_or_die(model, options, group);
      expect_first_layers_alone(*whole, *first);
    });
}

// 16 bits, windows and norms behind the blocks, mixtures, sinks, latent attention, short convolutions and
// gated delta nets, as far as the device has them.
std::vector<std::string> models() {
  std::vector<std::string> kept;
  const auto all = testing::suite_models();
  for (const char* name : {"qwen3-bf16", "gemma3", "mixtral", "gpt-oss", "deepseek-v3", "lfm2", "qwen3-next"})
    if (std::find(all.begin(), all.end(), name) != all.end()) kept.emplace_back(name);
  return kept;
}

INSTANTIATE_TEST_SUITE_P(Families, FirstLayers, ::testing::ValuesIn(models()), [](const auto& of) {
  std::string name = of.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace outrider
