// Draws on a CUDA device, or on its emulation. From the same logits, tokens, weights of q and confidence
// equal the host sampler's bit for bit, step after step, whatever other rows are drawn at the same time.
#include "kernels/sampling/cuda/device_draws.h"

#include <gtest/gtest.h>

#include "tests/kernels/sampling/device_rows.h"

namespace outrider::cuda {
namespace {

using testing::kPadding;
using testing::kSteps;
using testing::random_logits;
using testing::random_row;
using testing::TestRow;

class DeviceDrawsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto devices = count_devices(); !devices.ok())
      GTEST_SKIP() << "no CUDA device: " << devices.status().message();
    use_device(0);
  }

  // Draws all rows to their end on the device, and on the host from the same logits.
  void compare(std::mt19937_64& rng, std::vector<TestRow>& rows, int64_t width, bool measures, float poison) {
    std::stable_sort(rows.begin(), rows.end(),
                     [](const TestRow& a, const TestRow& b) { return a.steps > b.steps; });
    const auto count = static_cast<int64_t>(rows.size());
    Stream stream;
    DeviceBuffer<float> memory(count * (width + kPadding));
    DeviceDraws draws({.rows = count,
                       .steps = kSteps,
                       .width = width,
                       .stride = width + kPadding,
                       .q_rows = count * kSteps,
                       .counted = count * 20,
                       .biases = 2 * count},
                      memory.data());
    // At the first step a row's logits may be anywhere.
    std::vector<DrawRow> sent;
    for (int64_t r = 0; r < count; ++r)
      sent.push_back({.first = rows[r].step(), .logits_row = (r + 1) % count, .steps = rows[r].steps});
    ASSERT_TRUE(draws.takes(sent));
    draws.send(sent, measures, stream);
    std::vector<std::vector<float>> logits;
    for (int64_t step = 0; step < kSteps; ++step) {
      logits.push_back(random_logits(rng, count, width));
      if (poison != 0) logits.back()[rng() % logits.back().size()] = poison;
      const auto active =
          std::count_if(rows.begin(), rows.end(), [&](const TestRow& r) { return r.steps > step; });
      copy(memory.data(), logits.back().data(), memory.size(), stream);
      if (active > 0) draws.queue_step(active, stream);
    }
    draws.queue_fetch(kSteps, true, stream);
    stream.synchronize();
    for (int64_t r = 0; r < count; ++r)
      for (int64_t step = 0; step < rows[r].steps; ++step) {
        const auto at = (step == 0 ? (r + 1) % count : r) * (width + kPadding);
        ASSERT_NO_FATAL_FAILURE(
            expect_host_draw(draws, rows[r], r, step,
                             std::span(logits[step]).subspan(at, static_cast<size_t>(width)), measures));
      }
  }

  void expect_host_draw(const DeviceDraws& draws, TestRow& row, int64_t r, int64_t step,
                        std::span<const float> raw, bool measures) {
    std::vector<float> logits(raw.begin(), raw.end());
    QRow expected, q;
    const auto token = sampler_.sample(logits, row.step(), &expected);
    const auto what = "rule " + std::string(rule_name(row.params.rule)) + ", row " + std::to_string(r) +
                      ", step " + std::to_string(step);
    ASSERT_EQ(draws.token(r, step), token.value_or(TokenId(-1))) << what;
    row.drafted.push_back(token.value_or(TokenId(0)));
    row.position = row.position + 1;
    if (!token) {
      ++failed_;
      return;
    }
    if (measures) {
      const DraftConfidence on_host = confidence_of(logits, *token);
      EXPECT_EQ(draws.confidence(r, step).entropy, on_host.entropy) << what;
      EXPECT_EQ(draws.confidence(r, step).probability, on_host.probability) << what;
    }
    if (expected.sum == 0) return;  // no rule with q
    draws.read_q(r, step, q);
    ASSERT_EQ(q.weights, expected.weights) << what;
    EXPECT_EQ(q.ids, expected.ids) << what;
    EXPECT_EQ(q.sum, expected.sum) << what;
    EXPECT_EQ(q.rest, expected.rest) << what;
    EXPECT_EQ(q.id_end, expected.id_end) << what;
    ++(q.ids.empty() ? dense_ : compact_);
    with_rest_ += q.rest > 0;
  }

  std::unique_ptr<Collectives> single_ = make_single_collectives();
  DraftSampler sampler_{*single_};
  int failed_ = 0, dense_ = 0, compact_ = 0, with_rest_ = 0;
};

