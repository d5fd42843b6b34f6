// Rows of logits that draw or are ranked on a device, with any rule, filter and penalty.
#pragma once

#include <random>
#include <vector>

#include "kernels/sampling/draft_sampler.h"
#include "kernels/sampling/token_counts.h"
#include "tests/kernels/sampling/reference.h"

namespace outrider::testing {

constexpr int64_t kSteps = 4, kPadding = 5;

// A row that draws, and what the host needs to draw the same.
struct TestRow {
  SamplingParams params;
  TokenCounts counts;
  std::vector<TokenId> drafted;  // grows as the host draws
  Position position;
  Round round;
  int32_t row_bytes = 0;
  int32_t steps = 1;

  DraftStep step() const {
    return {.sampling = &params,
            .counts = &counts,
            .drafted = drafted,
            .position = position,
            .round = round,
            .row_bytes = row_bytes};
  }
};

inline TestRow random_row(std::mt19937_64& rng, Rule rule, size_t width) {
  const auto chance = [&](int one_in) { return rng() % static_cast<uint64_t>(one_in) == 0; };
  const auto any_token = [&] { return TokenId(static_cast<int32_t>(rng() % width)); };
  const auto pick = [&](std::vector<float> values) { return values[rng() % values.size()]; };
  TestRow row;
  row.params.rule = rule;
  row.params.seed = Seed{rng()};
  row.params.temperature = rule == Rule::kGreedy || chance(9) ? 0 : pick({0.3f, 0.7f, 1, 1.7f});
  if (chance(3)) row.params.top_k = static_cast<int32_t>(1 + rng() % (width + 3));
  if (chance(3)) row.params.top_p = pick({0.05f, 0.5f, 0.9f, 0.999f});
  if (chance(4)) row.params.min_p = pick({0.01f, 0.2f, 1});
  if (chance(3)) row.params.repetition_penalty = pick({0.8f, 1.3f});
  if (chance(4)) row.params.presence_penalty = pick({-1, 0.7f});
  if (chance(4)) row.params.frequency_penalty = pick({-0.2f, 0.4f});
  if (chance(4)) row.params.logit_bias = {{any_token(), 3.5f}, {any_token(), -100}};
  for (uint64_t n = rng() % 9; n > 0; --n) row.counts.add_output(any_token());
  for (uint64_t n = rng() % 4; n > 0; --n) row.drafted.push_back(any_token());
  row.position = Position(static_cast<int32_t>(rng() % 5000));
  row.round = Round(static_cast<uint32_t>(rng() % 100));
  // Wider compact rows of small vocabularies are no smaller than dense ones.
  if (needs_q(rule) && width > 1000 && chance(2))
    row.row_bytes = static_cast<int32_t>(pick({16, 40, width / 20.0f, width / 12.0f}));
  row.steps = static_cast<int32_t>(1 + rng() % kSteps);
  return row;
}

// Ties are common in coarse rows. Ids that may not be drawn are the best of all.
inline std::vector<float> random_logits(std::mt19937_64& rng, int64_t rows, int64_t width) {
  std::vector<float> logits;
  for (int64_t r = 0; r < rows; ++r) {
    const auto row =
        reference::random_logits(rng, static_cast<size_t>(width), rng() % 2 ? 3 : 0.5, rng() % 2 ? 4 : 1e6);
    logits.insert(logits.end(), row.begin(), row.end());
    logits.insert(logits.end(), kPadding, 100.0f);
    if (rng() % 7 == 0) logits[logits.size() - kPadding - 1] = kMinusInfinity;
  }
  return logits;
}

}  // namespace outrider::testing
