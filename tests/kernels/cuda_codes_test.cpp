// Published quantized weights on the device: products of every kernel form against the dequantized weights,
// and golden models of every format against the CPU's results, over batches, chunks and ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/kernels/cuda_test_support.h"
#include "tests/kernels/random_codes.h"
#include "tests/model/model_suite.h"

namespace outrider::cuda {
namespace {

class CudaCodeProducts : public CudaOps {
 protected:
  std::vector<float> product(const DeviceMatrix& weight, const std::vector<float>& x, int64_t rows,
                             int64_t shared_bytes, bool split, int multiprocessors = 1) {
    const MatrixView& m = weight.view();
    const int64_t k = static_cast<int64_t>(x.size()) / rows;
    const auto inputs = to_device(as_bf16(x), *stream);
    const int64_t stride = m.columns ? round_up(m.slices.k(), kAlignedInputs) : k;
    const DeviceBuffer<bf16> gathered(rows * stride);
    if (m.columns) gather_columns(*stream, rows, inputs.data(), k, m, gathered.data(), stride);
    DeviceBuffer<float> out(rows * m.n);
    fill_bytes(out.data(), 0xff, out.bytes(), *stream);
    MatmulShape shape{.rows = rows,
                      .x_stride = stride,
                      .out_stride = m.n,
                      .multiprocessors = multiprocessors,
                      .shared_bytes = shared_bytes};
    const DeviceBuffer<float> parts(split ? split_floats(rows, m.n) : 0);
    if (split) shape.split = {parts.data(), split_arrived_.data(), parts.size()};
    matmul(*stream, shape, m.columns ? gathered.data() : inputs.data(), m, out.data());
    return to_host(out, *stream);
  }

