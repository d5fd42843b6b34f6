// Importance matrices of llama-imatrix: both formats give the same numbers, and damage is an error.
#include "model_files/importance_matrix.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/support/gguf_builder.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

using testing::Gguf;

// Two matrices: one of three columns, and one of two experts of two columns, the second of which was never
// chosen.
std::string gguf_file(float count = 4) {
  std::string file = Gguf()
                         .text("general.type", "imatrix")
                         .tensor("a.weight.in_sum2", {3}, 0, 12)
                         .tensor("a.weight.counts", {1, 1}, 0, 4)
                         .tensor("b.weight.in_sum2", {2, 2}, 0, 16)
                         .tensor("b.weight.counts", {1, 2}, 0, 8)
                         .file();
  const size_t data = file.size() - 32 * 3 - 8;
  const auto put = [&](size_t at, std::vector<float> numbers) {
    std::memcpy(file.data() + data + at, numbers.data(), numbers.size() * sizeof(float));
  };
  put(0, {4, 8, 12});
  put(32, {count});
  put(64, {6, 9, 0, 0});
  put(96, {3, 0});
  return file;
}

std::string legacy_file(int32_t first_calls = 2) {
  const auto entry = [](const std::string& name, int32_t calls, const std::vector<float>& numbers) {
    std::string out = Gguf::bytes(static_cast<int32_t>(name.size())) + name + Gguf::bytes(calls) +
                      Gguf::bytes(static_cast<int32_t>(numbers.size()));
    for (const float number : numbers) out += Gguf::bytes(number);
    return out;
  };
  return Gguf::bytes(int32_t{2}) + entry("a.weight", first_calls, {2, 4, 6}) +
         entry("b.weight", 2, {4, 6, 2, 2}) + Gguf::bytes(int32_t{7});  // what follows is not read
}

Result<ImportanceMatrix> read(const std::string& file) {
  const TemporaryDirectory directory;
  return ImportanceMatrix::open(directory.write("imatrix", file));
}

TEST(ImportanceMatrix, BothFormatsAreRead) {
  for (const std::string& file : {gguf_file(), legacy_file()}) {
    const auto matrix = read(file);
    ASSERT_TRUE(matrix.ok()) << matrix.status().message();
    const auto a = matrix->of("a.weight"), b = matrix->of("b.weight");
    EXPECT_EQ(std::vector<float>(a.begin(), a.end()), (std::vector<float>{1, 2, 3}));
    EXPECT_EQ(std::vector<float>(b.begin(), b.end()), (std::vector<float>{2, 3, 1, 1}));
    EXPECT_TRUE(matrix->of("c.weight").empty());
  }
}

TEST(ImportanceMatrix, DamageIsTold) {
  const std::string legacy = legacy_file();
  for (size_t size = 0; size + 5 < legacy.size(); ++size)
    EXPECT_FALSE(read(legacy.substr(0, size)).ok()) << size;
  EXPECT_FALSE(read("any text that is long enough to hold a number").ok());
  EXPECT_NE(read(Gguf().text("general.type", "model").file()).status().message().find("in_sum2"),
            std::string::npos);
  EXPECT_NE(read(Gguf().tensor("a.in_sum2", {3}, 0, 12).file()).status().message().find("a.counts"),
            std::string::npos);
  std::string negative = legacy;
  negative[4 + 4 + 8 + 8 + 3] = '\xc0';  // the sign of the first number
  EXPECT_NE(read(negative).status().message().find("negative"), std::string::npos)
      << read(negative).status().message();
  for (const std::string& counted : {gguf_file(-4), legacy_file(-2)}) {
    const auto refused = read(counted);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.status().message().find("imatrix: a.weight"), std::string::npos)
        << refused.status().message();
  }
  std::mt19937 random(3);
  for (const std::string& good : {gguf_file(), legacy})
    for (int i = 0; i < 2000; ++i) {
      std::string file = good;
      for (int changes = 0; changes < 3; ++changes)
        file[random() % file.size()] = static_cast<char>(random() % 4 ? random() : 255);
      (void)read(file);
    }
}

}  // namespace
}  // namespace outrider
