// Each op against plain loops in double. Its bits stay the same over rows, threads and split-K partitions.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <tuple>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/matmul_inputs.h"
#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/pack.h"

namespace outrider {
namespace {

struct Rows {
  Rows(int64_t rows, int64_t columns)
      : stride(round_up(columns, kRowPadding)), data(rows * stride), extent{rows, columns} {}
  TensorView<float, 2> view() { return {data.data(), extent, {stride, 1}}; }
  TensorView<float, 2> first(int64_t rows) { return {data.data(), {rows, extent[1]}, {stride, 1}}; }
  int64_t stride;
  Buffer<float> data;
  std::array<int64_t, 2> extent;
};

void randomize(TensorView<float, 2> view, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int64_t m = 0; m < view.extent(0); ++m)
    for (float& v : view.row(m)) v = normal(random);
}

// A matrix of row-major numbers. Packs any of its columns.
struct Numbers {
  Numbers(int64_t rows, int64_t columns, uint32_t seed) : n(rows), k(columns) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < n * k; ++i) values.push_back(normal(random));
  }
  float& at(int64_t row, int64_t column) { return values[static_cast<size_t>(row * k + column)]; }
  PackedMatrix pack(WeightType type, const std::vector<int64_t>& leaves, int64_t begin = 0) const {
    PackedMatrix matrix(type, n, leaves.back(), leaves);
    for (int64_t tile = 0; tile < matrix.tiles(); ++tile) {
      std::array<SourceRow, kTileColumns> rows;
      for (int64_t lane = 0; lane < kTileColumns && tile * kTileColumns + lane < n; ++lane)
        rows[static_cast<size_t>(lane)] = {
            .data = reinterpret_cast<const std::byte*>(
                &values[static_cast<size_t>((tile * kTileColumns + lane) * k + begin)]),
            .dtype = Dtype::kF32};
      pack_tile(matrix, tile, rows);
    }
    return matrix;
  }
  int64_t n, k;
  std::vector<float> values;
};

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// The value that the kernel multiplies in place of x[j].
double input(std::span<const float> x, const PackedMatrix& weight, int64_t j) {
  const float value = x[static_cast<size_t>(j)];
  if (weight.type() == WeightType::kFloat32) return static_cast<double>(value);
  if (weight.type() == WeightType::kBFloat16) return static_cast<double>(to_float(to_bf16(value)));
  for (const PackedMatrix::Group& group : weight.groups()) {
    if (j >= group.end) continue;
    float largest = 0;
    for (int64_t i = group.begin; i < group.end; ++i)
      largest = std::max(largest, std::abs(x[static_cast<size_t>(i)]));
    return std::nearbyint(value * (127 / largest)) * static_cast<double>(largest / 127);
  }
  ADD_FAILURE() << "column " << j << " is in no group";
  return 0;
}

class Matmul : public ::testing::TestWithParam<std::tuple<std::string, WeightType>> {
 protected:
  void SetUp() override { ASSERT_TRUE(pin_isa(std::get<0>(GetParam())).ok()); }
  void TearDown() override { ASSERT_TRUE(pin_isa(available_isas().front()).ok()); }
};

TEST_P(Matmul, EqualsPlainLoopsAndItselfForAnyRowsAndThreads) {
  const WeightType type = std::get<1>(GetParam());
  ThreadPool one(1), three(3, true);
  MatmulScratch scratch;
  // n is no multiple of the tile, k is odd once; the large ones are split over threads.
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{5, 7}, {33, 64}, {300, 333}, {70, 2}}) {
    const PackedMatrix weight = Numbers(n, k, 3).pack(type, {k});
    Rows x(17, k), together(17, n), alone(1, n);
    randomize(x.view(), 5);
    matmul(three, scratch, x.view(), weight, together.view());
    for (int64_t m = 0; m < 17; ++m) {
      const TensorView<const float, 2> row(x.view().row(m).data(), {1, k}, {x.stride, 1});
      matmul(one, scratch, row, weight, alone.view());
      EXPECT_TRUE(same_bits(alone.view().row(0), together.view().row(m))) << n << "x" << k << " row " << m;
      for (int64_t i = 0; i < n; ++i) {
        double sum = 0, magnitude = 0;
        for (int64_t j = 0; j < k; ++j) {
          const double product = input(x.view().row(m), weight, j) * static_cast<double>(weight.at(i, j));
          sum += product;
          magnitude += std::abs(product);
        }
        // k roundings of at most 2^-24 of the running sum.
        EXPECT_NEAR(static_cast<double>(alone.view()(0, i)), sum,
                    magnitude * static_cast<double>(k + 1) * 0x1p-24);
      }
    }
    for (int64_t rows : {2, 3, 4, 5, 6, 7, 8, 9, 12, 16}) {
      Rows some(rows, n);
      matmul(one, scratch, x.first(rows), weight, some.view());
      for (int64_t m = 0; m < rows; ++m) EXPECT_TRUE(same_bits(some.view().row(m), together.view().row(m)));
    }
  }
}

