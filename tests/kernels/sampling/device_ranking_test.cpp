// Ranks on a CUDA device, or on its emulation, against all tokens of the host's processed rows in order.
#include "kernels/sampling/cuda/device_ranking.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "kernels/sampling/penalties.h"
#include "kernels/sampling/token_math.h"
#include "tests/kernels/sampling/device_rows.h"

namespace outrider::cuda {
namespace {

using testing::kPadding;
using testing::TestRow;

class DeviceRankingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto devices = count_devices(); !devices.ok())
      GTEST_SKIP() << "no CUDA device: " << devices.status().message();
    use_device(0);
  }

  // Slow and obvious.
  std::vector<RankedToken> ranked_on_host(std::span<const float> raw, const TestRow& row, size_t most) {
    std::vector<float> logits(raw.begin(), raw.end());
    std::vector<RankedToken> all;
    if (!sampler_.process(logits, row.step())) {
      ++failed_;
      return all;
    }
    for (size_t v = 0; v < logits.size(); ++v) {
      if (logits[v] == kMinusInfinity) continue;
      const TokenId id(static_cast<int32_t>(v));
      const float noise = effective_rule(row.params) == Rule::kInvariant
                              ? static_cast<float>(draw_gumbel(row.params.seed, row.position, id))
                              : 0.0f;
      all.push_back(RankedToken::of(logits[v] + noise, id.value()));
    }
    std::sort(all.begin(), all.end(), std::greater<>());
    for (size_t i = 1; i < std::min(all.size(), most); ++i) ties_ += all[i].key() == all[i - 1].key();
    all.resize(std::min(all.size(), most));
    return all;
  }

  void compare(std::mt19937_64& rng, const std::vector<TestRow>& rows, int64_t width, float poison) {
    const auto count = static_cast<int64_t>(rows.size());
    const Stream stream;
    DeviceBuffer<float> memory(count * (width + kPadding));
    DeviceRanking ranking({.rows = count,
                           .steps = 1,
                           .width = width,
                           .stride = width + kPadding,
                           .counted = count * 20,
                           .biases = 2 * count},
                          memory.data());
    std::vector<DrawRow> sent;
    for (int64_t r = 0; r < count; ++r)
      sent.push_back({.first = rows[static_cast<size_t>(r)].step(), .logits_row = (r + 1) % count});
    ASSERT_TRUE(ranking.takes(sent));
    for (int32_t most = 1; most <= BestTokens::kMost; most += 1 + static_cast<int32_t>(rng() % 5)) {
      auto logits = testing::random_logits(rng, count, width);
      if (poison != 0) logits[rng() % logits.size()] = poison;
      copy(memory.data(), logits.data(), memory.size(), stream);
      ranking.queue(sent, most, stream);
      stream.synchronize();
      for (int64_t r = 0; r < count; ++r) {
        const auto& row = rows[static_cast<size_t>(r)];
        const auto raw = std::span<const float>(logits).subspan(
            static_cast<size_t>((r + 1) % count * (width + kPadding)), static_cast<size_t>(width));
        const auto expected = ranked_on_host(raw, row, static_cast<size_t>(most));
        const auto best = ranking.best(r);
        ASSERT_TRUE(std::equal(best.begin(), best.end(), expected.begin(), expected.end()))
            << "rule " << rule_name(row.params.rule) << ", row " << r << ", the best " << most << " of "
            << width;
        short_ += best.size() < static_cast<size_t>(most);
      }
    }
  }

  std::unique_ptr<Collectives> single_ = make_single_collectives();
  DraftSampler sampler_{*single_};
  int failed_ = 0, ties_ = 0, short_ = 0;
};

Rule match_rule(std::mt19937_64& rng) {
  const Rule rules[] = {Rule::kGreedy, Rule::kInvariant, Rule::kNaive};
  return rules[rng() % std::size(rules)];
}

TEST_F(DeviceRankingTest, EqualsTheHost) {
  std::mt19937_64 rng(15);
  const int64_t widths[] = {3, 37, 1031, 2048, 4500};  // the last has several parts
  for (int i = 0; i < 60; ++i) {
    const int64_t width = widths[i % 5];
    std::vector<TestRow> rows;
    for (uint64_t n = 1 + rng() % 6; n > 0; --n)
      rows.push_back(testing::random_row(rng, match_rule(rng), static_cast<size_t>(width)));
    ASSERT_NO_FATAL_FAILURE(compare(rng, rows, width, 0));
  }
  EXPECT_EQ(failed_, 0);
  EXPECT_GT(ties_, 20);
  EXPECT_GT(short_, 20);
}

