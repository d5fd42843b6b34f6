// DFlash and DSpark against logits of an independent implementation, and against their own results in other
// forward passes.
#include "heads/block_head.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "model_files/safetensors.h"
#include "tests/heads/golden_heads.h"
#include "tests/model/model_suite.h"
#include "tests/support/temporary_directory.h"

namespace outrider {
namespace {

struct BlockGolden {
  std::vector<TokenId> ids;  // of positions 0, 1, ...: of the states, the last token, and what is drafted
  std::vector<float> hidden_states;  // [states, aux_layers * hidden]
  std::vector<float> logits;         // [2, tokens, own vocabulary]: behind all states but one, and behind all
  int64_t count = 0;                 // of states
};

template <class T>
std::vector<T> numbers(const SafetensorsFile& file, const char* what, int n) {
  const TensorInfo& tensor = *file.find(fmt::format("{}.{}", what, n));
  std::vector<T> out(tensor.data.size() / sizeof(T));
  std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  return out;
}

std::vector<BlockGolden> block_goldens(const std::string& name) {
  const auto file = SafetensorsFile::open(testing::golden_head(name) / "golden.safetensors").value();
  std::vector<BlockGolden> out;
  for (int n = 0; n < 2; ++n) {
    BlockGolden& golden = out.emplace_back();
    for (const int32_t id : numbers<int32_t>(file, "ids", n)) golden.ids.emplace_back(id);
    golden.hidden_states = numbers<float>(file, "states", n);
    golden.logits = numbers<float>(file, "logits", n);
    golden.count = file.find(fmt::format("states.{}", n))->shape[0];
  }
  return out;
}

RowBuffer committed(BlockHead& head, const std::vector<float>& raw, int64_t count) {
  const RowBuffer out = head.compute().rows(count, head.hidden_size());
  head.committed_hidden_states(testing::RowsThere(head.compute(), raw, count).all(), out.rows(count));
  return out;
}

// A row of logits where this token stands before it, on the host.
std::vector<float> row_behind(BlockHead& head, TokenId token, FloatRows logits, int64_t row) {
  if (head.knows_tokens())
    return testing::numbers_of(head.compute(), head.behind({&token, 1}, logits, {&row, 1}));
  const auto all = testing::numbers_of(head.compute(), logits);
  const auto first = all.begin() + row * logits.extent(1);
  return {first, first + logits.extent(1)};
}

// Logits of a block behind `count` states, of which `known` are in the cache, as `tokens` are wanted.
std::vector<float> block(BlockHead& head, const BlockGolden& golden, const RowBuffer& hidden_states,
                         int64_t known, int64_t count, KvHandle sequence, int64_t tokens) {
  const BlockSlice slice{.sequence = sequence,
                         .hidden_states = hidden_states.from(known, count - known),
                         .last = golden.ids[static_cast<size_t>(count)],
                         .tokens = tokens};
  const auto logits = head.forward({&slice, 1});
  EXPECT_EQ(logits.extent(0), tokens);
  std::vector<float> out;
  for (int64_t i = 0; i < tokens; ++i) {
    const auto row = row_behind(head, golden.ids[static_cast<size_t>(count + i)], logits, i);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

// Logits of a block behind count - 1 committed tokens of a golden, then behind all `count`. The rows of the
// first block are discarded in between.
std::vector<float> logits_of(BlockHead& head, const BlockGolden& golden, int64_t chunk, KvHandle sequence) {
  auto hidden_states = committed(head, golden.hidden_states, golden.count);
  int64_t known = head.kv().length(sequence);
  for (; known + chunk < golden.count - 1; known += chunk) {
    const BlockSlice slice{
        .sequence = sequence, .hidden_states = hidden_states.from(known, chunk), .last = {}};
    EXPECT_EQ(head.forward({&slice, 1}).extent(0), 0);
  }
  auto out = block(head, golden, hidden_states, known, golden.count - 1, sequence, head.block_tokens());
  EXPECT_EQ(head.kv().length(sequence), golden.count - 1);
  const auto rest =
      block(head, golden, hidden_states, golden.count - 1, golden.count, sequence, head.block_tokens());
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

std::vector<float> logits_of(BlockHead& head, const BlockGolden& golden, int64_t chunk) {
  const KvHandle sequence = head.kv().create();
  auto out = logits_of(head, golden, chunk, sequence);
  head.kv().release(sequence);
  return out;
}

class BlockHeads : public ::testing::TestWithParam<testing::GoldenHead> {};

void expect_logits_of_the_equations(const testing::GoldenHead& kind) {
  for (const std::string& isa : testing::suite_isas()) {
    ASSERT_TRUE(pin_isa(isa).ok());
    const auto head = testing::load_head_or_die<BlockHead>(kind, {.threads = 2, .bytes_per_thread = 1});
    for (const BlockGolden& golden : block_goldens(kind.name)) {
      const auto logits = logits_of(*head, golden, 40);
      ASSERT_EQ(logits.size(), golden.logits.size());
      for (size_t i = 0; i < logits.size(); ++i)
        if (logits[i] != golden.logits[i]) {  // -inf is as far from -inf as no number
          ASSERT_NEAR(logits[i], golden.logits[i], 2e-3) << isa << ", logit " << i << " of " << golden.count;
        }
    }
  }
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
}

TEST_P(BlockHeads, LogitsAreThoseOfTheEquations) { expect_logits_of_the_equations(GetParam()); }

// Also when fewer tokens are wanted, behind another block, and beside other sequences.
void expect_block_bits_of_the_text(const testing::GoldenHead& kind, WeightFormat format) {
  const auto head = testing::load_head_or_die<BlockHead>(
      kind, {.threads = 2, .bytes_per_thread = 1, .kv_tokens = 512, .weight_format = format});
  const BlockGolden golden = block_goldens(kind.name)[1];
  const auto expected = logits_of(*head, golden, 1);
  for (const int64_t chunk : {2, 16, 40})
    EXPECT_TRUE(testing::same_bits(expected, logits_of(*head, golden, chunk)));

  auto hidden_states = committed(*head, golden.hidden_states, golden.count);
  const KvHandle short_one = head->kv().create();
  const auto few = block(*head, golden, hidden_states, 0, golden.count, short_one, 1);
  const auto vocabulary = static_cast<int64_t>(few.size());
  EXPECT_TRUE(testing::same_bits(
      few, std::vector<float>(expected.begin() + head->block_tokens() * vocabulary,
                              expected.begin() + (head->block_tokens() + 1) * vocabulary)));

  const BlockGolden other = block_goldens(kind.name)[0];
  auto other_states = committed(*head, other.hidden_states, other.count);
  const KvHandle first = head->kv().create(), second = head->kv().create(), third = head->kv().create();
  const auto slice_of = [&](const BlockGolden& of, const RowBuffer& rows, KvHandle sequence) {
    return BlockSlice{.sequence = sequence,
                      .hidden_states = rows.rows(of.count),
                      .last = of.ids[static_cast<size_t>(of.count)],
                      .tokens = 1};
  };
  auto reading = slice_of(other, other_states, second);
  reading.last = {};
  reading.tokens = 0;
  const std::vector<BlockSlice> batch{slice_of(other, other_states, first), reading,
                                      slice_of(golden, hidden_states, third)};
  const auto logits = head->forward(batch);
  ASSERT_EQ(logits.extent(0), 2);
  EXPECT_TRUE(
      testing::same_bits(few, row_behind(*head, golden.ids[static_cast<size_t>(golden.count)], logits, 1)));
}

TEST_P(BlockHeads, BitsDependOnTheTextAlone) {
  for (const WeightFormat format : {WeightFormat::kAuto, WeightFormat::kBFloat16})
    expect_block_bits_of_the_text(GetParam(), format);
}

TEST(BlockWindows, OfABlockThatSeesAllOfItselfAreKeptOnTheHostAndRefusedElsewhere) {
  const testing::GoldenHead& kind = testing::kBlockThatLooksAheadOfWindows;
  if (testing::suite_is_on_a_device()) {
    const auto refused =
        Head::load(testing::golden_head(kind.name), testing::golden_model(testing::kHeadsTarget),
                   {.kind = kind.kind, .compute = testing::suite_compute()});
    ASSERT_FALSE(refused.ok());
    for (const char* word : {"layer 0 has a window and looks ahead", "--device cpu"})
      EXPECT_NE(refused.status().message().find(word), std::string::npos) << refused.status().message();
    return;
  }
  expect_logits_of_the_equations(kind);
  for (const WeightFormat format : {WeightFormat::kAuto, WeightFormat::kBFloat16})
    expect_block_bits_of_the_text(kind, format);
}

// A row has candidates, and -inf elsewhere.
TEST(DFlash2, OnTheHostIsThatOfTheEquationsAndRefusedElsewhere) {
  const testing::GoldenHead& kind = testing::kDFlash2;
  if (testing::suite_is_on_a_device()) {
    const auto refused =
        Head::load(testing::golden_head(kind.name), testing::golden_model(testing::kHeadsTarget),
                   {.kind = kind.kind, .compute = testing::suite_compute()});
    ASSERT_FALSE(refused.ok());
    for (const char* word : {"DFlash 2", "--device cpu"})
      EXPECT_NE(refused.status().message().find(word), std::string::npos) << refused.status().message();
    return;
  }
  expect_logits_of_the_equations(kind);
  for (const WeightFormat format : {WeightFormat::kAuto, WeightFormat::kBFloat16})
    expect_block_bits_of_the_text(kind, format);
}

// The golden logits tell whether a layer forgets its window, or who sees whom in a block.
TEST(BlockWindows, TheUsualMistakesAreFarOff) {
  if (testing::suite_is_on_a_device()) return;  // one of the two heads is refused there
  using Change = std::function<void(nlohmann::json&)>;
  const auto set = [](const char* key, const nlohmann::json& value) -> Change {
    return [=](nlohmann::json& config) { config[key] = value; };
  };
  const auto set_inner = [](const char* key, const nlohmann::json& value) -> Change {
    return [=](nlohmann::json& config) { config["dflash_config"][key] = value; };
  };
  const nlohmann::json all_see_all(std::vector<std::string>(3, "full_attention"));
  for (const auto& [name, change] :
       std::vector<std::pair<const char*, Change>>{{"dflash-window", set("sliding_window", 5)},
                                                   {"dflash-window", set("sliding_window", 7)},
                                                   {"dflash-window", set("layer_types", all_see_all)},
                                                   {"dflash-window", set("is_causal", true)},
                                                   {"dflash-window", set("is_causal", false)},
                                                   {"dflash-window-ahead", set("sliding_window", 6)},
                                                   {"dflash-window-ahead", set("sliding_window", 8)},
                                                   {"dflash-window-ahead", set("is_causal", nullptr)},
                                                   {"dflash2", set_inner("output_multiplier", 1)},
                                                   {"dflash2", set_inner("final_logit_softcapping", 30)},
                                                   {"dflash2", set_inner("input_embedding_scale", 1)},
                                                   {"dflash2", set_inner("selector_top_k", 15)}}) {
    const TemporaryDirectory directory;
    const auto path = directory.copy(testing::golden_head(name), name);
    auto config = nlohmann::json::parse(std::ifstream(path / "config.json"));
    change(config);
    std::ofstream(path / "config.json") << config.dump();
    auto wrong =
        BlockHead::load(path, testing::golden_model(testing::kHeadsTarget), {.kind = HeadKind::kDFlash});
    ASSERT_TRUE(wrong.ok()) << wrong.status().message();
    const BlockGolden golden = block_goldens(name)[1];
    const auto logits = logits_of(**wrong, golden, 40);
    float apart = 0;
    for (size_t i = 0; i < logits.size(); ++i)
      apart = std::max(apart, std::abs(logits[i] - golden.logits[i]));
    EXPECT_GT(apart, 0.5f) << name << ": " << config.dump();
  }
}

TEST_P(BlockHeads, QuantisedWeightsStayClose) {
  const BlockGolden golden = block_goldens(GetParam().name)[1];
  const auto truth = logits_of(*testing::load_head_or_die<BlockHead>(GetParam()), golden, 40);
  const auto head = testing::load_head_or_die<BlockHead>(GetParam(), {.weight_format = WeightFormat::kInt8});
  const auto logits = logits_of(*head, golden, 40);
  EXPECT_TRUE(testing::same_bits(logits, logits_of(*head, golden, 3)));
  double squares = 0, differences = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    squares += static_cast<double>(truth[i]) * static_cast<double>(truth[i]);
    differences += (static_cast<double>(logits[i]) - static_cast<double>(truth[i])) *
                   (static_cast<double>(logits[i]) - static_cast<double>(truth[i]));
  }
  EXPECT_LT(differences, 0.04 * squares);
  EXPECT_GT(differences, 0) << "not quantised at all?";
}

INSTANTIATE_TEST_SUITE_P(Heads, BlockHeads, ::testing::ValuesIn(testing::kBlockHeads),
                         testing::head_test_name);

}  // namespace
}  // namespace outrider
