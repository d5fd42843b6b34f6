// Golden models of every published format on the device, compared with the CPU, over batches, chunks and
// ranks.
#include <gtest/gtest.h>

#include <cstring>

#include "model/cuda/weights.h"
#include "model_files/weight_map.h"
#include "tests/model/fp8_pair.h"
#include "tests/model/model_suite.h"
#include "tests/model/tensors_to_change.h"
#include "tests/support/temporary_directory.h"

namespace outrider::cuda {
namespace {

namespace fs = std::filesystem;

fs::path format_path(const std::string& name) {
  const fs::path directory = source_dir() / "tests/goldens/formats" / name;
  return name.starts_with("gguf-") ? directory / "model.gguf" : directory;
}

class CudaPublishedFormat : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string reason = testing::no_suite_device(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

// As on the CPU, numbers are exact and inputs rounded to bf16; what else is rounded, keys and values among
// it, is the same. So both are as far from the dequantised model in fp32, and closer to each other.
TEST_P(CudaPublishedFormat, LogitsAreThoseOfTheCpu) {
  auto single = make_single_collectives();
  const auto golden =
      SafetensorsFile::open(source_dir() / "tests/goldens/formats" / GetParam() / "golden.safetensors")
          .value();
  const TensorInfo& raw = *golden.find("input_ids.0");
  std::vector<int32_t> ids(raw.data.size() / 4);
  std::memcpy(ids.data(), raw.data.data(), raw.data.size());
  const std::vector<TokenId> tokens(ids.begin(), ids.end());
  std::vector<float> expected(golden.find("logits.0")->data.size() / 4);
  std::memcpy(expected.data(), golden.find("logits.0")->data.data(), expected.size() * sizeof(float));
  for (const auto kv : {ModelOptions::Kv::kFloat32, ModelOptions::Kv::kAuto}) {
    auto cuda =
        testing::load_or_die(format_path(GetParam()), {.device = testing::suite_device(), .kv = kv}, *single);
    auto cpu = testing::load_or_die(format_path(GetParam()), {.kv = kv}, *single);
    const auto a = testing::logits_in_chunks(*cuda, tokens, 64),
               b = testing::logits_in_chunks(*cpu, tokens, 64);
    const double off = testing::relative_difference(a, expected), apart = testing::relative_difference(a, b);
    std::printf("%s: logits off by %.4f of their size, from the CPU's by %.4f\n", GetParam().c_str(), off,
                apart);
    EXPECT_LT(off, 0.025);
    EXPECT_LT(apart, 0.02);
  }
}

TEST_P(CudaPublishedFormat, BitsDependOnNoBatchNoChunkAndNoRanks) {
  auto single = make_single_collectives();
  const std::string path = format_path(GetParam()).string();
  auto model = testing::load_or_die(
      path, {.device = testing::suite_device(), .max_logit_rows = 128, .kv_tokens = 1024}, *single);
  const auto ids = testing::random_ids(40, model->config().vocab_size, 7);
  const auto reference = testing::logits_in_chunks(*model, ids, 1);
  for (size_t chunk : {5u, 9u, 17u, 40u})
    EXPECT_TRUE(testing::same_bits(reference, testing::logits_in_chunks(*model, ids, chunk)))
        << "chunk " << chunk;
  // On the emulation formats take turns with numbers of ranks; CudaCodeProducts.RanksContinueTheTree has all
  // codes.
  std::vector ranks{2, 4, 8};
  if (testing::is_thin_suite()) ranks = {ranks[std::hash<std::string>()(GetParam()) % ranks.size()]};
  for (int tp_size : ranks)
    EXPECT_TRUE(testing::same_bits(reference, testing::logits_of_group(path, tp_size, ids, 7)))
        << tp_size << " ranks";
  const auto other = testing::random_ids(40, model->config().vocab_size, 8);
  const BatchSlice batch[]{{model->kv().create(), other, 40}, {model->kv().create(), ids, 40}};
  const auto together = testing::rows_of(model->forward(batch).value().logits);
  EXPECT_TRUE(testing::same_bits(
      reference, {together.begin() + static_cast<ptrdiff_t>(reference.size()), together.end()}));
}

// The memory planned before loading equals the memory that loading allocates.
TEST_P(CudaPublishedFormat, MemoryIsPlanned) {
  auto single = make_single_collectives();
  const fs::path path = format_path(GetParam());
  std::string notice;
  auto model = testing::load_or_die(
      path, {.device = testing::suite_device(), .notice = [&](const std::string& text) { notice = text; }},
      *single);
  EXPECT_NE(notice.find("weights 0.00 GB"), std::string::npos) << notice;
  const ModelConfig config = read_model_config(path).value();
  const auto files = TensorFiles::open(path).value();
  for (int tp_size : {1, 2}) {
    const ShardPlan shard(config, {0, tp_size});
    const WeightMap map = map_weights(files, config, shard).value();
    const WeightPlan plan = plan_weights(map, config, shard, WeightFormat::kAuto).value();
    if (tp_size == 1) {
      EXPECT_EQ(plan.bytes, model->weight_bytes());
    }
    EXPECT_GT(plan.bytes, 0);
  }
}

// Gates and ups that their product makes one are never apart.
TEST(CudaMemoryPlans, GatesAndUpsTakeRoomWhereTheyAreApart) {
  ModelConfig config{.hidden_size = 64,
                     .num_layers = 2,
                     .num_heads = 4,
                     .num_kv_heads = 2,
                     .head_dim = 16,
                     .intermediate_size = 96,
                     .vocab_size = 64};
  const auto gate_columns = [&](WeightFormat format) {
    return plan_weights(config, ShardPlan(config, {}), format).gate_columns;
  };
  EXPECT_EQ(gate_columns(WeightFormat::kBFloat16), 0);
  EXPECT_EQ(gate_columns(WeightFormat::kInt4), 0);
  config.intermediate_size = 100;  // 200 rows of weights do not fill tiles of 16
  EXPECT_EQ(gate_columns(WeightFormat::kBFloat16), 100);
  config.intermediate_size = 96;
  config.layers = {{}, {.has_experts = true}};
  config.experts = ExpertConfig{.count = 4, .chosen = 2, .intermediate_size = 32};
  EXPECT_EQ(gate_columns(WeightFormat::kBFloat16), 128);
}

// DeepSeek-V3 in blocks of fp8, with latent attention, whose kv_b_proj is held in bf16.
TEST(CudaPublishedLatents, AreMultipliedAsOnTheCpuWithTheBitsOfAnyChunkAndRanks) {
  if (const std::string reason = testing::no_suite_device(); !reason.empty()) GTEST_SKIP() << reason;
  const TemporaryDirectory codes, numbers;
  testing::write_fp8_pair(codes.path(), numbers.path(), true);
  const auto single = make_single_collectives();
  auto model = testing::load_or_die(codes.path(), {.device = testing::suite_device()}, *single);
  const auto ids = testing::random_ids(30, model->config().vocab_size, 3);
  const auto reference = testing::logits_in_chunks(*model, ids, 1);
  for (size_t chunk : {7u, 30u})
    EXPECT_TRUE(testing::same_bits(reference, testing::logits_in_chunks(*model, ids, chunk))) << chunk;
  for (int tp_size : {2, 8})
    EXPECT_TRUE(
        testing::same_bits(reference, testing::logits_of_group(codes.path().string(), tp_size, ids, 7)))
        << tp_size;
  auto cpu = testing::load_or_die(codes.path(), {}, *single);
  auto exact = testing::load_or_die(numbers.path(), {}, *single);
  const auto truth = testing::logits_in_chunks(*exact, ids, 30);
  const double off = testing::relative_difference(reference, truth),
               off_on_cpu = testing::relative_difference(testing::logits_in_chunks(*cpu, ids, 30), truth);
  std::printf("latents in fp8: logits off by %.4f of their size, on the CPU by %.4f\n", off, off_on_cpu);
  EXPECT_LT(off, 1.5 * off_on_cpu + 1e-3);
}

// Loading a golden model of which something was changed: the message.
template <class Change>
std::string refusal(const std::string& name, const Change& change) {
  const TemporaryDirectory directory;
  const fs::path path = directory.copy(format_path(name), name);
  testing::TensorsToChange file(path / "model.safetensors");
  change(file.tensors);
  fs::remove(path / "model.safetensors");
  file.write(path / "model.safetensors");
  const auto single = make_single_collectives();
  const auto model = Model::load(path, {.device = testing::suite_device()}, *single);
  return model.ok() ? "" : model.status().message();
}

void expect_names(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << part << " | " << message;
}

// fp16 as fp32.
void widen(testing::TensorsToChange::Tensor& tensor) {
  std::string wide;
  for (size_t i = 0; i < tensor.bytes.size(); i += 2) {
    uint16_t half;
    std::memcpy(&half, tensor.bytes.data() + i, sizeof half);
    const float value = half_to_float(half);
    wide.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  tensor = {"F32", tensor.shape, wide};
}

TEST(CudaPublishedErrors, WhatNoKernelTakesIsNamed) {
  if (const std::string reason = testing::no_suite_device(); !reason.empty()) GTEST_SKIP() << reason;
  EXPECT_EQ(refusal("gptq-4bit", [](auto&) {}), "");
  expect_names(
      refusal("gptq-4bit", [](auto& tensors) { widen(tensors["model.layers.1.mlp.down_proj.scales"]); }),
      {"model.layers.1.mlp.down_proj.qweight", "GPTQ 4 bit, groups of 32", "--device cpu",
       "--weight-format"});
  expect_names(refusal("gptq-4bit", [](auto& tensors) { widen(tensors["lm_head.weight"]); }),
               {"lm_head.weight", "F32", "--device cpu", "--weight-format"});
}

INSTANTIATE_TEST_SUITE_P(Formats, CudaPublishedFormat,
                         ::testing::Values("gptq-4bit", "gptq-4bit-act-order", "gptq-8bit", "awq",
                                           "compressed-4bit", "compressed-int8", "compressed-fp8",
                                           "fp8-blocks", "mxfp4", "gguf-llama-mixed", "gguf-qwen3-q8"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace outrider::cuda
