// The model on a CUDA device, or on its emulation: the suite, and what only this back-end has.
#include "model/cuda/model.h"
#include "model/cuda_backend.h"
#include "model/quantized_file.h"
#include "tests/model/model_suite.h"
#include "tests/model/tree_suite.h"
#include "tests/support/temporary_directory.h"

namespace outrider {

Device testing::suite_device() { return {.kind = Device::Kind::kCuda}; }
std::string testing::no_suite_device() {
  const auto count = cuda_device_count();
  return count.ok() ? "" : count.status().message();
}
// The emulation takes its time; these differ in everything that its kernels see: sizes, biases, norms, types.
std::vector<std::string> testing::suite_models() {
  if (cuda::version_text() == "emulation")
    return {"llama-bias", "qwen2",      "qwen3-bf16",  "gemma2",           "gemma3",
            "olmo2",      "granite",    "phi3",        "smollm3",          "mixtral",
            "qwen2-moe",  "gpt-oss",    "deepseek-v2", "deepseek-v2-lite", "deepseek-v3",
            "glm4-moe",   "minimax-m2", "ernie45-moe", "hunyuan",          "lfm2",
            "lfm2-moe",   "qwen3-next", "qwen3.5",     "qwen3.5-moe"};
  std::vector<std::string> names = kFamilyModels;
  std::erase_if(names, [](const std::string& name) { return name.starts_with("gemma4"); });
  names.insert(names.begin(), kGoldenModels.begin(), kGoldenModels.end());
  return names;
}
int testing::suite_tree_rounds() { return cuda::version_text() == "emulation" ? 1 : 6; }

namespace {

using testing::random_ids;
using testing::same_bits;
using testing::suite_device;

class CudaModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = testing::no_suite_device(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_F(CudaModelTest, Gemma4IsRefusedByName) {
  auto single = make_single_collectives();
  const auto model = Model::load(testing::golden_model("gemma4"), {.device = suite_device()}, *single);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), StatusCode::kUnsupported);
  for (const char* words : {"Gemma4ForCausalLM", "--device cpu"})
    EXPECT_NE(model.status().message().find(words), std::string::npos) << model.status().message();
}

// The CPU is another back-end: equal up to rounding only.
TEST_F(CudaModelTest, AgreesWithTheCpu) {
  auto single = make_single_collectives();
  for (const auto& [name, tolerance] :
       {std::pair<const char*, float>{"qwen2", 1e-4f}, {"qwen3-bf16", 0.2f}}) {
    const auto ids = random_ids(40, 280, 11);
    auto cuda = testing::load_or_die(testing::golden_model(name), {.device = suite_device()}, *single);
    auto cpu = testing::load_or_die(testing::golden_model(name), {}, *single);
    const auto a = testing::logits_in_chunks(*cuda, ids, 6), b = testing::logits_in_chunks(*cpu, ids, 6);
    ASSERT_EQ(a.size(), b.size());
    float worst = 0;
    for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
    EXPECT_LT(worst, tolerance) << name;
  }
}

// The goldens of families are fp32, and so are their keys and values; here they go through tensor cores. What
// bf16 rounds is compared with what it rounds on the CPU, against the distance of both from fp32.
TEST_F(CudaModelTest, FamiliesInBf16KeepTheirBitsAndStayClose) {
  auto single = make_single_collectives();
  for (const char* name : {"gemma2", "olmo2", "phi3", "smollm3", "qwen3-moe", "deepseek-v2", "deepseek-v3",
                           "lfm2", "qwen3-next", "qwen3.5"}) {
    const auto path = testing::golden_model(name);
    const ModelOptions options{.device = suite_device(), .weight_format = WeightFormat::kBFloat16};
    auto model = testing::load_or_die(path, options, *single);
    const auto ids = random_ids(24, model->config().vocab_size, 7);
    const auto reference = testing::logits_in_chunks(*model, ids, 1);
    for (size_t chunk : {5u, 24u})
      EXPECT_TRUE(same_bits(reference, testing::logits_in_chunks(*model, ids, chunk)))
          << name << " " << chunk;
    EXPECT_TRUE(same_bits(reference, testing::logits_of_group(name, 4, ids, 7, WeightFormat::kBFloat16)))
        << name;
    auto cpu = testing::load_or_die(path, {.weight_format = WeightFormat::kBFloat16}, *single);
    auto exact = testing::load_or_die(path, {}, *single);
    const auto truth = testing::logits_in_chunks(*exact, ids, 24);
    const double error = testing::relative_difference(reference, truth),
                 error_of_cpu = testing::relative_difference(testing::logits_in_chunks(*cpu, ids, 24), truth);
    std::printf("%s in bf16: logits off by %.4f of their size, on the CPU by %.4f\n", name, error,
                error_of_cpu);
    EXPECT_LT(error, 1.5 * error_of_cpu + 1e-3) << name;
    EXPECT_GT(error, 1e-4) << name;
  }
}

// The experts of a mixture lie side by side: groups of codes do not.
TEST_F(CudaModelTest, MixturesStoredInOurCodesAreRefusedByName) {
  const auto original = testing::golden_model("qwen3-moe");
  const TemporaryDirectory stored;
  std::filesystem::copy_file(original / "config.json", stored.path() / "config.json");
  const auto config = read_model_config(original).value();
  auto files = TensorFiles::open(original).value();
  ThreadPool pool(1);
  std::FILE* to = std::fopen((stored.path() / "model.safetensors").c_str(), "wb");
  ASSERT_TRUE(write_quantized(files, config, WeightFormat::kInt8, pool, {}, to).ok());
  std::fclose(to);
  const auto single = make_single_collectives();
  const auto refused = Model::load(stored.path(), {.device = suite_device()}, *single);
  ASSERT_FALSE(refused.ok());
  for (const char* part : {"mlp.experts.0.", "--weight-format", "--device cpu"})
    EXPECT_NE(refused.status().message().find(part), std::string::npos) << refused.status().message();
  EXPECT_TRUE(
      Model::load(original, {.device = suite_device(), .weight_format = WeightFormat::kInt8}, *single).ok());
}

// Latent attention and its mixture, whose choices a rounding may change: so bits alone. Eight ranks share six
// heads.
TEST_F(CudaModelTest, LatentsInEveryFormatKeepTheirBits) {
  auto single = make_single_collectives();
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kFloat8, WeightFormat::kInt4}) {
    auto model = testing::load_or_die(testing::golden_model("deepseek-v3"),
                                      {.device = suite_device(), .weight_format = format}, *single);
    const auto ids = random_ids(20, model->config().vocab_size, 7);
    const auto reference = testing::logits_in_chunks(*model, ids, 1);
    for (const float logit : reference) ASSERT_TRUE(std::isfinite(logit));
    EXPECT_TRUE(same_bits(reference, testing::logits_in_chunks(*model, ids, 20)));
    for (int tp_size : {2, 8})
      EXPECT_TRUE(same_bits(reference, testing::logits_of_group("deepseek-v3", tp_size, ids, 7, format)))
          << weight_format_name(format) << ' ' << tp_size;
  }
}

