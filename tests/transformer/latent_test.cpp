// Latent attention with weights in fp8 blocks, as DeepSeek-V3 is published: the text of the same numbers in
// fp32. What it computes at all, and the contract of bits, are in the suite.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>

#include "base/float8.h"
#include "tests/support/temporary_directory.h"
#include "tests/transformer/model_suite.h"
#include "tests/transformer/tensors_to_change.h"
#include "transformer/files/quantized_file.h"
#include "transformer/files/unused_tensors.h"
#include "transformer/ops/cpu/cpu_ops.h"

namespace outrider {
namespace {

using testing::TensorsToChange;

constexpr int64_t kBlockRows = 24, kBlockColumns = 16;

std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

bool stays(const std::string& name, size_t dimensions) {
  return dimensions != 2 || name.find("embed_tokens") != name.npos || name.find("lm_head") != name.npos ||
         name.find("mlp.gate.") != name.npos;
}

// The golden model with random codes in its matrices, and with the numbers that they stand for.
void write_fp8_pair(const std::filesystem::path& codes_to, const std::filesystem::path& numbers_to) {
  const auto source = testing::golden_model("deepseek-v3");
  TensorsToChange codes(source / "model.safetensors"), numbers(source / "model.safetensors");
  std::mt19937 random(5);
  for (const auto& [name, tensor] : TensorsToChange(source / "model.safetensors").tensors) {
    if (stays(name, tensor.shape.size())) continue;
    const int64_t n = tensor.shape[0], k = tensor.shape[1], columns = (k + kBlockColumns - 1) / kBlockColumns,
                  rows = (n + kBlockRows - 1) / kBlockRows;
    std::vector<float> scales, values;
    for (int64_t i = 0; i < rows * columns; ++i)
      scales.push_back(0.002f + 0.0001f * static_cast<float>(random() % 40));
    std::string bytes;
    for (int64_t r = 0; r < n; ++r)
      for (int64_t c = 0; c < k; ++c) {
        const auto code = static_cast<uint8_t>(random() % 112 + (random() % 2) * 128);  // magnitudes to 240
        bytes.push_back(static_cast<char>(code));
        values.push_back(e4m3_to_float(code) *
                         scales[static_cast<size_t>(r / kBlockRows * columns + c / kBlockColumns)]);
      }
    codes.tensors[name] = {"F8_E4M3", {n, k}, bytes};
    codes.tensors[name + "_scale_inv"] = {"F32", {rows, columns}, bytes_of(scales)};
    numbers.tensors[name] = {"F32", {n, k}, bytes_of(values)};
  }
  // A layer behind the last, for drafts, in codes as well.
  codes.tensors["model.layers.2.eh_proj.weight"] = {"F8_E4M3", {1, 1}, "x"};
  codes.tensors["model.layers.2.eh_proj.weight_scale_inv"] = {"F32", {1, 1}, bytes_of({1})};
  codes.write(codes_to / "model.safetensors");
  numbers.write(numbers_to / "model.safetensors");
  auto config = nlohmann::json::parse(std::ifstream(source / "config.json"));
  std::ofstream(numbers_to / "config.json") << config.dump();
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"activation_scheme", "dynamic"},
                                   {"weight_block_size", {kBlockRows, kBlockColumns}}};
  std::ofstream(codes_to / "config.json") << config.dump();
}

// Codes are multiplied as exact numbers with inputs rounded to bf16, so the model of numbers in fp32 is near
// and no more.
TEST(LatentAttention, BlocksOfFp8AreReadAsTheirNumbers) {
  const TemporaryDirectory codes, numbers;
  write_fp8_pair(codes.path(), numbers.path());
  auto single = make_single_collectives();
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(pin_isa(isa).ok());
    const ModelOptions options{.threads = 2, .bytes_per_thread = 1, .kv = ModelOptions::Kv::kFloat32};
    auto packed = testing::load_or_die(codes.path(), options, *single);
    auto plain = testing::load_or_die(numbers.path(), options, *single);
    const auto ids = testing::random_ids(40, packed->config().vocab_size, 3);
    const auto numbers_say = testing::logits_in_chunks(*plain, ids, 7);
    const auto reference = testing::logits_in_chunks(*packed, ids, 1);
    float largest = 0, apart = 0;
    for (size_t i = 0; i < reference.size(); ++i) {
      ASSERT_TRUE(std::isfinite(reference[i]));
      largest = std::max(largest, std::abs(numbers_say[i]));
      apart = std::max(apart, std::abs(reference[i] - numbers_say[i]));
    }
    EXPECT_LT(apart, 0.03F * largest) << isa;
    EXPECT_TRUE(testing::same_bits(reference, testing::logits_in_chunks(*packed, ids, 7))) << isa;
    EXPECT_LT(packed->weight_bytes(), plain->weight_bytes());
    for (const int tp_size : {2, 8})
      EXPECT_TRUE(
          testing::same_bits(reference, testing::logits_of_group(codes.path().string(), tp_size, ids, 5)))
          << isa << " ranks " << tp_size;
  }
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
  const auto files = TensorFiles::open(codes.path()).value();
  const auto unused = unused_tensors(files, read_model_config(codes.path()).value());
  ASSERT_TRUE(unused.ok()) << unused.status().message();
  EXPECT_EQ(unused->size(), 2u);
}

// Eight ranks share six heads; and every format that loading makes.
TEST(LatentAttention, EveryFormatKeepsTheContract) {
  for (const char* name : {"deepseek-v2-lite", "deepseek-v3"})
    for (const WeightFormat format : {WeightFormat::kBFloat16, WeightFormat::kInt8, WeightFormat::kInt4}) {
      auto single = make_single_collectives();
      auto model =
          testing::load_or_die(testing::golden_model(name),
                               {.threads = 2, .bytes_per_thread = 1, .weight_format = format}, *single);
      const auto ids = testing::random_ids(30, model->config().vocab_size, 3);
      const auto reference = testing::logits_in_chunks(*model, ids, 1);
      EXPECT_TRUE(testing::same_bits(reference, testing::logits_in_chunks(*model, ids, 9))) << name;
      for (const int tp_size : {1, 4, 8})
        EXPECT_TRUE(testing::same_bits(reference, testing::logits_of_group(name, tp_size, ids, 7, format)))
            << name << ' ' << weight_format_name(format) << ' ' << tp_size;
    }
}

TEST(LatentAttention, QuantisingToAFileIsRefused) {
  const auto directory = testing::golden_model("deepseek-v2");
  const auto files = TensorFiles::open(directory).value();
  const auto config = read_model_config(directory).value();
  ThreadPool pool(1);
  std::FILE* to = std::tmpfile();
  const Status refused = write_quantized(files, config, WeightFormat::kInt8, pool, {}, to);
  std::fclose(to);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.message().find("kv_b_proj"), std::string::npos) << refused.message();
}

}  // namespace
}  // namespace outrider
