// The model on the CPU: the suite, and every instruction set.
#include "model/model.h"

#include "kernels/cpu/cpu_ops.h"
#include "tests/model/model_suite.h"
#include "tests/model/tree_suite.h"

namespace outrider {

Device testing::suite_device() { return {}; }
std::string testing::no_suite_device() { return ""; }
std::vector<std::string> testing::suite_models() {
  std::vector<std::string> names = kGoldenModels;
  names.insert(names.end(), kFamilyModels.begin(), kFamilyModels.end());
  return names;
}
int testing::suite_tree_rounds() { return 6; }

namespace {

TEST(QuantizedFile, Float8IsRefusedByName) {
  const auto single = make_single_collectives();
  const auto model =
      Model::load(testing::golden_model("qwen2"), {.weight_format = WeightFormat::kFloat8}, *single);
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.status().message().find("--weight-format fp8"), std::string::npos);
  EXPECT_NE(model.status().message().find("--device cuda"), std::string::npos);
}

TEST(QuantizedFile, LoadsWithTheBitsOfQuantisingAtLoad) {
  for (const char* name : {"llama2", "qwen2", "qwen3-bf16", "lfm2", "qwen3-next", "qwen3.5", "gemma4"})
    for (WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4})
      testing::expect_stored_equals_quantised_at_load(name, format);
}

// Logits of the first ids alone have the bits that they have among all.
TEST(OutputIds, AreTheFirstOfAllLogits) {
  const auto single = make_single_collectives();
  for (const WeightFormat format : {WeightFormat::kAuto, WeightFormat::kInt8, WeightFormat::kInt4})
    for (const int64_t ids : {1, 100, 112, 4096}) {
      const auto all =
          testing::load_or_die(testing::golden_model("qwen3"), {.weight_format = format}, *single);
      const auto first = testing::load_or_die(
          testing::golden_model("qwen3"),
          {.threads = 2, .bytes_per_thread = 1, .weight_format = format, .output_ids = ids}, *single);
      const int64_t vocab = all->config().vocab_size, width = std::min(vocab, (ids + 15) / 16 * 16);
      const auto tokens = testing::random_ids(9, vocab, 3);
      const auto whole = testing::logits_in_chunks(*all, tokens, tokens.size());
      const BatchSlice slice{first->kv().create(), tokens, static_cast<int64_t>(tokens.size())};
      const LogitsShard cut = first->forward({&slice, 1}).value();
      ASSERT_EQ(cut.logits.extent(1), width);
      EXPECT_EQ(cut.vocab_size, width);
      EXPECT_EQ(cut.vocab_range.end, width);
      for (size_t row = 0; row < tokens.size(); ++row) {
        const auto mine = cut.logits.row(static_cast<int64_t>(row));
        EXPECT_TRUE(std::equal(mine.begin(), mine.end(), whole.begin() + static_cast<int64_t>(row) * vocab))
            << ids << " ids, row " << row;
      }
    }
}

class QuantizedModel : public ::testing::TestWithParam<std::tuple<std::string, WeightFormat>> {};

TEST_P(QuantizedModel, BitsDependOnNothingElseAndLogitsStayClose) {
  const auto& [name, format] = GetParam();
  auto single = make_single_collectives();
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(pin_isa(isa).ok());
    auto model = testing::load_or_die(
        testing::golden_model(name), {.threads = 2, .bytes_per_thread = 1, .weight_format = format}, *single);
    const auto ids = testing::random_ids(40, model->config().vocab_size, 7);
    const auto reference = testing::logits_in_chunks(*model, ids, 1);
    for (size_t chunk : {2u, 5u, 9u, 17u, 40u})
      EXPECT_TRUE(testing::same_bits(reference, testing::logits_in_chunks(*model, ids, chunk)))
          << isa << " chunk " << chunk;
    for (int tp_size : {1, 2, 4, 8})
      EXPECT_TRUE(testing::same_bits(reference, testing::logits_of_group(name, tp_size, ids, 7, format)))
          << isa << tp_size;

    // In a group of Gaussian weights, 8 bits leave an error of 0.6 % and 4 bits an error of 8 %. Inputs of 8
    // bits add as much as weights of 8 bits. The errors of about ten matrices in a row add up: measured 0.03
    // to 0.06, 0.26 to 0.41.
    auto exact = testing::load_or_die(testing::golden_model(name), {}, *single);
    const auto truth = testing::logits_in_chunks(*exact, ids, 40);
    const double error = testing::relative_difference(reference, truth);
    std::printf("%s %s %s: logits off by %.3f of their size\n", isa.c_str(), name.c_str(),
                weight_format_name(format), error);
    EXPECT_LT(error, format == WeightFormat::kInt8 ? 0.08 : 0.55);
    EXPECT_GT(error, 1e-5) << "not quantised at all?";
  }
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedModel,
                         ::testing::Combine(::testing::Values("llama2", "qwen3-bf16", "qwen2"),
                                            ::testing::Values(WeightFormat::kInt8, WeightFormat::kInt4)),
                         [](const auto& instance) {
                           std::string text = std::get<0>(instance.param);
                           std::replace(text.begin(), text.end(), '-', '_');
                           return text + "_" + weight_format_name(std::get<1>(instance.param));
                         });

// The contract of bits for every instruction set this machine offers: within each, bits depend on nothing
// else.
TEST(InstructionSets, EachKeepsTheContract) {
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(pin_isa(isa).ok());
    EXPECT_EQ(isa_name(), isa);
    for (const char* name : {"qwen3-bf16", "qwen2"}) {
      auto single = make_single_collectives();
      auto model =
          testing::load_or_die(testing::golden_model(name), {.threads = 2, .bytes_per_thread = 1}, *single);
      const auto ids = testing::random_ids(30, model->config().vocab_size, 7);
      const auto reference = testing::logits_in_chunks(*model, ids, 1);
      EXPECT_TRUE(testing::same_bits(reference, testing::logits_in_chunks(*model, ids, 7)))
          << isa << " " << name;
      EXPECT_TRUE(testing::same_bits(reference, testing::logits_of_group(name, 4, ids, 9)))
          << isa << " " << name;
    }
  }
  EXPECT_FALSE(pin_isa("mmx").ok());
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
}

// Within each, with keys and values of both kinds.
TEST(InstructionSets, EachKeepsTheBitsOfTrees) {
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(pin_isa(isa).ok());
    for (const char* name : {"qwen2", "llama3.2", "qwen3-bf16"})
      for (const auto kv : {ModelOptions::Kv::kFloat32, ModelOptions::Kv::kBFloat16}) {
        SCOPED_TRACE(isa + " " + name);
        auto single = make_single_collectives();
        const auto model = testing::load_or_die(
            testing::golden_model(name),
            {.threads = 2, .bytes_per_thread = 1, .max_logit_rows = 128, .kv_tokens = 1024, .kv = kv},
            *single);
        testing::expect_trees_equal_chains(*model, 3, 3);
      }
  }
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
}

}  // namespace
}  // namespace outrider