TEST_F(DeviceDrawsTest, EqualTheHostSampler) {
  std::mt19937_64 rng(5);
  const int64_t widths[] = {5, 37, 1031, 4500};  // the last has several parts
  for (int i = 0; i < 60; ++i) {
    const int64_t width = widths[i % 4];
    std::vector<TestRow> rows;
    for (uint64_t n = 1 + rng() % 6; n > 0; --n)
      rows.push_back(random_row(rng, static_cast<Rule>(rng() % 5), static_cast<size_t>(width)));
    ASSERT_NO_FATAL_FAILURE(compare(rng, rows, width, i % 2 == 0, 0));
  }
  EXPECT_EQ(failed_, 0);
  EXPECT_GT(dense_, 30);
  EXPECT_GT(compact_, 30);
  EXPECT_GT(with_rest_, 10);
}

TEST_F(DeviceDrawsTest, RowsThatAreNotFiniteFailAlone) {
  std::mt19937_64 rng(6);
  for (int i = 0; i < 12; ++i) {
    const int64_t width = i % 3 == 0 ? 1031 : 37;
    std::vector<TestRow> rows;
    for (int r = 0; r < 5; ++r) rows.push_back(random_row(rng, static_cast<Rule>(r), width));
    const float infinity = std::numeric_limits<float>::infinity();
    ASSERT_NO_FATAL_FAILURE(
        compare(rng, rows, width, true, i % 2 ? infinity : std::numeric_limits<float>::quiet_NaN()));
  }
  EXPECT_GT(failed_, 5);
  EXPECT_GT(compact_, 0);
}

// Work beyond the planned size is left to the host.
TEST_F(DeviceDrawsTest, TakesNoMoreThanPlanned) {
  DeviceBuffer<float> memory(50);
  const DeviceDraws draws(
      {.rows = 2, .steps = 3, .width = 10, .stride = 10, .q_rows = 3, .counted = 6, .biases = 1},
      memory.data());
  TokenCounts counts;
  for (int id = 0; id < 4; ++id) counts.add_output(TokenId(id));
  SamplingParams greedy, token{.rule = Rule::kToken, .temperature = 1}, penalised{.presence_penalty = 1},
      biased{.logit_bias = {{TokenId(1), 1.0f}, {TokenId(2), 1.0f}}};
  const auto takes = [&](const SamplingParams& params, size_t rows, int32_t steps, int32_t row_bytes = 0) {
    const DrawRow row{.first = {.sampling = &params, .counts = &counts, .row_bytes = row_bytes},
                      .steps = steps};
    return draws.takes(std::vector(rows, row));
  };
  EXPECT_TRUE(takes(greedy, 2, 3));
  EXPECT_FALSE(takes(greedy, 3, 1));
  EXPECT_FALSE(takes(greedy, 1, 4));
  EXPECT_TRUE(takes(token, 1, 3));
  EXPECT_FALSE(takes(token, 2, 2));
  EXPECT_FALSE(takes(token, 1, 1, 64));  // larger than a dense row
  EXPECT_TRUE(takes(penalised, 1, 2));
  EXPECT_FALSE(takes(penalised, 1, 3));
  EXPECT_FALSE(takes(biased, 1, 1));
}

}  // namespace
}  // namespace outrider::cuda
