// Models written in blocks of GGUF: directories and GGUF files of every family load, give the same text on
// any number of ranks, and their matrices are the quantised rows of the original.
#include "model/block_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/cpu/gguf_quantize.h"
#include "model_files/gguf_codes.h"
#include "model_files/gguf_keys.h"
#include "model_files/gguf_parts.h"
#include "tests/model/converted_gguf.h"
#include "tests/model/model_suite.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Original {
  explicit Original(fs::path where)
      : path(std::move(where)),
        config(read_model_config(path).value()),
        files(TensorFiles::open(path).value()) {}
  fs::path path;
  ModelConfig config;
  TensorFiles files;
};

using Writer = std::function<Status(const BlockWriting&, std::FILE*)>;

Status write_file(const fs::path& to, const std::string& format, bool takes_codes, const Writer& writer) {
  ThreadPool pool(2);
  std::FILE* file = std::fopen(to.c_str(), "wb");
  const Status status =
      writer({.format = *find_block_format(format), .takes_codes = takes_codes, .pool = pool}, file);
  std::fclose(file);
  return status;
}

Status write_directory(const Original& from, const fs::path& to, const std::string& format) {
  fs::create_directory(to);
  fs::copy_file(from.path / "config.json", to / "config.json");
  return write_file(to / "model.safetensors", format, false, [&](const BlockWriting& how, std::FILE* file) {
    return write_blocks(from.files, from.config, how, file);
  });
}

Status write_gguf(const Original& from, const fs::path& to, const std::string& format,
                  bool takes_codes = false) {
  return write_file(to, format, takes_codes, [&](const BlockWriting& how, std::FILE* file) {
    return write_gguf_blocks(from.path, from.files, from.config, how, file);
  });
}

std::vector<float> logits_of(const fs::path& model) {
  auto single = make_single_collectives();
  auto loaded = testing::load_or_die(model, {.threads = 1}, *single);
  return testing::logits_in_chunks(*loaded, testing::random_ids(24, loaded->config().vocab_size, 3), 7);
}

class BlockFiles : public ::testing::TestWithParam<std::string> {
 protected:
  TemporaryDirectory temporary_;
};

TEST_P(BlockFiles, ADirectoryLoadsAndItsBitsDependOnNoRanks) {
  const Original original(testing::golden_model(GetParam()));
  const fs::path stored = temporary_ / "stored";
  const Status written = write_directory(original, stored, "q4_k");
  if (written.code() == StatusCode::kUnsupported) GTEST_SKIP() << written.message();  // experts in one tensor
  ASSERT_TRUE(written.ok()) << written.message();
  const auto ids = testing::random_ids(24, original.config.vocab_size, 3);
  const auto alone = testing::logits_of_group(stored.string(), 1, ids, 7);
  EXPECT_LT(testing::relative_difference(alone, testing::logits_of_group(original.path.string(), 1, ids, 7)),
            0.4);
  EXPECT_TRUE(testing::same_bits(alone, testing::logits_of_group(stored.string(), 2, ids, 5)));
  const Original again(stored);
  EXPECT_FALSE(write_directory(again, temporary_ / "again", "q8_0").ok()) << "codes were quantised once more";
}

std::vector<std::string> converted_names() {
  std::vector<std::string> names;
  const json all = testing::gguf_cases();
  for (const auto& [name, value] : all.items()) names.push_back(name);
  return names;
}

using GgufBlocks = BlockFiles;

TEST_P(GgufBlocks, AFileBecomesAnotherWithItsKeys) {
  const fs::path directory = temporary_.copy(testing::golden_model(GetParam()), "model");
  const json config = testing::converted_config(GetParam());
  std::ofstream(directory / "config.json") << config.dump();
  const Original original(
      temporary_.write("model.gguf", testing::converted_gguf(GetParam(), directory, config)));
  const fs::path stored = temporary_ / "stored.gguf";
  const Status written = write_gguf(original, stored, "q4_k");
  if (written.message().find("nothing to quantise") != std::string::npos)
    GTEST_SKIP() << "no row has whole blocks";
  ASSERT_TRUE(written.ok()) << written.message();

  const GgufParts before = open_gguf(original.path).value(), after = open_gguf(stored).value();
  EXPECT_EQ(gguf_integer(after.content, "general.file_type", "").value(), 14);
  for (const auto& [key, value] : before.content.values) EXPECT_NE(after.content.find(key), nullptr) << key;
  int quantised = 0;
  ASSERT_EQ(after.content.tensors.size(), before.content.tensors.size());
  for (size_t i = 0; i < after.content.tensors.size(); ++i) {
    const TensorInfo &from = before.content.tensors[i], &to = after.content.tensors[i];
    EXPECT_EQ(to.name, from.name);
    EXPECT_EQ(to.shape, from.shape);
    if (!is_gguf_block(to.dtype)) {
      EXPECT_TRUE(std::equal(to.data.begin(), to.data.end(), from.data.begin(), from.data.end())) << to.name;
      continue;
    }
    ++quantised;
    ASSERT_EQ(from.dtype, Dtype::kF32) << from.name;
    std::vector<float> numbers(from.data.size() / sizeof(float));
    std::memcpy(numbers.data(), from.data.data(), from.data.size());
    std::vector<std::byte> blocks(to.data.size());
    quantize_blocks(to.dtype, numbers, blocks.data());
    EXPECT_TRUE(std::equal(to.data.begin(), to.data.end(), blocks.begin(), blocks.end())) << to.name;
  }
  // A tiny model's logits move much.
  EXPECT_LT(testing::relative_difference(logits_of(stored), logits_of(original.path)), 0.7);
  EXPECT_GT(quantised, 0);

  const Original codes(stored);
  const Status again = write_gguf(codes, temporary_ / "again.gguf", "q8_0");
  EXPECT_FALSE(again.ok());
  EXPECT_NE(again.message().find("--allow-requantize"), std::string::npos) << again.message();
  EXPECT_TRUE(write_gguf(codes, temporary_ / "again.gguf", "q8_0", true).ok());
  EXPECT_LT(testing::relative_difference(logits_of(temporary_ / "again.gguf"), logits_of(stored)), 0.3);

  const Original eight(temporary_ / "again.gguf");
  const Status same = write_gguf(eight, temporary_ / "same.gguf", "q8_0");
  EXPECT_NE(same.message().find("nothing to quantise"), std::string::npos) << same.message();
}

const auto kNameOf = [](const auto& tested) {
  std::string name = tested.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
};
INSTANTIATE_TEST_SUITE_P(Models, BlockFiles,
                         ::testing::Values("llama3.1", "granite", "qwen3-bf16", "qwen3-fp16", "qwen3-moe",
                                           "gpt-oss", "qwen3.5"),
                         kNameOf);
INSTANTIATE_TEST_SUITE_P(Models, GgufBlocks, ::testing::ValuesIn(converted_names()), kNameOf);

TEST(BlockFile, NumbersThatAreNotFiniteAreRefusedByName) {
  TemporaryDirectory temporary;
  testing::TensorsToChange weights(testing::golden_model("llama3.1") / "model.safetensors");
  const float nan = std::nanf("");
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  std::memcpy(weights.tensors.at(name).bytes.data() + 40, &nan, sizeof nan);
  const fs::path changed = temporary.copy(testing::golden_model("llama3.1"), "model");
  weights.write(changed / "model.safetensors");
  const Status status = write_directory(Original(changed), temporary / "stored", "q4_k");
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(name + " holds numbers that are not finite"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace outrider
