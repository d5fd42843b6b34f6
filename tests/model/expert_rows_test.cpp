// Mixtures of experts: the choice of experts, and a row's bits, which do not depend on the other rows'
// choices.
#include "model/expert_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "tests/model/model_suite.h"

namespace outrider {
namespace {

using testing::golden_model;
using testing::load_or_die;
using testing::logits_in_chunks;
using testing::logits_of_group;
using testing::random_ids;
using testing::rows_of;
using testing::same_bits;

std::vector<ExpertChoice> choose(std::vector<float> logits, size_t count, bool renormalise) {
  std::vector<ExpertChoice> choices(count);
  choose_experts(logits, {.renormalise = renormalise}, {}, choices);
  return choices;
}

std::vector<int32_t> ids_of(const std::vector<ExpertChoice>& choices) {
  std::vector<int32_t> ids;
  for (const ExpertChoice& choice : choices) ids.push_back(choice.expert);
  return ids;
}

TEST(ChooseExperts, TheLargestLogitsAscendingById) {
  const std::vector<float> logits{0.5f, 2, -1, 3, 1};
  const auto two = choose(logits, 2, false);
  EXPECT_EQ(ids_of(two), (std::vector<int32_t>{1, 3}));
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit));
  EXPECT_NEAR(static_cast<double>(two[0].weight), std::exp(2) / sum, 1e-6);
  EXPECT_NEAR(static_cast<double>(two[1].weight), std::exp(3) / sum, 1e-6);
  const auto shares = choose(logits, 2, true);
  EXPECT_NEAR(static_cast<double>(shares[1].weight), 1 / (1 + std::exp(-1)), 1e-6);
  EXPECT_EQ(ids_of(choose(logits, 5, true)), (std::vector<int32_t>{0, 1, 2, 3, 4}));
}

TEST(ChooseExperts, TiesGoToTheLowestId) {
  EXPECT_EQ(ids_of(choose({1, 1, 1, 1}, 2, true)), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(ids_of(choose({0, 2, 1, 2, 1, 1}, 3, true)), (std::vector<int32_t>{1, 2, 3}));
}

TEST(ChooseExperts, WhatIsNotFiniteIsChosenSomehowAndWeighsNothingFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto choices = choose({nan, nan, nan}, 2, true);
  EXPECT_EQ(ids_of(choices), (std::vector<int32_t>{0, 1}));
  EXPECT_TRUE(std::isnan(choices[0].weight) && std::isnan(choices[1].weight));
}

// As DeepSeek-V3 chooses: the sums of a group's best two sigmoids with their corrections decide.
TEST(ChooseExperts, CorrectedSigmoidsInGroups) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  std::vector<float> logits{2, -3, 1, 1, 0, -1};
  const RoutingRule rule{.score = RouterScore::kSigmoid, .groups = 3, .groups_chosen = 2, .factor = 2.5f};
  std::vector<ExpertChoice> choices(2);
  // Groups: 0.88 + 0.05, 0.73 + 0.73, 0.5 + 0.27 + 1.
  choose_experts(logits, rule, std::vector<float>{0, 0, 0, 0, 0, 1}, choices);
  EXPECT_EQ(ids_of(choices), (std::vector<int32_t>{2, 5}));
  const double sum = sigmoid(1) + sigmoid(-1);
  EXPECT_NEAR(static_cast<double>(choices[0].weight), 2.5 * sigmoid(1) / sum, 1e-6);
  EXPECT_NEAR(static_cast<double>(choices[1].weight), 2.5 * sigmoid(-1) / sum, 1e-6)
      << "without its correction";
}

// As Ernie 4.5 chooses: corrections are added to shares, and a corrected expert need not have the largest
// logit.
TEST(ChooseExperts, CorrectedShares) {
  std::vector<float> logits{3, 1, -2, 2};
  const std::vector<float> scores = logits, corrections{-1, 0, 0.5f, 0};
  double sum = 0;
  for (const float logit : scores) sum += std::exp(static_cast<double>(logit));
  std::vector<ExpertChoice> choices(2);
  choose_experts(logits, {}, corrections, choices);
  EXPECT_EQ(ids_of(choices), (std::vector<int32_t>{2, 3})) << "of 0.66 - 1, 0.09, 0.004 + 0.5, 0.24";
  const double chosen = std::exp(-2) + std::exp(2);
  EXPECT_NEAR(static_cast<double>(choices[0].weight), std::exp(-2) / chosen, 1e-6);
  EXPECT_NEAR(static_cast<double>(choices[1].weight), std::exp(2) / chosen, 1e-6);
  logits = scores;
  choose_experts(logits, {.renormalise = false}, corrections, choices);
  EXPECT_NEAR(static_cast<double>(choices[1].weight), std::exp(2) / sum, 1e-6);
}

