#include "kernels/sampling/logprobs.h"

#include <gtest/gtest.h>

#include "tests/kernels/sampling/reference.h"

namespace outrider {
namespace {

TEST(Logprobs, EqualLogSoftmaxAndDoNotDependOnTheRanks) {
  std::mt19937_64 rng(41);
  const size_t vocab_size = 777;
  std::vector<std::vector<float>> rows;
  std::vector<int> top{0, 1, 5, 20, 3000};
  std::vector<TokenId> chosen;
  for (size_t i = 0; i < top.size(); ++i) {
    rows.push_back(reference::random_logits(rng, vocab_size, 4, 4));
    for (size_t v = 760; v < vocab_size; ++v) rows.back()[v] = reference::kMasked;  // padding
    chosen.emplace_back(static_cast<int32_t>(rng() % 760));
  }
  std::vector<RowLogprobs> first;
  for (int ranks : {1, 2, 3, 4, 8}) {
    reference::run_ranks(ranks, [&](Collectives& group) {
      const IndexRange range = vocab_range(static_cast<int64_t>(vocab_size), {group.rank(), group.size()});
      std::vector<std::vector<float>> slices;
      for (const auto& row : rows) slices.emplace_back(row.begin() + range.begin, row.begin() + range.end);
      std::vector<LogprobQuery> queries;
      for (size_t i = 0; i < rows.size(); ++i)
        queries.push_back({.raw = slices[i], .chosen = chosen[i], .top = top[i]});
      ShardLogprobs logprobs(group);
      const auto result = logprobs.compute(queries, Chunks{range});
      if (ranks == 1) first.assign(result.begin(), result.end());
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_EQ(result[i].chosen, first[i].chosen);
        EXPECT_EQ(result[i].top, first[i].top);
      }
    });
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    double z = 0;
    for (float logit : rows[i]) z += std::exp(static_cast<double>(logit));
    const double lse = std::log(z);
    const auto order = reference::order(rows[i]);
    EXPECT_FLOAT_EQ(first[i].chosen,
                    static_cast<float>(rows[i][static_cast<size_t>(chosen[i].value())] - lse));
    ASSERT_EQ(first[i].top.size(), std::min(static_cast<size_t>(top[i]), order.size()));
    for (size_t n = 0; n < first[i].top.size(); ++n) {
      EXPECT_EQ(first[i].top[n].first.value(), static_cast<int>(order[n]));
      EXPECT_FLOAT_EQ(first[i].top[n].second, static_cast<float>(rows[i][order[n]] - lse));
    }
  }
}

}  // namespace
}  // namespace outrider
