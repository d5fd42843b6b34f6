// Every model family from GGUF. The files follow llama.cpp's converter
// (tests/goldens/make_gguf_model_goldens.py) and hold the weights of the converted model. Their logits equal
// those of the model's directory.
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model_files/gguf_model.h"
#include "model_files/unused_tensors.h"
#include "tests/model/converted_gguf.h"
#include "tests/model/model_suite.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  const json all = testing::gguf_cases();
  for (const auto& [name, value] : all.items()) names.push_back(name);
  return names;
}

class GgufFamily : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    directory_ = temporary_.copy(testing::golden_model(GetParam()), "model");
    const json config = testing::converted_config(GetParam());
    std::ofstream(directory_ / "config.json") << config.dump();
    file_ = temporary_.write("model.gguf", testing::converted_gguf(GetParam(), directory_, config));
  }

  TemporaryDirectory temporary_;
  fs::path directory_, file_;
};

TEST_P(GgufFamily, ComputesTheLogitsOfTheDirectory) {
  auto single = make_single_collectives();
  const ModelOptions options{.threads = 1, .kv = ModelOptions::Kv::kFloat32};
  auto from_file = Model::load(file_, options, *single);
  ASSERT_TRUE(from_file.ok()) << from_file.status().message();
  auto from_directory = testing::load_or_die(directory_, options, *single);
  EXPECT_EQ((*from_file)->config().family, from_directory->config().family == ModelFamily::kMistral
                                               ? ModelFamily::kLlama
                                               : from_directory->config().family);
  const auto ids = testing::random_ids(60, from_directory->config().vocab_size, 3);
  const auto expected = testing::logits_in_chunks(*from_directory, ids, 7);
  const auto got = testing::logits_in_chunks(**from_file, ids, 7);
  ASSERT_EQ(got.size(), expected.size());
  float worst = 0;
  for (size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::abs(got[i] - expected[i]));
  // Numbers of keys are fp32 (epsilon, factors), and so are the divisors of frequencies.
  EXPECT_LT(worst, 2e-5f);
}

TEST_P(GgufFamily, HasNoTensorThatIsNotRead) {
  const auto config = read_model_config(file_);
  ASSERT_TRUE(config.ok()) << config.status().message();
  const auto files = TensorFiles::open(file_);
  ASSERT_TRUE(files.ok()) << files.status().message();
  const auto unused = unused_tensors(*files, *config);
  ASSERT_TRUE(unused.ok()) << unused.status().message();
  // But for a module of multi-token prediction.
  const std::string module = "model.layers." + std::to_string(config->num_layers) + ".";
  for (const std::string_view name : *unused) EXPECT_TRUE(name.starts_with(module)) << name;
  const auto changes = testing::gguf_cases()[GetParam()]["config"];
  EXPECT_EQ(unused->empty(),
            !changes.contains("num_nextn_predict_layers") && !changes.contains("mtp_num_hidden_layers"));
}

TEST_P(GgufFamily, BitsDependOnNoRanks) {
  auto single = make_single_collectives();
  auto model = testing::load_or_die(file_, {.threads = 1}, *single);
  const auto ids = testing::random_ids(24, model->config().vocab_size, 5);
  const auto reference = testing::logits_in_chunks(*model, ids, 24);
  for (const int ranks : {2, 4})
    EXPECT_TRUE(testing::same_bits(reference, testing::logits_of_group(file_.string(), ranks, ids, 5)))
        << ranks;
}

INSTANTIATE_TEST_SUITE_P(Models, GgufFamily, ::testing::ValuesIn(case_names()), [](const auto& tested) {
  std::string name = tested.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

}  // namespace
}  // namespace outrider
