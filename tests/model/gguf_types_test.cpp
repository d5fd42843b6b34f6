// Every tensor type of GGUF: dequantized blocks equal those of the package gguf bit for bit, both as read and
// as held in memory (tests/goldens/make_gguf_type_goldens.py).
#include <gtest/gtest.h>

#include <cstring>

#include "model/weights.h"
#include "model_files/gguf_codes.h"
#include "model_files/gguf_file.h"
#include "tests/support/source_dir.h"

namespace outrider {
namespace {

class GgufTypes : public ::testing::Test {
 protected:
  static std::filesystem::path golden(const char* name) {
    return source_dir() / "tests/goldens/gguf_types" / name;
  }
  const MappedFile file_ = MappedFile::open(golden("blocks.gguf")).value();
  const GgufContent content_ = parse_gguf(file_.bytes(), "blocks.gguf").value();
  const SafetensorsFile numbers_ = SafetensorsFile::open(golden("numbers.safetensors")).value();

  std::vector<float> expected(const TensorInfo& tensor) const {
    const TensorInfo* numbers = numbers_.find(tensor.name);
    std::vector<float> out(numbers->data.size() / sizeof(float));
    std::memcpy(out.data(), numbers->data.data(), numbers->data.size());
    return out;
  }
};

::testing::AssertionResult same_bits_of(std::span<const float> got, std::span<const float> expected) {
  for (size_t i = 0; i < expected.size(); ++i)
    if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(expected[i]))
      return ::testing::AssertionFailure() << "column " << i << ": " << got[i] << ", not " << expected[i];
  return ::testing::AssertionSuccess();
}

TEST_F(GgufTypes, TheGoldenHasEveryTypeThatIsRead) {
  for (const GgufType& type : gguf_block_types())
    EXPECT_NE(content_.tensor(dtype_name(type.dtype)), nullptr) << dtype_name(type.dtype);
  EXPECT_EQ(content_.tensors.size(), gguf_block_types().size() + 3);  // F32, F16, BF16
}

TEST_F(GgufTypes, NumbersAreThoseOfThePackage) {
  for (const TensorInfo& tensor : content_.tensors) {
    const std::vector<float> numbers = expected(tensor);
    const int64_t k = tensor.shape[1];
    const auto coded = is_gguf_block(tensor.dtype) ? gguf_codes(tensor) : nullptr;
    std::vector<float> got(numbers.size());
    for (int64_t row = 0; row < tensor.shape[0]; ++row) {
      const std::span<float> to =
          std::span(got).subspan(static_cast<size_t>(row * k), static_cast<size_t>(k));
      for (int64_t i = 0; !coded && i < k; ++i)
        to[static_cast<size_t>(i)] = tensor_element(tensor, row * k + i);
      if (!coded) continue;
      coded->read_weights(row, 0, to);
      std::vector<float> part(61);  // from the middle of one block to that of another
      coded->read_weights(row, 90, part);
      EXPECT_TRUE(same_bits_of(part, to.subspan(90, 61))) << tensor.name;
    }
    EXPECT_TRUE(same_bits_of(got, numbers)) << tensor.name;
  }
}

TEST_F(GgufTypes, HeldMatricesHaveTheSameNumbers) {
  ThreadPool pool(1);
  for (const TensorInfo& tensor : content_.tensors) {
    if (!is_gguf_block(tensor.dtype)) continue;
    const std::vector<float> numbers = expected(tensor);
    const int64_t k = tensor.shape[1];
    const MatrixSource source{
        {{.tensor = &tensor, .rows = {0, tensor.shape[0]}, .columns = {0, k}, .coded = gguf_codes(tensor)}},
        {}};
    for (const ActivationFormat inputs : {ActivationFormat::kBFloat16, ActivationFormat::kInt8}) {
      const PackedMatrix held = pack_matrix(source, WeightType::kCodes, pool, inputs);
      std::vector<float> row(static_cast<size_t>(k));
      for (int64_t i = 0; i < tensor.shape[0]; ++i) {
        held.copy_row(i, row);
        EXPECT_TRUE(same_bits_of(row, std::span(numbers).subspan(static_cast<size_t>(i * k), row.size())))
            << tensor.name << " row " << i;
      }
    }
  }
}

// Types of 5 and 6 bits take those, not bytes, where inputs are int8: Q6_K has 6 bits, 8 of the scale of 16
// columns and 16 of that of 256.
TEST_F(GgufTypes, CodesOfFiveAndSixBitsAreHeldInTheirOwnBits) {
  ThreadPool pool(1);
  for (const auto& [name, bits] :
       {std::pair{"Q6_K", 6.5625}, {"Q5_K", 5.625}, {"Q5_0", 5.5}, {"Q5_1", 6.0}, {"Q8_0", 8.5}}) {
    const TensorInfo* tensor = content_.tensor(name);
    ASSERT_NE(tensor, nullptr) << name;
    const int64_t k = tensor->shape[1];
    const MatrixSource source{
        {{.tensor = tensor, .rows = {0, tensor->shape[0]}, .columns = {0, k}, .coded = gguf_codes(*tensor)}},
        {}};
    const PackedMatrix held = pack_matrix(source, WeightType::kCodes, pool, ActivationFormat::kInt8);
    EXPECT_EQ(static_cast<double>(held.codes()->end * 8) / static_cast<double>(kTileColumns * k), bits)
        << name;
  }
}

}  // namespace
}  // namespace outrider