// Eight leaves on one rank are the tree over ranks of four, two and one leaves each.
TEST_P(Matmul, LeavesAreOneBalancedTree) {
  const WeightType type = std::get<1>(GetParam());
  ThreadPool pool(1);
  MatmulScratch scratch;
  const int64_t n = 40, k = 150;
  const std::vector<int64_t> ends{0, 20, 40, 60, 60, 90, 120, 150};  // two leaves are empty
  const Numbers numbers(n, k, 3);
  const PackedMatrix whole = numbers.pack(type, ends);
  Rows x(3, k), expected(3, n);
  randomize(x.view(), 6);
  matmul(pool, scratch, x.view(), whole, expected.view());
  for (size_t ranks : {2u, 4u, 8u}) {
    const size_t per_rank = 8 / ranks;
    std::vector<Rows> partial;
    for (size_t r = 0; r < ranks; ++r) {
      const int64_t begin = r == 0 ? 0 : ends[r * per_rank - 1], end = ends[(r + 1) * per_rank - 1];
      std::vector<int64_t> local;
      for (size_t leaf = r * per_rank; leaf < (r + 1) * per_rank; ++leaf) local.push_back(ends[leaf] - begin);
      const PackedMatrix part = numbers.pack(type, local, begin);
      partial.emplace_back(3, n);
      const TensorView<const float, 2> columns(x.view().data() + begin, {3, end - begin}, {x.stride, 1});
      matmul(pool, scratch, columns, part, partial.back().view());
    }
    for (size_t width = 1; width < ranks; width *= 2)
      for (size_t r = 0; r < ranks; r += 2 * width)
        for (int64_t i = 0; i < partial[r].data.size(); ++i) partial[r].data[i] += partial[r + width].data[i];
    for (int64_t m = 0; m < 3; ++m)
      EXPECT_TRUE(same_bits(partial[0].view().row(m), expected.view().row(m))) << ranks;
  }
}

// Threads take parts of the columns: a part writes its own words, and nothing of a neighbour that was faster.
TEST(MatmulInputs, PartsMayBeWrittenInAnyOrder) {
  const int64_t rows = 7, k = 149, cut = 26;
  const PackedMatrix weight = Numbers(16, k, 3).pack(WeightType::kBFloat16, {k});
  Rows x(rows, k);
  randomize(x.view(), 8);
  const RowBlocks blocks(rows, 4);
  for (const InputLayout layout : {InputLayout::kFloats, InputLayout::kPairs, InputLayout::kPairRows}) {
    const auto words = static_cast<size_t>(rows * row_words(layout, weight.packed_k()));
    std::vector<uint32_t> whole(words), parts(words);
    lay_out_inputs(x.view(), weight, {0, k}, blocks, layout, whole.data());
    lay_out_inputs(x.view(), weight, {cut, k}, blocks, layout, parts.data());
    lay_out_inputs(x.view(), weight, {0, cut}, blocks, layout, parts.data());
    EXPECT_EQ(whole, parts);
  }
}

