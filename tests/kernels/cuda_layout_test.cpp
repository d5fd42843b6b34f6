// The layout of weights and KV in device memory. Runs without a device.
#include <gtest/gtest.h>

#include <numeric>
#include <tuple>

#include "kernels/cuda/device_matrix.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/product_rule.h"

namespace outrider::cuda {
namespace {

// Every element of the matrix has its own place, and the places fill the tiles up to padding.
TEST(CudaLayout, TiledOffsetsAreOneToOne) {
  for (const Slices& slices : {even_slices(300), slices_from_ends(std::vector<int64_t>{0, 24, 24, 90})}) {
    std::vector<int> hits(
        static_cast<size_t>(DeviceMatrix::bytes_for(WeightType::kBFloat16, 40, slices) / 2));
    for (int32_t row = 0; row < 40; ++row)
      for (int32_t column = 0; column < slices.k(); ++column)
        ++hits[static_cast<size_t>(tiled_offset(slices, row, column))];
    EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), 0), 40 * slices.k());
    for (int hit : hits) EXPECT_LE(hit, 1);
  }
}

// Shapes of an 8B model on 132 multiprocessors: every product gives at least half of the multiprocessors a
// block.
TEST(CudaLayout, WideProductsFillADevice) {
  const auto choose = [](int64_t rows, int64_t n, int bits = 16, bool may_split = true) {
    const WideProduct form = choose_wide_product(rows, n, 8, 132, bits, may_split && rows <= kSplitRows);
    EXPECT_GE(2 * form.blocks, may_split ? 132 : 0) << rows << " rows of " << n;
    return std::tuple(form.rows, form.is_over_blocks, form.blocks);
  };
  constexpr int64_t kHidden = 4096, kGateUp = 28672;
  EXPECT_EQ(choose(17, kHidden), std::tuple(32, true, 256));
  EXPECT_EQ(choose(33, kHidden), std::tuple(64, true, 256));
  EXPECT_EQ(choose(64, kHidden, 16, false), std::tuple(32, false, 64));
  EXPECT_EQ(choose(32, kGateUp), std::tuple(32, false, 224));
  EXPECT_EQ(choose(64, kGateUp), std::tuple(64, false, 224));
  EXPECT_EQ(choose(65, kHidden), std::tuple(64, true, 512));
  // 160 blocks of 32 rows would leave some multiprocessors with two: 2 x (128 + 32) rows to read, not 128
  // + 64.
  EXPECT_EQ(choose(129, kHidden), std::tuple(64, false, 96));
  EXPECT_EQ(choose(256, kHidden), std::tuple(64, false, 128));
  EXPECT_EQ(choose(512, kHidden), std::tuple(128, false, 128));
  EXPECT_EQ(choose(512, kHidden, 8), std::tuple(128, false, 128));
  EXPECT_EQ(choose(512, kGateUp, 4), std::tuple(128, false, 896));
  EXPECT_EQ(choose(128, kGateUp), std::tuple(128, false, 224));
}

TEST(CudaLayout, PairsTakeEveryDimensionOfAHeadOnce) {
  for (const int32_t turned : {0, 3, 6}) {
    const HeadPairs pairs{.turned = turned, .all = 6};
    std::vector<int> hits(12);
    for (int32_t i = 0; i < pairs.all; ++i) {
      ++hits[static_cast<size_t>(pairs.low(i))];
      ++hits[static_cast<size_t>(pairs.high(i))];
      if (i < turned) {
        EXPECT_EQ(pairs.high(i) - pairs.low(i), turned);
        EXPECT_LT(pairs.high(i), 2 * turned);
      }
    }
    EXPECT_EQ(hits, std::vector<int>(12, 1)) << turned;
  }
  const HeadPairs neighbours{.turned = 2, .all = 6, .interleaved = true};
  for (int32_t i = 0; i < 6; ++i) {
    EXPECT_EQ(neighbours.low(i), 2 * i);
    EXPECT_EQ(neighbours.high(i), 2 * i + 1);
  }
}

TEST(CudaLayout, ExpertsLieSideBySideInEveryLeaf) {
  const ExpertColumns columns{.experts = 3, .each = {4, {2, 2, 5, 6}}, .shared = {4, {1, 4, 4, 4}}};
  EXPECT_EQ(columns.size(), 3 * 6 + 4);
  std::vector<int32_t> owners;
  for (int32_t column = 0; column < columns.size(); ++column) owners.push_back(columns.expert_of(column));
  EXPECT_EQ(owners, (std::vector<int32_t>{0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 1, 2}));
}

