// Models that synth wrote, on devices: over the emulation in every build.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "lab/simulate/hardware.h"
#include "lab/synth/weight_file.h"
#include "model/cuda/model.h"
#include "model/kv/cuda_kv_storage.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_cluster.h"

namespace outrider {
namespace {

using testing::TestCluster;

constexpr Device kDevice{.kind = Device::Kind::kCuda};

void write(const std::filesystem::path& directory, const nlohmann::json& config,
           const std::vector<SynthTensor>& tensors) {
  std::filesystem::create_directory(directory);
  std::ofstream(directory / "config.json") << config.dump();
  ASSERT_TRUE(SynthWeightFile::write(directory / "model.safetensors", tensors, {.seed = {5}}).ok());
}

std::vector<std::vector<TokenId>> texts(TestCluster& cluster, int gamma) {
  std::vector<Request> requests;
  for (const int length : {1, 9, 17}) {
    Request request{.max_tokens = 12};
    for (int i = 0; i < length; ++i) request.prompt.emplace_back(10 + i % 6);
    request.gamma = parse_gamma_policy("fixed:gamma=" + std::to_string(gamma)).value();
    requests.push_back(std::move(request));
  }
  std::vector<std::vector<TokenId>> ids;
  for (testing::Finished& finished : cluster.run(std::move(requests))) {
    EXPECT_TRUE(finished.error.ok()) << finished.error.message();
    ids.push_back(std::move(finished.ids));
  }
  return ids;
}

// A target with latent attention and a mixture, and its module: text and drafts on one device and on two
// ranks, and what `simulate plan` counts of the target beside what the device holds.
TEST(SynthOnDevices, DeepSeekDraftsWithItsModuleAndTakesWhatIsPlanned) {
  SynthShape shape{.hidden = 64,
                   .layers = 4,
                   .heads = 4,
                   .head_dim = 32,
                   .ffn = 32,
                   .experts = 8,
                   .kv_rank = 32,
                   .q_rank = 48,
                   .dense_layers = 1,
                   .groups = 4,
                   .groups_chosen = 2,
                   .vocab = 320,
                   .max_positions = 128};
  ASSERT_TRUE(check_synth_shape(shape).ok()) << check_synth_shape(shape).message();
  ASSERT_EQ(shape.groups, 4);
  const TemporaryDirectory directory;
  const SynthHead head{.kind = SynthHead::Kind::kMtp, .draft_vocab = shape.vocab};
  const std::string target = directory.path() / "target", module = directory.path() / "mtp";
  write(target, synth_config(shape, shape.layers), synth_tensors(shape, shape.layers, 1));
  write(module, synth_head_config(shape, head), synth_head_tensors(shape, head));

  TestCluster plain({.target = target, .device = kDevice, .weight_format = WeightFormat::kAuto});
  const auto expected = texts(plain, 0);
  for (const int tp_size : {1, 2}) {
    TestCluster cluster({.target = target,
                         .head = module,
                         .head_kind = HeadKind::kMtp,
                         .head_on_device = true,
                         .tp_size = tp_size,
                         .max_num_seqs = 3,
                         .device = kDevice});
    EXPECT_EQ(texts(cluster, 3), expected) << tp_size << " ranks";
    EXPECT_GT(cluster.totals().rounds.drafted, 10);
  }

  const HardwareCost cost = hardware_cost("h100:" + target).value();
  const ModelConfig config = read_model_config(target).value();
  // Norms and corrections aside, and matrices filled up to whole tiles and steps.
  const auto held =
      static_cast<double>(cuda::plan_weights(config, ShardPlan(config, {}), WeightFormat::kBFloat16).bytes);
  EXPECT_NEAR(held, cost.weight_bytes, 0.01 * cost.weight_bytes);
  const KvShape kv{.layers = config.num_layers,
                   .kv_heads = config.num_kv_heads,
                   .head_dim = config.head_dim,
                   .type = KvType::kBFloat16};
  EXPECT_EQ(static_cast<double>(cuda::DeviceKvStorage::bytes_for(kv, config.latent->kv_rank, 8)),
            cost.kv_token_bytes * 8 * static_cast<double>(kBlockTokens));
}

}  // namespace
}  // namespace outrider