// One AVX-512 instruction, or widening and two multiply-adds: whichever is faster here may be used.
TEST(Bf16Kernels, DotProductInstructionAndMultiplyAddGiveTheSameBits) {
  if (!isa_has_avx512_bf16()) GTEST_SKIP() << "no AVX512-BF16 on this machine";
  ThreadPool pool(1);
  MatmulScratch scratch;
  const int64_t n = 83, k = 150;
  Numbers numbers(n, k, 3);
  for (int64_t row = 0; row < n; row += 3) numbers.at(row, row) = 0x1p-130f;  // subnormals count as zero
  const PackedMatrix weight = numbers.pack(WeightType::kBFloat16, {20, 40, 60, 60, 90, 120, 148, 150});
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 40}) {
    Rows x(rows, k), a(rows, n), b(rows, n);
    randomize(x.view(), 8);
    x.view()(0, 5) = 0x1p-128f;
    matmul_with(avx512_bf16_kernels(), pool, scratch, x.view(), weight, a.view());
    matmul_with(highway_kernels(WeightType::kBFloat16), pool, scratch, x.view(), weight, b.view());
    for (int64_t m = 0; m < rows; ++m) EXPECT_TRUE(same_bits(a.view().row(m), b.view().row(m))) << rows;
  }
}

// 32 columns at a time: even and odd products apart, both added, then to the sum. Were the matrix unit's
// order another on some processor, "amx" would not be one instruction set.
TEST(Bf16Kernels, TheMatrixUnitAddsInTheOrderThatItsDocumentationSays) {
  if (!isa_has_amx()) GTEST_SKIP() << "no AMX on this machine";
  ThreadPool pool(1);
  MatmulScratch scratch;
  const int64_t n = 40, k = 140;
  const PackedMatrix weight = Numbers(n, k, 3).pack(WeightType::kBFloat16, {k});
  Rows x(3, k), out(3, n);
  randomize(x.view(), 8);
  matmul_with(amx_kernels(WeightType::kBFloat16), pool, scratch, x.view(), weight, out.view());
  for (int64_t m = 0; m < 3; ++m)
    for (int64_t i = 0; i < n; ++i) {
      float sum = 0;
      for (int64_t chunk = 0; chunk < k; chunk += 32) {
        float parts[2] = {};
        for (int64_t j = chunk; j < std::min(k, chunk + 32); ++j)
          parts[j % 2] = std::fma(to_float(to_bf16(x.view()(m, j))), weight.at(i, j), parts[j % 2]);
        sum += parts[0] + parts[1];
      }
      EXPECT_EQ(out.view()(m, i), sum) << m << ", " << i;
    }
}

// Integer sums are exact and the arithmetic on scales is the same, so no instruction set differs from
// another, but for those without fused multiply-add.
TEST(IntegerKernels, EveryInstructionSetWithFmaGivesTheSameBits) {
  ThreadPool pool(1);
  MatmulScratch scratch;
  const int64_t n = 83, k = 300;
  for (WeightType type : {WeightType::kInt8, WeightType::kInt4}) {
    const PackedMatrix weight = Numbers(n, k, 3).pack(type, {20, 40, 60, 60, 130, 200, 298, 300});
    for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 17}) {
      Rows x(rows, k), expected(rows, n), out(rows, n);
      randomize(x.view(), 8);
      matmul_with(highway_integer_kernels(type), pool, scratch, x.view(), weight, expected.view());
      const auto expect_same = [&](const KernelSet& kernels, const std::string& name) {
        matmul_with(kernels, pool, scratch, x.view(), weight, out.view());
        for (int64_t m = 0; m < rows; ++m)
          EXPECT_TRUE(same_bits(out.view().row(m), expected.view().row(m))) << name << " rows " << rows;
      };
      if (isa_has_avx512_vnni()) expect_same(avx512_vnni_kernels(type), "vnni");
      if (isa_has_amx() && type == WeightType::kInt8) expect_same(amx_kernels(type), "amx");
      for (const std::string& isa : available_isas()) {
        if (isa == "scalar") continue;
        ASSERT_TRUE(pin_isa(isa).ok());
        expect_same(highway_integer_kernels(type), isa);
        const KernelSet* of_codes = type == WeightType::kInt4 ? highway_int4_code_kernels() : nullptr;
        if (of_codes) expect_same(*of_codes, isa + ", as codes");
      }
      ASSERT_TRUE(pin_isa(available_isas().front()).ok());
    }
  }
}