TEST(CudaLayout, AWindowEndsWithTheRow) {
  EXPECT_EQ(first_visible(700, 0), 0);
  for (const int32_t window : {1, 5, 300})
    for (int32_t position = 0; position < 700; ++position) {
      const int32_t first = first_visible(position, window);
      EXPECT_EQ(position - first + 1, std::min(window, position + 1));
    }
}

TEST(CudaLayout, CodesAndScalesHaveTheirOwnPlaces) {
  constexpr int32_t kRows = 40;
  for (WeightType type : {WeightType::kInt8, WeightType::kInt4}) {
    const MatrixView m{.type = type,
                       .n = kRows,
                       .slices = slices_from_ends(std::vector<int64_t>{0, 24, 24, 190}, kGroupStep)};
    const int64_t tile_steps = int64_t{3} * m.slices.steps();
    std::vector<int> codes(static_cast<size_t>(tile_steps * kGroupTileBytes));
    std::vector<int> scales(static_cast<size_t>(tile_steps * kTileRows * (kGroupStep / m.group_size())));
    EXPECT_EQ(static_cast<int64_t>(codes.size()) * weight_bits(type) / 8 +
                  static_cast<int64_t>(scales.size() * sizeof(bf16)),
              DeviceMatrix::bytes_for(type, kRows, m.slices));
    for (int32_t row = 0; row < kRows; ++row) {
      for (int32_t column = 0; column < m.slices.k(); ++column)
        EXPECT_EQ(codes[static_cast<size_t>(element_offset(m, row, column))]++, 0) << row << " " << column;
      for (int32_t g = 0; g < m.groups(); ++g)
        EXPECT_EQ(scales[static_cast<size_t>(m.scale_at(row, group_at(m.slices, m.group_size(), g)))]++, 0)
            << row << " " << g;
    }
  }
}

// As the files count them: 32 or 64 columns, anew at every leaf.
TEST(CudaLayout, GroupsStartAnewInEverySlice) {
  const Slices slices = slices_from_ends(std::vector<int64_t>{0, 70, 70, 174}, kGroupStep);
  EXPECT_EQ(count_groups(slices, 64), 2 + 2);
  EXPECT_EQ(count_groups(slices, 32), 3 + 4);
  const CodeGroup third = group_at(slices, 32, 2), last = group_at(slices, 32, 6);
  EXPECT_EQ(std::tuple(third.begin, third.count, third.step, third.index), std::tuple(64, 6, 1, 0));
  EXPECT_EQ(std::tuple(last.begin, last.count, last.step, last.index), std::tuple(166, 8, 3, 1));
}

TEST(CudaLayout, TreeIsTheOneOverNeighbours) {
  float v[kMaxSlices] = {1e8f, 1, -1e8f, 1, 1e-3f, 2, 3, 4};
  const float expected = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
  float four[kMaxSlices], all[kMaxSlices];
  std::copy(v, v + 8, four);
  std::copy(v, v + 8, all);
  EXPECT_EQ(tree_sum(four, 4), (v[0] + v[1]) + (v[2] + v[3]));
  EXPECT_EQ(tree_sum(all, 8), expected);
}

// Padding stays free, and a head's elements stay together.
TEST(CudaLayout, KeysAndValuesHaveTheirOwnPlaces) {
  constexpr int32_t kBlocks = 3, kHeads = 2;
  for (KvType type : {KvType::kFloat32, KvType::kBFloat16})
    for (int32_t head_dim : {24, 64}) {
      const KvLayer layer{.type = type, .kv_heads = kHeads, .head_dim = head_dim};
      for (bool values : {false, true}) {
        std::vector<int> hits(static_cast<size_t>(kBlocks * layer.block_elements()));
        for (int32_t block = 0; block < kBlocks; ++block)
          for (int32_t head = 0; head < kHeads; ++head)
            for (int32_t token = 0; token < kBlockTokens; ++token)
              for (int32_t i = 0; i < head_dim; ++i) {
                const int64_t at = values ? layer.value_offset(block, head, token, i)
                                          : layer.key_offset(block, head, token, i);
                EXPECT_EQ(at / layer.head_elements(), block * kHeads + head);
                EXPECT_EQ(hits[static_cast<size_t>(at)]++, 0) << token << " " << i;
              }
      }
    }
}

}  // namespace
}  // namespace outrider::cuda
