#include "base/random.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/philox.h"
#include "tests/support/source_dir.h"

namespace outrider {
namespace {

using nlohmann::json;

json philox_vectors() {
  std::ifstream file(outrider::source_dir() / "tests/vectors/philox.json");
  return json::parse(file);
}
uint64_t hex(const json& text) { return std::stoull(text.get<std::string>(), nullptr, 16); }
uint32_t hex32(const json& text) { return static_cast<uint32_t>(hex(text)); }

TEST(Random, KnownAnswersOfTheGenerator) {
  const json vectors = philox_vectors();
  ASSERT_GE(vectors["known_answers"].size(), 3u);
  for (const json& row : vectors["known_answers"]) {
    uint32_t block[4];
    for (int i = 0; i < 4; ++i) block[i] = hex32(row["counter"][i]);
    const uint64_t key = uint64_t{hex32(row["key"][1])} << 32 | hex32(row["key"][0]);
    philox(block[0], block[1], block[2], block[3], key);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(block[i], hex32(row["output"][i]));
  }
}

TEST(Random, CounterLayout) {
  const json vectors = philox_vectors();
  ASSERT_GE(vectors["layout"].size(), 7u);
  for (const json& row : vectors["layout"]) {
    const Seed seed{hex(row["seed"])};
    const auto purpose = static_cast<Purpose>(row["purpose_tag"].get<uint32_t>());
    const Position position(row["position"].get<int32_t>());
    const Round round(row["round"].get<uint32_t>());
    const auto index = row["index"].get<uint32_t>();
    const auto block = draw_block(seed, purpose, position, round, index);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(block[i], hex32(row["output"][i]));
    EXPECT_EQ(draw_uniform(seed, purpose, position, round, index), row["u53_half_open"].get<double>());
    EXPECT_EQ(draw_u64(seed, purpose, position, round, index), hex(row["u64"]));
  }
}

TEST(Random, GumbelNoise) {
  const json vectors = philox_vectors();
  ASSERT_GE(vectors["gumbel"].size(), 2u);
  for (const json& row : vectors["gumbel"]) {
    const Seed seed{hex(row["seed"])};
    const Position position(row["position"].get<int32_t>());
    for (size_t v = 0; v < row["noise"].size(); ++v)
      EXPECT_NEAR(draw_gumbel(seed, position, TokenId(static_cast<int32_t>(v))),
                  row["noise"][v].get<double>(), vectors["gumbel_tolerance"].get<double>());
  }
}

// chi-square over 256 cells, 255 degrees of freedom: 340 is exceeded with probability 3e-4.
TEST(Random, UniformOverCells) {
  std::array<int, 256> cells{};
  constexpr int kDraws = 1 << 16;
  for (int i = 0; i < kDraws; ++i)
    ++cells[static_cast<size_t>(draw_uniform(Seed{11}, Purpose::kTest, Position(i), Round(3)) * 256)];
  double chi_square = 0;
  for (int count : cells)
    chi_square += (count - kDraws / 256.0) * (count - kDraws / 256.0) / (kDraws / 256.0);
  EXPECT_LT(chi_square, 340);
}

TEST(Random, PurposesAreDisjoint) {
  std::map<uint64_t, int> seen;
  for (uint32_t purpose = 0; purpose < 8; ++purpose)
    for (int position = 0; position < 64; ++position)
      for (uint32_t round = 0; round < 4; ++round)
        ++seen[draw_u64(Seed{5}, static_cast<Purpose>(purpose), Position(position), Round(round))];
  EXPECT_EQ(seen.size(), 8u * 64 * 4);
}

}  // namespace
}  // namespace outrider