TEST_F(DeviceRankingTest, RowsThatAreNotFiniteFailAlone) {
  std::mt19937_64 rng(16);
  for (int i = 0; i < 12; ++i) {
    const int64_t width = i % 3 == 0 ? 2500 : 37;
    std::vector<TestRow> rows;
    for (int r = 0; r < 4; ++r)
      rows.push_back(testing::random_row(rng, match_rule(rng), static_cast<size_t>(width)));
    const float infinity = std::numeric_limits<float>::infinity();
    ASSERT_NO_FATAL_FAILURE(
        compare(rng, rows, width, i % 2 ? infinity : std::numeric_limits<float>::quiet_NaN()));
  }
  EXPECT_GT(failed_, 5);
}

// Wherever the best are: in one part, at its edges, or in parts of their own; and the lower id wins.
TEST_F(DeviceRankingTest, TheBestMayBeAnywhere) {
  constexpr int64_t kWidth = 3 * kPartTokens + 100;
  const Stream stream;
  DeviceBuffer<float> memory(kWidth);
  DeviceRanking ranking({.rows = 1, .steps = 1, .width = kWidth, .stride = kWidth}, memory.data());
  const SamplingParams greedy{.rule = Rule::kGreedy, .temperature = 0};
  const DrawRow row{.first = {.sampling = &greedy}};
  for (const std::vector<int64_t>& ids :
       {std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7},
        {kPartTokens - 1, kPartTokens, kPartTokens + 1, 0, kWidth - 1, 2 * kPartTokens, 5, 4},
        {9, 9 + 4 * 256, 9 + 4 * 100, 9 + 4 * 511, 9 + kPartTokens, 10, 11, 12}}) {
    std::vector<float> logits(kWidth, -1.0f);
    for (size_t i = 0; i < ids.size(); ++i)
      logits[static_cast<size_t>(ids[i])] = 20.0f - static_cast<float>(i);
    copy(memory.data(), logits.data(), kWidth, stream);
    ranking.queue({&row, 1}, 8, stream);
    stream.synchronize();
    ASSERT_EQ(ranking.best(0).size(), 8u);
    for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(ranking.best(0)[i].id().value(), ids[i]) << i;
  }
  const std::vector<float> equal(kWidth, 2.5f);
  copy(memory.data(), equal.data(), kWidth, stream);
  ranking.queue({&row, 1}, 5, stream);
  stream.synchronize();
  for (int32_t i = 0; i < 5; ++i)
    EXPECT_EQ(ranking.best(0)[static_cast<size_t>(i)], RankedToken::of(2.5f, i));
}

// Nodes of one text have its committed tokens together.
TEST_F(DeviceRankingTest, TakesNoMoreThanPlanned) {
  DeviceBuffer<float> memory(30);
  const DeviceRanking ranking({.rows = 3, .steps = 1, .width = 10, .stride = 10, .counted = 7, .biases = 1},
                              memory.data());
  TokenCounts counts[2];
  for (int id = 0; id < 4; ++id)
    for (TokenCounts& of : counts) of.add_output(TokenId(id));
  const SamplingParams greedy, penalised{.presence_penalty = 1},
      biased{.logit_bias = {{TokenId(1), 1.0f}, {TokenId(2), 1.0f}}},
      drawn{.rule = Rule::kToken, .temperature = 1};
  const auto row = [&](const SamplingParams& params, int text = 0) {
    return DrawRow{.first = {.sampling = &params, .counts = &counts[text]}};
  };
  EXPECT_TRUE(ranking.takes(std::vector(3, row(greedy))));
  EXPECT_FALSE(ranking.takes(std::vector(4, row(greedy))));
  EXPECT_TRUE(ranking.takes(std::vector(3, row(penalised))));
  EXPECT_FALSE(ranking.takes(std::vector{row(penalised), row(penalised, 1)}));
  EXPECT_FALSE(ranking.takes(std::vector{row(biased)}));
  EXPECT_FALSE(ranking.takes(std::vector{row(drawn)}));
}

}  // namespace
}  // namespace outrider::cuda