TEST(IntegerKernels, AnInputThatIsNotFiniteShowsInEveryOutput) {
  ThreadPool pool(1);
  MatmulScratch scratch;
  const PackedMatrix weight = Numbers(20, 100, 3).pack(WeightType::kInt8, {100});
  for (float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    Rows x(1, 100), out(1, 20);
    randomize(x.view(), 8);
    x.view()(0, 70) = bad;
    matmul(pool, scratch, x.view(), weight, out.view());
    for (float value : out.view().row(0)) EXPECT_FALSE(std::isfinite(value));
  }
}

class Fp16Kernels : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(pin_isa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(pin_isa(available_isas().front()).ok()); }
};

// fp16 numbers, those that are subnormal among them, are fp32 numbers too: held in half the memory, rows side
// by side in the file or apart.
TEST_P(Fp16Kernels, HaveTheBitsOfFp32) {
  ThreadPool pool(2);
  MatmulScratch scratch;
  std::mt19937 random(4);
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{5, 7}, {33, 64}, {83, 151}}) {
    std::vector<uint16_t> numbers(static_cast<size_t>(n * k));
    for (uint16_t& number : numbers) number = static_cast<uint16_t>(random() & 0xbbff);  // below 2
    for (const bool apart : {false, true}) {
      const std::vector<int64_t> leaves =
          k > 20 ? std::vector<int64_t>{10, 10, 20, k} : std::vector<int64_t>{k};
      const auto pack = [&](WeightType type) {
        PackedMatrix matrix(type, n, k, leaves);
        for (int64_t tile = 0; tile < matrix.tiles(); ++tile) {
          std::array<SourceRow, kTileColumns> rows;
          for (int64_t row = tile * kTileColumns; row < std::min(n, (tile + 1) * kTileColumns); ++row)
            rows[static_cast<size_t>(row % kTileColumns)] = {
                .data =
                    reinterpret_cast<const std::byte*>(&numbers[static_cast<size_t>(apart ? row : row * k)]),
                .dtype = Dtype::kF16,
                .step = apart ? n * 2 : 0};
          pack_tile(matrix, tile, rows);
        }
        return matrix;
      };
      const PackedMatrix halves = pack(WeightType::kFloat16), floats = pack(WeightType::kFloat32);
      EXPECT_EQ(2 * halves.bytes(), floats.bytes());
      std::vector<float> a(static_cast<size_t>(k)), b(static_cast<size_t>(k));
      halves.copy_row(n - 1, a);
      floats.copy_row(n - 1, b);
      EXPECT_TRUE(same_bits(a, b));
      for (const int64_t rows : {1, 2, 3, 5, 8, 16, 17, 40}) {
        Rows x(rows, k), expected(rows, n), actual(rows, n);
        randomize(x.view(), 5);
        matmul(pool, scratch, x.view(), floats, expected.view());
        matmul(pool, scratch, x.view(), halves, actual.view());
        for (int64_t m = 0; m < rows; ++m)
          EXPECT_TRUE(same_bits(expected.view().row(m), actual.view().row(m)))
              << n << "x" << k << " row " << m;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, Fp16Kernels, ::testing::ValuesIn(available_isas()));

std::string instance_name(const ::testing::TestParamInfo<std::tuple<std::string, WeightType>>& instance) {
  constexpr const char* kNames[]{"_fp32", "_bf16", "_int8", "_int4"};
  return std::get<0>(instance.param) + kNames[static_cast<int>(std::get<1>(instance.param))];
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, Matmul,
                         ::testing::Combine(::testing::ValuesIn(available_isas()),
                                            ::testing::Values(WeightType::kFloat32, WeightType::kBFloat16,
                                                              WeightType::kInt8, WeightType::kInt4)),
                         instance_name);

TEST(RmsNorm, EqualsItsFormula) {
  Rows x(3, 45), out(3, 45);
  randomize(x.view(), 1);
  std::vector<float> weight(45, 1.5f);
  rms_norm(x.view(), weight, 1e-5f, out.view());
  for (int64_t m = 0; m < 3; ++m) {
    double squares = 0;
    for (float v : x.view().row(m)) squares += static_cast<double>(v) * static_cast<double>(v);
    for (int64_t i = 0; i < 45; ++i)
      EXPECT_NEAR(static_cast<double>(out.view()(m, i)),
                  1.5 * static_cast<double>(x.view()(m, i)) / std::sqrt(squares / 45 + 1e-5), 1e-5);
  }
}

TEST(SiluMul, BodyAndTailAreOneFunction) {
  ThreadPool pool(1);
  Rows gate(1, 37), up(1, 37);
  randomize(gate.view(), 1);
  randomize(up.view(), 2);
  std::vector<float> one_by_one;
  for (int64_t i = 0; i < 37; ++i) {
    Rows g(1, 1), u(1, 1);
    g.view()(0, 0) = gate.view()(0, i);
    u.view()(0, 0) = up.view()(0, i);
    silu_mul(pool, g.view(), u.view(), 1);
    one_by_one.push_back(g.view()(0, 0));
    const auto x = static_cast<double>(gate.view()(0, i));
    EXPECT_NEAR(static_cast<double>(one_by_one.back()),
                x / (1 + std::exp(-x)) * static_cast<double>(up.view()(0, i)), 1e-5);
  }
  silu_mul(pool, gate.view(), up.view(), 37);
  EXPECT_TRUE(same_bits(gate.view().row(0), one_by_one));
}

TEST(GeluTanhMul, EqualsItsFormulaAndBodyAndTailAreOneFunction) {
  ThreadPool pool(1);
  Rows gate(1, 37), up(1, 37);
  randomize(gate.view(), 1);
  randomize(up.view(), 2);
  gate.view()(0, 3) = 40;
  gate.view()(0, 4) = -40;
  std::vector<float> one_by_one;
  for (int64_t i = 0; i < 37; ++i) {
    Rows g(1, 1), u(1, 1);
    g.view()(0, 0) = gate.view()(0, i);
    u.view()(0, 0) = up.view()(0, i);
    gelu_tanh_mul(pool, g.view(), u.view(), 1);
    one_by_one.push_back(g.view()(0, 0));
    const auto x = static_cast<double>(gate.view()(0, i));
    const double inner = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
    EXPECT_NEAR(static_cast<double>(one_by_one.back()),
                0.5 * x * (1 + std::tanh(inner)) * static_cast<double>(up.view()(0, i)), 1e-5);
  }
  gelu_tanh_mul(pool, gate.view(), up.view(), 37);
  EXPECT_TRUE(same_bits(gate.view().row(0), one_by_one));
}

TEST(ClampedSwishMul, EqualsItsFormulaAndBodyAndTailAreOneFunction) {
  ThreadPool pool(1);
  Rows gate(1, 37), up(1, 37);
  randomize(gate.view(), 1);
  randomize(up.view(), 2);
  const std::pair<float, float> edges[]{{40, 0.5f},  {-400, 0.5f},    {0.5f, 40},
                                        {0.5f, -40}, {1e30f, -1e30f}, {-1e30f, 1}};
  for (size_t i = 0; i < std::size(edges); ++i)
    std::tie(gate.view()(0, static_cast<int64_t>(5 * i)), up.view()(0, static_cast<int64_t>(5 * i))) =
        edges[i];
  std::vector<float> one_by_one;
  for (int64_t i = 0; i < 37; ++i) {
    Rows g(1, 1), u(1, 1);
    g.view()(0, 0) = gate.view()(0, i);
    u.view()(0, 0) = up.view()(0, i);
    clamped_swish_mul(pool, g.view(), u.view(), 1, 1.702f, 2);
    one_by_one.push_back(g.view()(0, 0));
    const double x = std::min(static_cast<double>(gate.view()(0, i)), 2.0);
    const double y = std::clamp(static_cast<double>(up.view()(0, i)), -2.0, 2.0);
    EXPECT_NEAR(static_cast<double>(one_by_one.back()), x / (1 + std::exp(-1.702 * x)) * (y + 1), 1e-5);
  }
  clamped_swish_mul(pool, gate.view(), up.view(), 37, 1.702f, 2);
  EXPECT_TRUE(same_bits(gate.view().row(0), one_by_one));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [g, u] : {std::pair{nan, 1.0f}, {1.0f, nan}}) {
    Rows a(1, 1), b(1, 1);
    a.view()(0, 0) = g;
    b.view()(0, 0) = u;
    clamped_swish_mul(pool, a.view(), b.view(), 1, 1.702f, 7);
    EXPECT_TRUE(std::isnan(a.view()(0, 0)));
  }
}

TEST(ScaleAndCap, EqualTheirFormulas) {
  ThreadPool pool(2);
  Rows x(3, 37), y(3, 37);
  randomize(x.view(), 1);
  randomize(y.view(), 2);
  Rows scaled(3, 37), capped(3, 37), added(3, 37);
  for (Rows* copy : {&scaled, &capped, &added}) randomize(copy->view(), 1);
  scale_rows(scaled.view(), 0.3f);
  cap_rows(pool, capped.view(), 0.7f);
  for (int64_t m = 0; m < 3; ++m) {
    add_scaled(added.view().row(m), y.view().row(m), 0.4f);
    for (int64_t i = 0; i < 37; ++i) {
      EXPECT_EQ(scaled.view()(m, i), x.view()(m, i) * 0.3f);
      EXPECT_EQ(added.view()(m, i), x.view()(m, i) + y.view()(m, i) * 0.4f);
      EXPECT_NEAR(static_cast<double>(capped.view()(m, i)),
                  0.7 * std::tanh(static_cast<double>(x.view()(m, i)) / 0.7), 1e-6);
    }
  }
  capped.view()(0, 0) = std::nanf("");
  cap_rows(pool, capped.view(), 0.7f);
  EXPECT_TRUE(std::isnan(capped.view()(0, 0)));
}

// The sum of squares of a row has the bits of its leaves' parts on any number of ranks, added in their tree.
TEST(NormPart, SquaresAreAddedByLeaves) {
  Rows x(1, 100);
  randomize(x.view(), 5);
  const std::vector<int64_t> ends{12, 12, 24, 36, 60, 72, 84, 100};
  const auto row = x.view().row(0);
  const float whole = sum_of_squares(row, ends);
  for (size_t ranks : {2u, 4u, 8u}) {
    std::vector<float> parts;
    const size_t each = 8 / ranks;
    for (size_t r = 0; r < ranks; ++r) {
      const int64_t begin = r == 0 ? 0 : ends[r * each - 1];
      std::vector<int64_t> own;
      for (size_t i = 0; i < each; ++i) own.push_back(ends[r * each + i] - begin);
      parts.push_back(sum_of_squares(row.subspan(static_cast<size_t>(begin)), own));
    }
    for (size_t step = 1; step < ranks; step *= 2)
      for (size_t i = 0; i < ranks; i += 2 * step) parts[i] += parts[i + step];
    EXPECT_EQ(parts[0], whole) << ranks;
  }
  double squares = 0;
  for (float v : row) squares += static_cast<double>(v) * static_cast<double>(v);
  EXPECT_NEAR(static_cast<double>(whole), squares, 1e-4);
}

// Keys and values of two texts in one layer, in blocks that lie anywhere.
struct Layer {
  Layer(KvType kv_type, int64_t kv_heads, int64_t head_dim)
      : type(kv_type),
        keys(kBlocks * kv_heads * head_dim * kBlockTokens * element_bytes(type)),
        values(kBlocks * kv_heads * round_up(head_dim, 16) * kBlockTokens * element_bytes(type)),
        view{type, keys.data(), values.data(), kv_heads, head_dim} {
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    for (int64_t block = 0; block < kBlocks; ++block)
      for (int64_t slot = 0; slot < kBlockTokens; ++slot)
        for (int64_t head = 0; head < kv_heads; ++head) {
          std::vector<float> key, value;
          for (int64_t i = 0; i < head_dim; ++i)
            key.push_back(normal(random)), value.push_back(normal(random));
          store_kv(view, block, slot, head, key, value);
          text[{block, slot, head}] = {key, value};
        }
  }
  static constexpr int64_t kBlocks = 12;
  KvType type;
  Buffer<std::byte> keys, values;
  KvLayerView view;
  std::map<std::array<int64_t, 3>, std::pair<std::vector<float>, std::vector<float>>> text;
};

float stored(KvType type, float value) { return type == KvType::kFloat32 ? value : to_float(to_bf16(value)); }

void expect_attention(const Layer& layer, const AttentionShape& shape, const AttentionRow& row,
                      int64_t kv_head, std::span<const float> q, std::span<const float> out) {
  std::vector<double> weights, expected(q.size());
  double total = 0;
  const auto at = [&](int64_t p) -> const auto& {
    return layer.text.at({row.block_table[p / kBlockTokens], p % kBlockTokens, kv_head});
  };
  const double scale =
      shape.scale > 0 ? static_cast<double>(shape.scale) : 1 / std::sqrt(static_cast<double>(q.size()));
  const auto cap = static_cast<double>(shape.cap);
  const int64_t begin = shape.window > 0 ? std::max<int64_t>(0, row.position + 1 - shape.window) : 0;
  for (int64_t p = begin; p <= row.position; ++p) {
    double score = 0;
    for (size_t i = 0; i < q.size(); ++i)
      score += static_cast<double>(q[i]) * static_cast<double>(stored(layer.type, at(p).first[i]));
    score *= scale;
    weights.push_back(std::exp(cap > 0 ? cap * std::tanh(score / cap) : score));
    total += weights.back();
  }
  for (int64_t p = begin; p <= row.position; ++p)
    for (size_t i = 0; i < q.size(); ++i)
      expected[i] += weights[static_cast<size_t>(p - begin)] / total *
                     static_cast<double>(stored(layer.type, at(p).second[i]));
  for (size_t i = 0; i < q.size(); ++i) EXPECT_NEAR(static_cast<double>(out[i]), expected[i], 1e-5);
}

// Attention variants of the model families: all positions; windows within one block, of one block and longer;
// another scale; a cap.
const std::vector<AttentionShape>& shapes_of_families() {
  static const std::vector<AttentionShape> all{
      {}, {.window = 1}, {.window = 5}, {.window = 16}, {.scale = 0.3f, .cap = 1.5f, .window = 21}};
  return all;
}

AttentionShape with_heads(AttentionShape shape, int64_t heads, int64_t heads_per_kv) {
  shape.heads = heads;
  shape.heads_per_kv = heads_per_kv;
  return shape;
}

// Rows of one text go over keys and values together, whatever their company; heads in groups of any size.
TEST(Attention, EqualsItsFormulaAndARowAlone) {
  const std::vector<int32_t> first{3, 0, 7, 5}, second{1, 9, 2, 11};
  std::vector<AttentionRow> rows;
  for (int64_t p = 13; p < 34; ++p) rows.push_back({first.data(), p});
  for (int64_t p : {0, 1, 47, 48, 49, 15, 63}) rows.push_back({second.data(), p});
  const auto count = static_cast<int64_t>(rows.size());
  ThreadPool one(1), three(3, true);
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(pin_isa(isa).ok());
    for (KvType type : {KvType::kFloat32, KvType::kBFloat16})
      for (const auto& [kv_heads, heads_per_kv, head_dim] :
           {std::array<int64_t, 3>{4, 1, 16}, {2, 3, 40}, {1, 8, 64}, {1, 20, 24}}) {
        const Layer layer(type, kv_heads, head_dim);
        const int64_t heads = kv_heads * heads_per_kv;
        Rows q(count, heads * head_dim), out(count, heads * head_dim), alone(1, heads * head_dim);
        randomize(q.view(), 4);
        AttentionScratch scratch(3, 4 * kBlockTokens, head_dim);
        for (const AttentionShape& of_family : shapes_of_families()) {
          const AttentionShape shape = with_heads(of_family, heads, heads_per_kv);
          attention(three, scratch, q.view(), layer.view, shape, rows, out.view());
          for (int64_t m = 0; m < count; ++m) {
            const TensorView<const float, 2> row(q.view().row(m).data(), {1, heads * head_dim},
                                                 {q.stride, 1});
            const std::span one_row(&rows[static_cast<size_t>(m)], 1);
            attention(one, scratch, row, layer.view, shape, one_row, alone.view());
            EXPECT_TRUE(same_bits(alone.view().row(0), out.view().row(m))) << isa << " row " << m;
            for (int64_t h = 0; h < heads; ++h) {
              const auto at = static_cast<size_t>(h * head_dim), size = static_cast<size_t>(head_dim);
              expect_attention(layer, shape, one_row[0], h / heads_per_kv, row.row(0).subspan(at, size),
                               out.view().row(m).subspan(at, size));
            }
          }
        }
      }
  }
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
}

