#include "kernels/sampling/filters.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/kernels/sampling/reference.h"
#include "tests/support/source_dir.h"

namespace outrider {
namespace {

// Filters whole rows split over `ranks`, all rows in one call; also checks that chunk maxima stay true.
std::vector<std::vector<float>> filter_sharded(const std::vector<std::vector<float>>& rows,
                                               const std::vector<SamplingParams>& params, int ranks) {
  auto result = rows;
  reference::run_ranks(ranks, [&](Collectives& group) {
    const IndexRange range = vocab_range(static_cast<int64_t>(rows[0].size()), {group.rank(), group.size()});
    const Chunks chunks{range};
    std::vector<std::vector<float>> slices, maxima;
    std::vector<ShardRow> shard_rows;
    std::vector<ShardRow*> pointers;
    slices.reserve(rows.size());
    maxima.reserve(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      slices.emplace_back(rows[i].begin() + range.begin, rows[i].begin() + range.end);
      maxima.emplace_back(static_cast<size_t>(chunks.count()));
      scale_and_scan(slices[i], chunks, 1.0f, maxima[i]);
      shard_rows.push_back({.logits = slices[i],
                            .chunks = chunks,
                            .chunk_max = maxima[i],
                            .params = &params[i],
                            .max = *std::max_element(rows[i].begin(), rows[i].end())});
    }
    for (ShardRow& row : shard_rows) pointers.push_back(&row);
    ShardFilters(group).apply(pointers);
    for (size_t i = 0; i < rows.size(); ++i) {
      std::vector<float> expected(maxima[i].size());
      scale_and_scan(slices[i], chunks, 1.0f, expected);
      EXPECT_EQ(maxima[i], expected);
      std::copy(slices[i].begin(), slices[i].end(), result[i].begin() + range.begin);
    }
  });
  return result;
}

TEST(Filters, EqualTheUnshardedOnesOnAnyNumberOfRanks) {
  std::mt19937_64 rng(21);
  const auto pick = [&](std::vector<float> values) { return values[rng() % values.size()]; };
  for (size_t vocab_size : {3, 90, 1500, 7000}) {
    std::vector<std::vector<float>> rows, expected;
    std::vector<SamplingParams> params;
    for (int i = 0; i < 24; ++i) {
      rows.push_back(reference::random_logits(rng, vocab_size, pick({0, 0.4f, 3}), pick({2, 8, 1e6f})));
      if (i % 5 == 0)
        for (size_t v = 1; v < vocab_size; ++v)
          if (rng() % 2) rows.back()[v] = reference::kMasked;
      SamplingParams p{.rule = Rule::kToken, .temperature = 1};
      p.top_k = std::vector<int32_t>{0, 0, 1, 5, 50, 1100, 3000}[rng() % 7];
      p.top_p = pick({1, 1e-6f, 0.3f, 0.9f, 0.99f, 0.9999999f});
      p.min_p = pick({0, 0, 0.001f, 0.1f, 1});
      params.push_back(p);
      expected.push_back(rows.back());
      reference::filter(expected.back(), p);
    }
    for (int ranks : {1, 2, 3, 4, 8}) {
      const auto filtered = filter_sharded(rows, params, ranks);
      for (size_t i = 0; i < rows.size(); ++i)
        ASSERT_EQ(filtered[i], expected[i])
            << "V " << vocab_size << " row " << i << " ranks " << ranks << " top_k " << params[i].top_k
            << " top_p " << params[i].top_p << " min_p " << params[i].min_p;
    }
  }
}

TEST(Filters, TopPVectors) {
  std::ifstream file(outrider::source_dir() / "tests/vectors/sharded.json");
  const auto vectors = nlohmann::json::parse(file);
  ASSERT_GE(vectors["top_p"].size(), 6u);
  for (const auto& entry : vectors["top_p"]) {
    const auto row = entry["logits"].get<std::vector<float>>();
    // The vectors' P is a double, ours an fp32 parameter: hence the tolerance of the mass.
    const auto top_p = entry["top_p"].get<float>();
    const uint64_t total = reference::sum(reference::weights(row));
    EXPECT_EQ(std::to_string(total), entry["total"].get<std::string>());
    const double needed = std::stod(entry["needed"].get<std::string>());
    EXPECT_NEAR(static_cast<double>(top_p_mass(top_p, total)), needed, needed * 1e-7);
    const SamplingParams params{.rule = Rule::kToken, .temperature = 1, .top_p = top_p};
    for (int ranks : {1, 4}) {
      const auto filtered = filter_sharded({row}, {params}, ranks).front();
      std::vector<int> kept;
      for (size_t v = 0; v < row.size(); ++v)
        if (filtered[v] != reference::kMasked) kept.push_back(static_cast<int>(v));
      EXPECT_EQ(kept, entry["kept"].get<std::vector<int>>());
    }
  }
}

TEST(Filters, MassOfTopP) {
  EXPECT_EQ(top_p_mass(0.5f, 1000), 500u);
  EXPECT_EQ(top_p_mass(0.5f, 1001), 501u);
  EXPECT_EQ(top_p_mass(0, 1000), 1u);
  EXPECT_EQ(top_p_mass(std::nextafter(1.0f, 0.0f), uint64_t{1} << 63),
            (uint64_t{1} << 63) - (uint64_t{1} << 39));
}

}  // namespace
}  // namespace outrider
