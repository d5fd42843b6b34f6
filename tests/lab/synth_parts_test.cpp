// The parts of `outrider synth`: draws, vocabulary, shapes.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lab/synth/random_weights.h"
#include "lab/synth/shape.h"
#include "lab/synth/vocabulary.h"
#include "lab/synth/weight_file.h"
#include "model_files/model_config.h"
#include "model_files/model_size.h"
#include "model_files/safetensors.h"
#include "tests/support/temporary_directory.h"
#include "text/tokenizer/tokenizer.h"

namespace outrider {
namespace {

std::vector<bf16> draw(uint64_t seed, int32_t tensor, int64_t first, size_t count) {
  std::vector<bf16> out(count);
  fill_normal(NormalTable(0.5), {seed}, tensor, first, out);
  return out;
}

bool same_bits(std::span<const bf16> a, std::span<const bf16> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](bf16 x, bf16 y) { return x.bits == y.bits; });
}

// 2^18 draws: the deviation of their mean is 1/512 of theirs, that of their variance 1/362 of it, that of the
// share above one deviation 0.0007. Bounds of five deviations: a false alarm in about a million seeds, and
// this one is fixed.
TEST(RandomWeights, AreNormal) {
  constexpr size_t kCount = size_t{1} << 18;
  double sum = 0, squares = 0;
  size_t above = 0;
  for (const bf16 value : draw(1, 2, 0, kCount)) {
    const double z = static_cast<double>(to_float(value)) / 0.5;
    sum += z;
    squares += z * z;
    above += z > 1.0;
  }
  const auto n = static_cast<double>(kCount);
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n) + 0.002);  // what the table's cut tails and bf16 cost
  EXPECT_NEAR(static_cast<double>(above) / n, 0.1587, 0.0036 + 0.001);
}

TEST(RandomWeights, DoNotDependOnHowTheTensorIsCut) {
  const auto whole = draw(7, 3, 0, 1000);
  const auto tail = draw(7, 3, 512, 488);
  EXPECT_TRUE(same_bits(std::span(whole).subspan(512), tail));
  EXPECT_FALSE(same_bits(whole, draw(8, 3, 0, 1000))) << "the seed";
  EXPECT_FALSE(same_bits(whole, draw(7, 4, 0, 1000))) << "the tensor";
}

TEST(WeightFile, IsReadBackAndItsConstantsCanBeSet) {
  const TemporaryDirectory scratch;
  const std::filesystem::path path = scratch / "model.safetensors";
  const std::vector<SynthTensor> tensors{
      {.name = "random", .shape = {3, 50}, .stream = 5, .deviation = 0.5},
      {.name = "gain", .shape = {4}, .constant = 1},
  };
  auto file = SynthWeightFile::write(path, tensors, {.seed = {9}, .threads = 2});
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_TRUE(file->set_constant("gain", 0.25f).ok());
  const auto read = SafetensorsFile::open(path);
  ASSERT_TRUE(read.ok()) << read.status().message();
  const auto bits_of = [&](const char* name) {
    const auto data = read->find(name)->data;
    std::vector<bf16> values(data.size() / 2);
    std::memcpy(values.data(), data.data(), data.size());
    return values;
  };
  EXPECT_TRUE(same_bits(bits_of("random"), draw(9, 5, 0, 150)));
  for (const bf16 value : bits_of("gain")) EXPECT_EQ(to_float(value), 0.25f);
}

TEST(WeightFile, WhereNothingCanBeWrittenIsToldByName) {
  const auto file = SynthWeightFile::write("/proc/outrider.safetensors", {}, {});
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.status().message().find("/proc/outrider.safetensors"), std::string::npos);
}