// Behind `begin` positions of one text, in the slots of its table: rows in front of a tree, then nodes in
// slots of their order. A second table has each node's path in order, as a chain's.
class TreeRows {
 public:
  TreeRows(int64_t begin, const std::vector<int32_t>& parents) : begin_(begin) {
    for (int64_t p = std::max<int64_t>(0, begin - 2); p < begin; ++p) add(p, {});
    for (size_t node = 0; node < parents.size(); ++node) {
      std::vector<int32_t> path;
      for (auto at = static_cast<int32_t>(node); at >= 0; at = parents[static_cast<size_t>(at)])
        path.insert(path.begin(), static_cast<int32_t>(begin) + at);
      add(begin + static_cast<int64_t>(path.size()) - 1, path);
    }
    for (size_t i = 0; i < tree.size(); ++i) tree[i].tail_slots = paths_[i].data();
  }

  std::vector<AttentionRow> tree;
  // Row i as a chain: copies its path into the blocks of the second table.
  AttentionRow as_chain(Layer& layer, size_t i) const {
    for (int64_t p = 0; p <= tree[i].position; ++p)
      for (int64_t head = 0; head < layer.view.kv_heads; ++head) {
        const int64_t slot = tree[i].slot(p);
        const auto& [key, value] = layer.text.at({table_[static_cast<size_t>(slot / 16)], slot % 16, head});
        store_kv(layer.view, chain_table_[static_cast<size_t>(p / 16)], p % 16, head, key, value);
      }
    return {chain_table_.data(), tree[i].position};
  }

