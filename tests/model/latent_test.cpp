// Latent attention (MLA) with weights in fp8 blocks, as DeepSeek-V3 is published: the text equals that of the
// same numbers in fp32. The suite tests the results of MLA and the independence of its bits from batching.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "model/quantized_file.h"
#include "model_files/unused_tensors.h"
#include "tests/model/fp8_pair.h"
#include "tests/model/model_suite.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

using testing::write_fp8_pair;

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