class CudaCodes : public ::testing::TestWithParam<std::tuple<std::string, WeightFormat>> {
 protected:
  void SetUp() override {
    if (const std::string reason = testing::no_suite_device(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(CudaCodes, BitsDependOnNothingElseAndLogitsStayClose) {
  const auto& [name, format] = GetParam();
  auto single = make_single_collectives();
  auto model = testing::load_or_die(testing::golden_model(name),
                                    {.device = suite_device(), .weight_format = format}, *single);
  const auto ids = random_ids(24, model->config().vocab_size, 7);
  const auto reference = testing::logits_in_chunks(*model, ids, 1);
  for (size_t chunk : {5u, 9u, 24u})
    EXPECT_TRUE(same_bits(reference, testing::logits_in_chunks(*model, ids, chunk))) << "chunk " << chunk;
  for (int tp_size : {2, 8})
    EXPECT_TRUE(same_bits(reference, testing::logits_of_group(name, tp_size, ids, 7, format))) << tp_size;

  // Activations are bf16, so the original in bf16 is what codes are compared with. Of a group of Gaussian
  // weights int8 leaves an error of 0.6 %, fp8 one of 2.6 % and int4 one of 8 %; those of the matrices on the
  // way add up: measured up to 0.04, 0.14 and 0.37.
  auto exact =
      testing::load_or_die(testing::golden_model(name),
                           {.device = suite_device(), .weight_format = WeightFormat::kBFloat16}, *single);
  const double error = testing::relative_difference(reference, testing::logits_in_chunks(*exact, ids, 24));
  std::printf("%s %s: logits off by %.3f of their size\n", name.c_str(), weight_format_name(format), error);
  EXPECT_LT(error, format == WeightFormat::kInt8 ? 0.08 : format == WeightFormat::kFloat8 ? 0.3 : 0.7);
  EXPECT_GT(error, 1e-4) << "not quantised at all?";
  EXPECT_LT(model->weight_bytes(), exact->weight_bytes());
}

TEST_F(CudaModelTest, StoredCodesLoadWithTheBitsOfQuantisingAtLoad) {
  for (WeightFormat format : {WeightFormat::kInt8, WeightFormat::kFloat8, WeightFormat::kInt4})
    testing::expect_stored_equals_quantised_at_load("qwen3-bf16", format);
}

INSTANTIATE_TEST_SUITE_P(Formats, CudaCodes,
                         ::testing::Combine(::testing::Values("qwen3-bf16", "qwen2"),
                                            ::testing::Values(WeightFormat::kInt8, WeightFormat::kFloat8,
                                                              WeightFormat::kInt4)),
                         [](const auto& instance) {
                           std::string text = std::get<0>(instance.param);
                           std::replace(text.begin(), text.end(), '-', '_');
                           return text + "_" + weight_format_name(std::get<1>(instance.param));
                         });

constexpr int64_t kNoiseVocab = 100;
// With a latent of more than one tile of dimensions.
ModelConfig latent_noise_config() {
  const LatentConfig latent{.q_rank = 24, .kv_rank = 40, .nope_dim = 16, .rope_dim = 8, .value_dim = 12};
  return {.hidden_size = 64,
          .num_layers = 2,
          .num_heads = 6,
          .num_kv_heads = 1,
          .head_dim = latent.kv_rank + latent.rope_dim,
          .latent = latent,
          .intermediate_size = 96,
          .vocab_size = kNoiseVocab,
          .max_position_embeddings = 320,
          .rope = {.dims = latent.rope_dim},
          .scales = {.attention = 0.2}};
}
ModelConfig noise_config() {
  return {.hidden_size = 64,
          .num_layers = 2,
          .num_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 16,
          .intermediate_size = 96,
          .vocab_size = kNoiseVocab,
          .max_position_embeddings = 320};
}

// A text longer than one attention split, decoded one by one and in chunks across the border.
TEST_F(CudaModelTest, BitsDoNotDependOnChunksAcrossSplits) {
  auto single = make_single_collectives();
  for (const ModelConfig& config : {noise_config(), latent_noise_config()}) {
    const ModelOptions options{.device = suite_device(), .max_logit_rows = 8, .kv_tokens = 640};
    const auto model = cuda::CudaModel::of_noise(config, options, *single).value();
    const auto ids = random_ids(270, kNoiseVocab, 5);
    const auto logits_after = [&](std::span<const size_t> chunks) {
      const KvHandle sequence = model->kv().create();
      std::vector<float> last;
      size_t at = 0;
      for (size_t chunk : chunks) {
        const BatchSlice slice{sequence, std::span(ids).subspan(at, chunk), 1};
        last = testing::rows_of(model->forward({&slice, 1}).value().logits);
        at += chunk;
      }
      EXPECT_EQ(at, ids.size());
      model->kv().release(sequence);
      return last;
    };
    const auto one_step = logits_after(std::vector<size_t>{250, 20});
    for (const float logit : one_step) ASSERT_TRUE(std::isfinite(logit));
    EXPECT_TRUE(same_bits(one_step, logits_after(std::vector<size_t>{250, 3, 4, 1, 9, 1, 1, 1})));
    EXPECT_TRUE(same_bits(one_step, logits_after(std::vector<size_t>{100, 156, 14})));
  }
}

// Trees behind, over and in front of a border of splits; keys and values of both kinds, and latents.
TEST_F(CudaModelTest, TreesAcrossSplitsHaveTheBitsOfTheirChains) {
  auto single = make_single_collectives();
  using Kv = ModelOptions::Kv;
  for (const auto& [config, kv] : {std::pair{noise_config(), Kv::kBFloat16},
                                   {noise_config(), Kv::kFloat32},
                                   {latent_noise_config(), Kv::kBFloat16}}) {
    const ModelOptions options{
        .device = suite_device(), .max_rows = 320, .max_logit_rows = 128, .kv_tokens = 4096, .kv = kv};
    const auto model = cuda::CudaModel::of_noise(config, options, *single).value();
    testing::expect_trees_equal_chains(*model, 4, 1, {.shortest = 118, .longest = 136});
  }
}

// A kernel that is started early waits for what it reads: the bits of kernels in turn.
TEST_F(CudaModelTest, KernelsThatOverlapChangeNoBit) {
  auto single = make_single_collectives();
  const auto ids = random_ids(40, kNoiseVocab, 6);
  std::vector<float> logits[2];
  for (bool overlap : {false, true}) {
    const auto model = cuda::CudaModel::of_noise(
                           noise_config(), {.device = suite_device(), .overlap_kernels = overlap}, *single)
                           .value();
    for (size_t chunk : {1u, 7u, 40u}) {
      const auto part = testing::logits_in_chunks(*model, ids, chunk);
      logits[overlap].insert(logits[overlap].end(), part.begin(), part.end());
    }
  }
  EXPECT_TRUE(same_bits(logits[0], logits[1]));
}

// The bits of forward(), in the device's memory; the host's model has its own in place.
TEST_F(CudaModelTest, LogitsInPlaceAreWhereTheyWereComputed) {
  auto single = make_single_collectives();
  const auto ids = random_ids(5, 280, 11);
  for (const Device& device : {suite_device(), Device{}}) {
    auto model = testing::load_or_die(testing::golden_model("qwen2"), {.device = device}, *single);
    const auto expected = testing::logits_in_chunks(*model, ids, ids.size());
    const BatchSlice slice{model->kv().create(), ids, static_cast<int64_t>(ids.size())};
    const PlacedLogits in_place = model->forward_in_place({&slice, 1}).value();
    const auto* on_device = std::get_if<DeviceLogits>(&in_place);
    ASSERT_EQ(on_device != nullptr, device.kind == Device::Kind::kCuda);
    if (!on_device) {
      EXPECT_TRUE(same_bits(testing::rows_of(std::get<LogitsShard>(in_place).logits), expected));
      continue;
    }
    EXPECT_EQ(on_device->vocab_size, model->config().vocab_size);
    std::vector<float> rows(expected.size());
    cuda::copy(rows.data(), on_device->logits.data(), on_device->logits.size(), on_device->stream);
    on_device->stream.synchronize();
    EXPECT_TRUE(same_bits(rows, expected));
  }
}

TEST_F(CudaModelTest, ForkIsCopiedOnWrite) {
  auto single = make_single_collectives();
  for (const auto& [name, format] : {std::pair{"llama3.2", WeightFormat::kAuto},
                                     {"deepseek-v2-lite", WeightFormat::kAuto},
                                     {"deepseek-v2", WeightFormat::kBFloat16}}) {
    auto model =
        testing::load_or_die(testing::golden_model(name),
                             {.device = suite_device(), .kv_tokens = 256, .weight_format = format}, *single);
    const auto ids = random_ids(24, model->config().vocab_size, 8);
    KvCache& kv = model->kv();
    const KvHandle a = kv.create();
    const BatchSlice prefill{a, std::span(ids).first(20), 0};
    ASSERT_TRUE(model->forward({&prefill, 1}).ok());
    const uint64_t before = kv.content_hash(a);
    const KvHandle b = kv.fork(a);
    EXPECT_EQ(kv.content_hash(b), before);
    const BatchSlice more{b, std::span(ids).last(4), 1};
    ASSERT_TRUE(model->forward({&more, 1}).ok());
    EXPECT_EQ(kv.content_hash(a), before);
    EXPECT_NE(kv.content_hash(b), before);
    kv.truncate(b, 23);
    const BatchSlice same{a, std::span(ids).subspan(20, 3), 0};
    ASSERT_TRUE(model->forward({&same, 1}).ok());
    EXPECT_EQ(kv.content_hash(a), kv.content_hash(b)) << name;
  }
}

// A device holds latents once, the CPU as keys and as values.
TEST_F(CudaModelTest, LatentsAreStoredOnce) {
  const KvShape shape{.layers = 2, .kv_heads = 1, .head_dim = 24, .type = KvType::kFloat32};
  EXPECT_EQ(cuda::DeviceKvStorage::bytes_for(shape, 18, 3), 3 * 2 * 16 * 24 * 4);
  EXPECT_EQ(cuda::DeviceKvStorage::bytes_for(shape, 0, 3), 2 * 3 * 2 * 16 * 24 * 4);
}

TEST_F(CudaModelTest, LatentsOfOddSizesAreRefusedByName) {
  auto single = make_single_collectives();
  ModelConfig config = latent_noise_config();
  config.latent->value_dim = 13;
  const auto odd = cuda::CudaModel::of_noise(config, {.device = suite_device()}, *single);
  ASSERT_FALSE(odd.ok());
  for (const char* part : {"v_head_dim 13", "--device cpu"})
    EXPECT_NE(odd.status().message().find(part), std::string::npos) << odd.status().message();
}

TEST_F(CudaModelTest, WhatDoesNotFitIsToldBeforeLoading) {
  auto single = make_single_collectives();
  std::string notice;
  const ModelOptions fits{.device = suite_device(),
                          .notice = [&](const std::string& text) { notice = text; }};
  ASSERT_TRUE(Model::load(testing::golden_model("llama2"), fits, *single).ok());
  EXPECT_NE(notice.find("KV cache"), std::string::npos) << notice;
  const ModelOptions huge{.device = suite_device(), .kv_tokens = int64_t{1} << 34};
  const auto refused = Model::load(testing::golden_model("llama2"), huge, *single);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  const ModelOptions elsewhere{.device = {.kind = Device::Kind::kCuda, .index = 99}};
  EXPECT_FALSE(Model::load(testing::golden_model("llama2"), elsewhere, *single).ok());
}

TEST_F(CudaModelTest, NoiseModelRuns) {
  auto single = make_single_collectives();
  for (WeightFormat format : {WeightFormat::kAuto, WeightFormat::kInt4}) {
    auto model = cuda::CudaModel::of_noise(noise_config(),
                                           {.device = suite_device(), .weight_format = format}, *single);
    ASSERT_TRUE(model.ok()) << model.status().message();
    const auto logits = testing::logits_in_chunks(**model, random_ids(10, kNoiseVocab, 1), 5);
    for (float value : logits) ASSERT_TRUE(std::isfinite(value));
    EXPECT_GT(*std::max_element(logits.begin(), logits.end()), 0);
  }
}

}  // namespace
}  // namespace outrider