TEST(SynthVocabulary, HasTheSizeAskedAndReadsEveryText) {
  const TemporaryDirectory scratch;
  for (const int64_t size : {kMinSynthVocabulary, int64_t{1000}, int64_t{128256}}) {
    std::ofstream(scratch / "tokenizer.json") << synth_tokenizer(size).dump();
    std::ofstream(scratch / "tokenizer_config.json") << synth_tokenizer_config(512).dump();
    const auto tokenizer = load_tokenizer(scratch.path());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    EXPECT_EQ((*tokenizer)->vocab_size(), size);
    const std::string text = "Zw\xc3\xb6lf \xe2\x98\x83, bada";
    const auto ids = (*tokenizer)->encode(text, SpecialTokens::kAdd);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(ids->front(), TokenId(kSynthBos));
    EXPECT_EQ((*tokenizer)->decode(*ids), text);
  }
}

TEST(SynthShape, PresetsAreGoodAndImpossibleOnesNameTheFlag) {
  for (const std::string& name : synth_shape_names()) {
    auto shape = synth_shape(name);
    ASSERT_TRUE(shape.ok());
    EXPECT_TRUE(check_synth_shape(*shape).ok()) << name;
  }
  const auto refused = [](auto change) {
    SynthShape shape = *synth_shape("tiny");
    change(shape);
    return check_synth_shape(shape).message();
  };
  EXPECT_NE(refused([](SynthShape& s) { s.kv_heads = 3; }).find("--kv-heads 3"), std::string::npos);
  EXPECT_NE(refused([](SynthShape& s) { s.hidden = 130; }).find("--hidden 130"), std::string::npos);
  EXPECT_NE(refused([](SynthShape& s) { s.vocab = 200; }).find("--vocab 200"), std::string::npos);
  EXPECT_NE(synth_shape("1.1").status().message().find("did you mean 1.1b?"), std::string::npos);
}

// 1.1 B parameters, as everybody counts them.
TEST(SynthShape, TensorsAddUp) {
  int64_t parameters = 0;
  SynthShape shape = *synth_shape("1.1b");
  ASSERT_TRUE(check_synth_shape(shape).ok());
  for (const SynthTensor& tensor : synth_tensors(shape, shape.layers, 1)) parameters += tensor.count();
  EXPECT_EQ(parameters, 1'100'048'384);
}

// Parameter counts from a config.json equal those of the tensors written beside it and those that the loader
// finds.
TEST(SynthShape, ConfigsCountWhatIsWritten) {
  for (const std::string& name : synth_shape_names()) {
    SynthShape shape = *synth_shape(name);
    ASSERT_TRUE(check_synth_shape(shape).ok());
    for (const int64_t layers : {shape.layers, int64_t{1}}) {
      const TemporaryDirectory directory;
      std::ofstream(directory.path() / "config.json") << synth_config(shape, layers).dump();
      const auto config = read_model_config(directory.path());
      ASSERT_TRUE(config.ok()) << name << ": " << config.status().message();
      int64_t parameters = 0;
      for (const SynthTensor& tensor : synth_tensors(shape, layers, 1)) parameters += tensor.count();
      EXPECT_EQ(size_of(*config).parameters, parameters) << name << " of " << layers;
    }
  }
  const auto size = [](const char* name) {
    SynthShape shape = *synth_shape(name);
    EXPECT_TRUE(check_synth_shape(shape).ok());
    const TemporaryDirectory directory;
    std::ofstream(directory.path() / "config.json") << synth_config(shape, shape.layers).dump();
    return size_of(read_model_config(directory.path()).value());
  };
  // DeepSeek's paper: 15.7 B parameters, 2.4 B active ones for a token without the embedding, 576 numbers a
  // layer.
  EXPECT_NEAR(static_cast<double>(size("v2-lite").parameters), 15.7e9, 0.03e9);
  EXPECT_NEAR(static_cast<double>(size("v2-lite").active() - 102400 * 2048), 2.4e9, 0.06e9);
  EXPECT_EQ(size("v2-lite").kv_numbers, 27 * 576);
  EXPECT_NEAR(static_cast<double>(size("deepseek").parameters), 0.5e9, 0.1e9);
}

}  // namespace
}  // namespace outrider