 private:
  DeviceBuffer<uint32_t> split_arrived_{kSplitCounters};
};

std::vector<float> random_code_inputs(int64_t count, uint32_t seed) {
  auto x = random_floats(count, seed);
  for (float& v : x) v = to_float(to_bf16(v));
  return x;
}

const std::set<std::string> kOneOfEach{
    "gptq 4 bit in groups of 32", "act-order", "gptq 8 bit", "Q4_K", "Q6_K", "fp8 blocks", "MXFP4"};

// Numbers of codes times inputs are exact in fp32; what is left is fp32 summation.
TEST_F(CudaCodeProducts, EqualDoubles) {
  constexpr int64_t kN = 50;
  for (const CodeCase& c : code_cases())
    for (const bool is_cut : {false, true}) {
      const RandomCodes codes(c.scheme, kN, c.k, c.has_order, 3);
      const CodedPiece piece{&codes, {0, c.k}};
      const std::vector<int64_t> ends =
          is_cut ? std::vector<int64_t>{16, 96, 96, c.k} : std::vector<int64_t>();
      const CodePlan plan = plan_codes({&piece, 1}, ends).value();
      const DeviceMatrix weight = loaded(plan, {&piece, 1}, kN, *stream);
      std::vector<std::vector<float>> numbers(kN, std::vector<float>(static_cast<size_t>(c.k)));
      for (int64_t n = 0; n < kN; ++n) codes.read_weights(n, 0, numbers[static_cast<size_t>(n)]);
      for (int64_t rows : {1, 3, 9, 17, 70}) {
        const auto x = random_code_inputs(rows * c.k, static_cast<uint32_t>(rows));
        const auto out = product(weight, x, rows, 0, false);
        for (int multiprocessors : {1, 100})
          EXPECT_TRUE(
              testing::same_bits(out, product(weight, x, rows, info.shared_bytes, false, multiprocessors)))
              << c.name;
        EXPECT_TRUE(testing::same_bits(out, product(weight, x, rows, info.shared_bytes, true))) << c.name;
        for (int64_t m = 0; m < rows; ++m)
          for (int64_t n = 0; n < kN; ++n) {
            double sum = 0, size = 0;
            for (int64_t i = 0; i < c.k; ++i) {
              const double term =
                  static_cast<double>(x[static_cast<size_t>(m * c.k + i)]) *
                  static_cast<double>(numbers[static_cast<size_t>(n)][static_cast<size_t>(i)]);
              sum += term;
              size += std::abs(term);
            }
            // The sum first adds the part that a minimum subtracts later, so the error bound is larger.
            if (c.scheme.zero_type == ZeroType::kMinimum) size *= 8;
            ASSERT_NEAR(static_cast<double>(out[static_cast<size_t>(m * kN + n)]), sum, 3e-6 * size + 1e-30)
                << c.name << (is_cut ? ", cut" : "") << ", n " << n << ", row " << m << " of " << rows;
          }
      }
    }
}

// Every form that products take, once, of codes of each kind: what a checker sees that takes many times as
// long.
TEST_F(CudaCodeProducts, EachFormOnce) {
  constexpr int64_t kN = 136, kK = 704;
  for (const CodeCase& c : code_cases()) {
    if (!kOneOfEach.contains(c.name)) continue;
    const RandomCodes codes(c.scheme, kN, kK, c.has_order, 3);
    const CodedPiece piece{&codes, {0, kK}};
    const CodePlan plan = plan_codes({&piece, 1}, {136, 200, 208, 416, 544, 544, 680, kK}).value();
    const DeviceMatrix weight = loaded(plan, {&piece, 1}, kN, *stream);
    const auto x = random_code_inputs(100 * kK, 1);
    const auto all = product(weight, x, 100, 0, false);
    for (const auto& [rows, is_split, multiprocessors] : {std::tuple(2, true, 1),
                                                          {12, true, 1},
                                                          {32, false, 1},
                                                          {24, true, 100},
                                                          {64, false, 1},
                                                          {50, true, 100},
                                                          {100, false, 1}}) {
      const std::vector<float> first(x.begin(), x.begin() + rows * kK);
      EXPECT_TRUE(
          testing::same_bits({all.begin(), all.begin() + rows * kN},
                             product(weight, first, rows, info.shared_bytes, is_split, multiprocessors)))
          << c.name << ", " << rows << " rows";
    }
  }
}

// Every form that products of many rows take has the bits of the one that stages nothing, for any number of
// rows.
TEST_F(CudaCodeProducts, WideFormsHaveTheBitsOfTheOthers) {
  constexpr int64_t kN = 150, kK = 768;
  // On the emulation one width of codes each, and an order; EachFormOnce has every form of the others.
  const std::set<std::string> thin{"act-order", "Q6_K", "fp8 blocks"};
  for (const CodeCase& c : code_cases()) {
    if (!(testing::is_thin_suite() ? thin : kOneOfEach).contains(c.name)) continue;
    const RandomCodes codes(c.scheme, kN, kK, c.has_order, 3);
    const CodedPiece piece{&codes, {0, kK}};
    const CodePlan plan = plan_codes({&piece, 1}, {136, 200, 208, 416, 544, 544, 680, kK}).value();
    const DeviceMatrix weight = loaded(plan, {&piece, 1}, kN, *stream);
    const auto x = random_code_inputs(256 * kK, 1);
    const auto all = product(weight, x, 256, 0, false);
    std::set<std::pair<int, bool>> forms;
    for (const auto& [rows, multiprocessors] :
         {std::pair(16, 1), {24, 100}, {32, 1}, {50, 100}, {64, 1}, {65, 3}, {100, 100}, {130, 8}, {256, 1}})
      for (const bool is_split : {false, true}) {
        if (is_split && rows > kSplitRows) continue;  // it would be the same
        const std::vector<float> first(x.begin(), x.begin() + rows * kK);
        EXPECT_TRUE(
            testing::same_bits({all.begin(), all.begin() + rows * kN},
                               product(weight, first, rows, info.shared_bytes, is_split, multiprocessors)))
            << c.name << ", " << rows << " rows, " << multiprocessors;
        const WideProduct form = choose_wide_product(rows, kN, kMaxSlices, multiprocessors,
                                                     static_cast<int>(code_bits(plan.form.code)), is_split);
        if (rows > kFewRows) forms.emplace(form.rows, form.is_over_blocks);
      }
    EXPECT_EQ(forms.size(), 5u) << c.name;
  }
}

// More columns than 9 to 16 rows have room for in shared memory.
TEST_F(CudaCodeProducts, LongContractionsHaveTheBitsOfTheOthers) {
  constexpr int64_t kN = 24, kK = 5632;
  ASSERT_GT(staged_bytes(WeightType::kInt8, kK), info.shared_bytes);
  for (const CodeCase& c : code_cases()) {
    const RandomCodes codes(c.scheme, kN, kK, c.has_order, 3);
    const CodedPiece piece{&codes, {0, kK}};
    const CodePlan plan = plan_codes({&piece, 1}, {}).value();
    const DeviceMatrix weight = loaded(plan, {&piece, 1}, kN, *stream);
    const auto x = random_code_inputs(11 * kK, 1);
    EXPECT_TRUE(testing::same_bits(product(weight, x, 11, 0, false),
                                   product(weight, x, 11, info.shared_bytes, false)))
        << c.name;
  }
}

// The halves of a contraction that two ranks compute, added, are the bits of the whole.
TEST_F(CudaCodeProducts, RanksContinueTheTree) {
  constexpr int64_t kN = 48, kK = 512, kCut = 160;
  const std::vector<int64_t> ends{32, 64, 96, kCut, 288, 320, 480, kK};
  for (CodeCase c : code_cases()) {
    if (c.scheme.group > kK / 2) c.scheme.group = kK;
    const RandomCodes codes(c.scheme, kN, kK, c.has_order, 3);
    const auto x = random_code_inputs(kK, 1);
    const auto part = [&](IndexRange columns, const std::vector<int64_t>& own) {
      const CodedPiece piece{&codes, columns};
      const DeviceMatrix weight = loaded(plan_codes({&piece, 1}, own).value(), {&piece, 1}, kN, *stream);
      return product(weight, {x.begin() + columns.begin, x.begin() + columns.end}, 1, info.shared_bytes,
                     false);
    };
    const auto whole = part({0, kK}, ends), first = part({0, kCut}, {ends.begin(), ends.begin() + 4});
    std::vector<int64_t> rest;
    for (size_t i = 4; i < 8; ++i) rest.push_back(ends[i] - kCut);
    const auto second = part({kCut, kK}, rest);
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(whole[i], first[i] + second[i]) << c.name << " " << i;
  }
}

// Experts lie one beside the other, leaf by leaf.
TEST_F(CudaCodeProducts, PiecesSideBySideAreOneMatrix) {
  constexpr int64_t kN = 20, kK = 96;
  for (const int64_t group : {32, 40, 96}) {
    const QuantScheme scheme{.code = CodeType::kE4m3, .scale = ScaleType::kFloat32, .group = group};
    const RandomCodes a(scheme, kN, kK, false, 1), b(scheme, kN, kK, false, 2);
    const std::vector<CodedPiece> pieces{{&a, {0, 32}}, {&b, {0, 32}}, {&a, {32, 96}}, {&b, {32, 96}}};
    const CodePlan plan = plan_codes(pieces, {64, 192}).value();
    const DeviceMatrix weight = loaded(plan, pieces, kN, *stream);
    for (int64_t column = 0; column < 2 * kK; ++column) {
      std::vector<float> x(2 * kK);
      x[static_cast<size_t>(column)] = 1;
      const auto out = product(weight, x, 1, 0, false);
      const size_t p = column < 32 ? 0 : column < 64 ? 1 : column < 128 ? 2 : 3;
      const int64_t begin = p == 0 ? 0 : p == 1 ? 32 : p == 2 ? 64 : 128;
      for (int64_t n = 0; n < kN; ++n) {
        float number = 0;
        pieces[p].coded->read_weights(n, pieces[p].columns.begin + column - begin, {&number, 1});
        EXPECT_EQ(out[static_cast<size_t>(n)], number) << "group " << group << ", column " << column;
      }
    }
  }
}

// A NaN of fp8 reaches every output that reads its group, and no other.
TEST_F(CudaCodeProducts, NanOfFp8MakesItsRowNan) {
  class OneNan final : public CodedMatrix {
   public:
    OneNan() : CodedMatrix("fp8", {.code = CodeType::kE4m3, .group = 128}, 4, 128, {}) {}
    void read_codes(int64_t row, int64_t begin, std::span<uint8_t> to) const override {
      for (size_t i = 0; i < to.size(); ++i)
        to[i] = row == 2 && begin + static_cast<int64_t>(i) == 70 ? 0xff : 0x38;
    }
    GroupNumbers group(int64_t, int64_t) const override { return {.scale = 0.5f}; }
  };
  const OneNan codes;
  const CodedPiece piece{&codes, {0, 128}};
  const DeviceMatrix weight = loaded(plan_codes({&piece, 1}, {}).value(), {&piece, 1}, 4, *stream);
  const auto out = product(weight, std::vector<float>(128, 1.0f), 1, 0, false);
  for (size_t n = 0; n < 4; ++n) {
    if (n == 2)
      EXPECT_TRUE(std::isnan(out[n]));
    else
      EXPECT_EQ(out[n], 64) << n;
  }
}

// Bits of a weight in memory, of a matrix of a size that models have.
TEST(CudaCodeForms, CodesStayPacked) {
  const auto bits = [](const QuantScheme& scheme) {
    constexpr int64_t kN = 4096, kK = 14336;
    const auto form = code_form(scheme, kK, false).value();
    return 8 * static_cast<double>(DeviceMatrix::bytes_for(form, kN, even_slices(kK, kGroupStep), false)) /
           (kN * kK);
  };
  using C = CodeType;
  using S = ScaleType;
  EXPECT_EQ(bits({.zero_type = ZeroType::kStored, .scale = S::kFloat16, .group = 128}), 4.5);  // GPTQ, AWQ
  EXPECT_EQ(bits({.scale = S::kBFloat16, .zero = 8, .group = 128}), 4.25);          // compressed-tensors
  EXPECT_EQ(bits({.scale = S::kFloat16, .zero = 8, .group = 32}), 4.5);             // Q4_0
  EXPECT_EQ(bits({.code = C::kE2m1, .scale = S::kPowerOfTwo, .group = 32}), 4.25);  // MXFP4
  EXPECT_EQ(bits({.zero_type = ZeroType::kMinimum, .scale = S::kNested, .group = 32, .groups_together = 8}),
            5);
  EXPECT_EQ(
      bits({.code = C::kUnsigned8, .scale = S::kNested, .zero = 32, .group = 16, .groups_together = 16}),
      8.75);
  EXPECT_EQ(bits({.code = C::kUnsigned8, .zero_type = ZeroType::kStored, .scale = S::kFloat16, .group = 128}),
            8.5);
  EXPECT_EQ(bits({.code = C::kUnsigned8, .scale = S::kFloat16, .zero = 128, .group = 32}), 8.5);  // Q8_0
  EXPECT_EQ(bits({.code = C::kE4m3, .scale = S::kFloat32, .group = 128}), 8.5);
  EXPECT_EQ(bits({.code = C::kE4m3, .scale = S::kBFloat16, .group = 14336}), 8.25);
}

// Schemes without a device kernel are refused.
TEST(CudaCodeForms, OthersHaveNone) {
  EXPECT_FALSE(
      code_form({.zero_type = ZeroType::kStored, .scale = ScaleType::kFloat32, .group = 32}, 128, false));
  EXPECT_FALSE(
      code_form({.zero_type = ZeroType::kMinimum, .scale = ScaleType::kFloat16, .group = 32}, 128, false));
}

}  // namespace
}  // namespace outrider::cuda