TEST(ChooseExperts, SumsOfSigmoidsHaveANumberAdded) {
  std::vector<float> logits{-20, -21, -25};
  std::vector<ExpertChoice> choices(2);
  choose_experts(logits, {.score = RouterScore::kSigmoid, .added = 1e-8f}, {}, choices);
  const double first = 1 / (1 + std::exp(20)), second = 1 / (1 + std::exp(21));
  EXPECT_NEAR(static_cast<double>(choices[0].weight), first / (first + second + 1e-8), 1e-5);
  EXPECT_NEAR(static_cast<double>(choices[1].weight), second / (first + second + 1e-8), 1e-5);
}

TEST(ChooseExperts, TheBestGroupsByTheirBestExpert) {
  std::vector<float> logits{5, 1, 4, 4, 3, 3};
  const RoutingRule rule{.renormalise = false, .groups = 3, .groups_chosen = 1, .factor = 2};
  std::vector<ExpertChoice> choices(2);
  choose_experts(logits, rule, {}, choices);
  EXPECT_EQ(ids_of(choices), (std::vector<int32_t>{0, 1})) << "though 2 to 5 have larger logits than 1";
  double sum = 0;
  for (const double logit : {5, 1, 4, 4, 3, 3}) sum += std::exp(logit);
  EXPECT_NEAR(static_cast<double>(choices[1].weight), 2 * std::exp(1) / sum, 1e-6);
}

struct Case {
  std::string model;
  WeightFormat format;
};

class Mixture : public ::testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<Model> load() {
    return load_or_die(golden_model(GetParam().model),
                       {.threads = 2,
                        .bytes_per_thread = 1,
                        .max_logit_rows = 256,
                        .kv_tokens = 8192,
                        .weight_format = GetParam().format},
                       *single_);
  }
  std::unique_ptr<Collectives> single_ = make_single_collectives();
};

// Rows beside that choose the same experts (the same text, many times), and others (random ones): more rows
// than go through an expert at once.
TEST_P(Mixture, ARowHasTheBitsItHasAlone) {
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(pin_isa(isa).ok());
    const auto model = load();
    const int64_t vocab = model->config().vocab_size;
    const auto text = random_ids(12, vocab, 5);
    const auto alone = logits_in_chunks(*model, text, 1);
    for (const auto& [copies, others] : {std::pair{1, 0}, {2, 0}, {19, 0}, {1, 3}, {1, 19}, {5, 9}}) {
      std::vector<std::vector<TokenId>> texts(static_cast<size_t>(copies), text);
      for (int i = 0; i < others; ++i) texts.push_back(random_ids(12, vocab, 100 + static_cast<uint32_t>(i)));
      std::rotate(texts.begin(), texts.begin() + copies / 2, texts.end());
      std::vector<BatchSlice> batch;
      for (const auto& tokens : texts) batch.push_back({model->kv().create(), tokens, 12});
      const auto logits = rows_of(model->forward(batch).value().logits);
      for (size_t i = 0; i < texts.size(); ++i) {
        if (texts[i] != text) continue;
        const auto at = logits.begin() + static_cast<ptrdiff_t>(i) * 12 * vocab;
        EXPECT_TRUE(same_bits(alone, {at, at + 12 * vocab}))
            << isa << ", " << copies << " copies, " << others << " others, text " << i;
      }
      for (const BatchSlice& slice : batch) model->kv().release(slice.sequence);
    }
  }
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
}

TEST_P(Mixture, BitsDoNotDependOnChunksOrRanks) {
  const auto model = load();
  const auto ids = random_ids(40, model->config().vocab_size, 7);
  const auto reference = logits_in_chunks(*model, ids, 1);
  for (size_t chunk : {2u, 3u, 7u, 17u, 40u})
    EXPECT_TRUE(same_bits(reference, logits_in_chunks(*model, ids, chunk))) << chunk;
  for (int tp_size : {1, 2, 4, 8})
    EXPECT_TRUE(same_bits(reference, logits_of_group(GetParam().model, tp_size, ids, 9, GetParam().format)))
        << tp_size;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* model : {"mixtral", "qwen2-moe", "qwen3-moe", "gpt-oss", "deepseek-v2", "deepseek-v3"})
    for (WeightFormat format :
         {WeightFormat::kAuto, WeightFormat::kBFloat16, WeightFormat::kInt8, WeightFormat::kInt4})
      all.push_back({model, format});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Formats, Mixture, ::testing::ValuesIn(cases()), [](const auto& instance) {
  std::string text = instance.param.model + "_" + weight_format_name(instance.param.format);
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
});

TEST(MixtureFiles, LoadWithTheBitsOfQuantisingAtLoad) {
  for (const char* name : {"mixtral", "qwen2-moe", "phi3"})
    for (WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4})
      testing::expect_stored_equals_quantised_at_load(name, format);
}

}  // namespace
}  // namespace outrider
