// The model on the CPU: the suite, and every instruction set.
#include "transformer/model.h"

#include "tests/transformer/model_suite.h"
#include "transformer/ops/cpu_ops.h"

namespace outrider {

Device testing::suite_device() { return {}; }
std::string testing::no_suite_device() { return ""; }
std::vector<std::string> testing::suite_models() { return kGoldenModels; }

namespace {

// The same, for every instruction set this machine offers: within each, bits depend on nothing else.
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

}  // namespace
}  // namespace outrider