 private:
  void add(int64_t position, std::vector<int32_t> path) {
    tree.push_back({table_.data(), position, begin_, nullptr});
    path.push_back(0);  // never read: gives every row some memory
    paths_.push_back(std::move(path));
  }

  int64_t begin_;
  std::vector<int32_t> table_{3, 0, 7, 5}, chain_table_{1, 9, 2, 11};
  std::vector<std::vector<int32_t>> paths_;
};

TEST(Attention, ANodeHasTheBitsOfItsChain) {
  const std::vector<int32_t> bush{-1, 0, 0, -1, 3, 1, 5, 1, 3, 6, 9, 10, 2, -1, 11, 14, 15, 16, 17, 4},
      star(17, -1);
  ThreadPool one(1), three(3, true);
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(pin_isa(isa).ok());
    for (KvType type : {KvType::kFloat32, KvType::kBFloat16})
      for (const auto& [kv_heads, heads_per_kv, head_dim] :
           {std::array<int64_t, 3>{4, 1, 16}, {2, 3, 40}, {1, 8, 64}, {1, 20, 24}})
        for (const int64_t begin : {0, 1, 13, 16, 31, 35})
          for (const auto& parents : {bush, star}) {
            Layer layer(type, kv_heads, head_dim);
            const TreeRows rows(begin, parents);
            const auto count = static_cast<int64_t>(rows.tree.size());
            const int64_t heads = kv_heads * heads_per_kv;
            Rows q(count, heads * head_dim), out(count, heads * head_dim), alone(1, heads * head_dim);
            randomize(q.view(), 4);
            AttentionScratch scratch(3, 4 * kBlockTokens, head_dim);
            for (const AttentionShape& of_family : shapes_of_families()) {
              const AttentionShape shape = with_heads(of_family, heads, heads_per_kv);
              attention(three, scratch, q.view(), layer.view, shape, rows.tree, out.view());
              for (int64_t m = 0; m < count; ++m) {
                const AttentionRow chain = rows.as_chain(layer, static_cast<size_t>(m));
                const TensorView<const float, 2> row(q.view().row(m).data(), {1, heads * head_dim},
                                                     {q.stride, 1});
                attention(one, scratch, row, layer.view, shape, {&chain, 1}, alone.view());
                EXPECT_TRUE(same_bits(alone.view().row(0), out.view().row(m)))
                    << isa << " row " << m << " window " << shape.window;
              }
            }
          }
  }
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
}

TEST(BFloat16, RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // a tie goes to even
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::nanf("")))));
  EXPECT_EQ(half_to_float(0x3c00), 1.0f);
  EXPECT_EQ(half_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(half_to_float(0xfbff), -65504.0f);
  EXPECT_TRUE(std::isinf(half_to_float(0x7c00)));
}

}  // namespace
}  // namespace outrider
