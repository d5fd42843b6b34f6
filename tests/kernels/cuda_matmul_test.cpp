// Matrix products on the device against plain loops in double, and their bits over rows, neighbours and
// ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/kernels/cuda_product.h"

namespace outrider::cuda {
namespace {

constexpr WeightType kTypes[]{WeightType::kBFloat16, WeightType::kFloat32, WeightType::kFloat16,
                              WeightType::kInt8,     WeightType::kFloat8,  WeightType::kInt4};
constexpr WeightType kCodes[]{WeightType::kInt8, WeightType::kFloat8, WeightType::kInt4};

struct MatmulCase {
  WeightType type;
  int64_t n;
  Slices slices;
};

std::vector<MatmulCase> matmul_cases() {
  std::vector<MatmulCase> cases;
  for (WeightType type : kTypes) {
    const int step = step_columns(type);
    const auto ends = [&](std::vector<int64_t> columns) { return slices_from_ends(columns, step); };
    cases.push_back({type, 16, even_slices(16, step)});
    cases.push_back({type, 50, even_slices(300, step)});   // tails of rows and of columns
    cases.push_back({type, 200, even_slices(272, step)});  // more tiles than one block's warps
    cases.push_back({type, 33, ends({0, 24, 24, 56, 80, 90, 120, 142})});
    cases.push_back({type, 96, ends({64, 104, 104, 180})});
    cases.push_back({type, 70, ends({0, 24, 24, 56, 80, 98, 120, 144})});
    cases.push_back({type, 40, ends({34, 100})});
    cases.push_back({type, 130, ends({48})});
  }
  return cases;
}

// Products of 8-bit mantissas are exact in fp32; what is left is fp32 summation of up to 300 terms of size 1.
TEST_F(CudaOps, MatmulEqualsDoubles) {
  for (const MatmulCase& c : matmul_cases())
    for (int64_t rows : {1, 3, 8, 9, 16, 17, 40, 70}) {
      const Product product(c.type, c.slices, c.n, *stream);
      const int64_t k = product.k();
      const auto x = random_inputs(c.type, rows * k, static_cast<uint32_t>(rows));
      const auto out = product(x);
      for (int multiprocessors : {1, 100}) {
        const auto staged = product(x, info.shared_bytes, multiprocessors);
        ASSERT_EQ(std::memcmp(out.data(), staged.data(), out.size() * sizeof(float)), 0) << "n " << c.n;
      }
      for (int again = 0; again < 2; ++again) {  // its counters are as they were
        const auto split = product.split(x, info.shared_bytes, 100);
        ASSERT_EQ(std::memcmp(out.data(), split.data(), out.size() * sizeof(float)), 0) << "n " << c.n;
      }
      for (int64_t m = 0; m < rows; ++m)
        for (int64_t n = 0; n < c.n; ++n) {
          double sum = 0, size = 0;
          for (int64_t i = 0; i < k; ++i) {
            const double term = static_cast<double>(x[static_cast<size_t>(m * k + i)]) *
                                static_cast<double>(product.weight()[static_cast<size_t>(n * k + i)]);
            sum += term;
            size += std::abs(term);
          }
          const double got = static_cast<double>(out[static_cast<size_t>(m * c.n + n)]);
          ASSERT_NEAR(got, sum, 3e-6 * size + 1e-30)
              << "n " << n << " of " << c.n << ", row " << m << " of " << rows;
        }
    }
}

// Rows of gates and ups in pairs: what a product makes of both has the bits of the kernel that does it behind
// a product, in every form.
TEST_F(CudaOps, GatedProductsHaveTheBitsOfAKernelBehindThem) {
  constexpr int64_t kColumns = 72;
  for (WeightType type : kMatrixTypes) {
    const Slices slices =
        slices_from_ends(std::vector<int64_t>{40, 56, 64, 144, 176, 176, 208, 216}, step_columns(type));
    const int64_t k = slices.k();
    const auto values = random_floats(2 * kColumns * k, 3);
    DeviceMatrix plain(type, 2 * kColumns, slices), paired(type, 2 * kColumns, slices);
    paired.pair_rows();
    fill(plain, values, *stream);
    fill(paired, values, *stream);
    const auto bias = to_device(random_floats(2 * kColumns, 5), *stream);
    const DeviceBuffer<float> parts(split_floats(kSplitRows, 2 * kColumns));
    const DeviceBuffer<uint32_t> arrived(kSplitCounters);
    for (const int64_t rows : {1, 9, 17, 70}) {
      const auto x = to_device(as_bf16(random_floats(rows * k, static_cast<uint32_t>(rows))), *stream);
      for (const auto& [shared_bytes, multiprocessors, is_split] : {std::tuple(int64_t{0}, 1, false),
                                                                    {info.shared_bytes, 1, false},
                                                                    {info.shared_bytes, 100, false},
                                                                    {info.shared_bytes, 100, true}}) {
        MatmulShape shape{.rows = rows,
                          .x_stride = k,
                          .out_stride = 2 * kColumns,
                          .multiprocessors = multiprocessors,
                          .shared_bytes = shared_bytes};
        if (is_split) shape.split = {parts.data(), arrived.data(), parts.size()};
        for (const bool is_gelu : {false, true}) {
          if (is_gelu && rows > 1) continue;  // the same code
          const float* own_bias = is_gelu ? nullptr : bias.data();
          const DeviceBuffer<float> gate_up(rows * 2 * kColumns);
          const DeviceBuffer<bf16> expected(rows * kColumns), gated(rows * kColumns);
          matmul(*stream, shape, x.data(), plain.view(), gate_up.data());
          (is_gelu ? gelu_tanh_mul : silu_mul)(*stream, gate_up.data(), own_bias, rows, kColumns,
                                               WeightType::kBFloat16, expected.data());
          MatmulShape own = shape;
          own.out_stride = kColumns;
          own.gated = {is_gelu ? GateKind::kGeluTanh : GateKind::kSilu, own_bias, gated.data()};
          matmul(*stream, own, x.data(), paired.view(), nullptr);
          const auto a = to_host(expected, *stream), b = to_host(gated, *stream);
          ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(bf16)), 0)
              << rows << " rows of type " << static_cast<int>(type) << ", " << multiprocessors;
        }
      }
    }
  }
}

// A token's outputs do not depend on how many neighbours it has, nor on what they hold.
TEST_F(CudaOps, MatmulColumnsAreIndependent) {
  for (const MatmulCase& c : matmul_cases()) {
    const Product product(c.type, c.slices, c.n, *stream);
    const int64_t k = product.k();
    const auto row = random_inputs(c.type, k, 7);
    const auto alone = product(row);
    std::mt19937 random(9);
    for (int64_t rows : {2, 7, 8, 9, 15, 16, 17, 40, 64, 65}) {
      auto x = random_inputs(c.type, rows * k, static_cast<uint32_t>(rows) + 50);
      for (int64_t m = 0; m < rows; ++m) {
        if (m % 3 == 1)
          x[static_cast<size_t>(m * k + static_cast<int64_t>(random() % static_cast<uint32_t>(k)))] =
              std::numeric_limits<float>::infinity();
        if (m % 3 == 2) x[static_cast<size_t>(m * k)] = std::numeric_limits<float>::quiet_NaN();
      }
      const int64_t place = static_cast<int64_t>(random() % static_cast<uint32_t>(rows));
      std::copy(row.begin(), row.end(), x.begin() + place * k);
      const auto out = product(x, rows % 2 ? info.shared_bytes : 0, static_cast<int>(rows));
      EXPECT_EQ(std::memcmp(out.data() + place * c.n, alone.data(), alone.size() * sizeof(float)), 0)
          << "row " << place << " of " << rows << ", n " << c.n << ", k " << k;
    }
  }
}

// The halves of a contraction that two ranks compute, added, are the bits of the whole.
TEST_F(CudaOps, RanksContinueTheTree) {
  const std::vector<int64_t> ends{32, 64, 72, 120, 120, 168, 200, 240};
  constexpr int64_t kN = 48, kK = 240, kCut = 120;
  for (WeightType type : kTypes) {
    const auto numbers = random_floats(kN * kK, 3);
    const auto x = random_inputs(type, kK, 1);
    const auto expected = Product(type, slices_from_ends(ends, step_columns(type)), kN, numbers, *stream)(x);
    std::vector<float> parts[2];
    for (int64_t half = 0; half < 2; ++half) {
      std::vector<int64_t> own;
      for (size_t i = 0; i < 4; ++i) own.push_back(ends[static_cast<size_t>(half) * 4 + i] - half * kCut);
      std::vector<float> columns;
      for (int64_t row = 0; row < kN; ++row)
        for (int64_t i = 0; i < kCut; ++i)
          columns.push_back(numbers[static_cast<size_t>(row * kK + half * kCut + i)]);
      const std::vector<float> input(x.begin() + half * kCut, x.begin() + (half + 1) * kCut);
      parts[half] = Product(type, slices_from_ends(own, step_columns(type)), kN, columns, *stream)(input);
    }
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_EQ(expected[i], parts[0][i] + parts[1][i]) << i << " of type " << static_cast<int>(type);
  }
}

// Bytes in device memory: codes and scales of quantising there, and of loading what the host quantised.
TEST_F(CudaOps, QuantisingOnTheDeviceIsThatOfTheHost) {
  constexpr int32_t kN = 37;
  for (WeightType type : kCodes) {
    const Slices slices = slices_from_ends(std::vector<int64_t>{0, 24, 120, 250}, kGroupStep);
    auto values = random_floats(kN * slices.k(), 4);
    for (size_t i = 0; i < 24; ++i) values[i] = 0;  // a group of zeros
    values[30] = 1e4f;                              // one that drowns its group
    values[130] = -1e4f;
    const DeviceMatrix matrix(type, kN, slices), loaded(type, kN, slices);
    fill(matrix, values, *stream);
    const Quantised q = quantised(matrix.view(), values);
    const auto staged_codes = to_device(stored(matrix.view(), q.codes), *stream);
    const auto staged_scales = to_device(q.scales, *stream);
    pack_rows(*stream, loaded.view(), 0, kN, staged_codes.data());
    pack_scales(*stream, loaded.view(), 0, kN, staged_scales.data());
    std::vector<std::byte> bytes[2];
    for (const DeviceMatrix* m : {&matrix, &loaded}) {
      auto& to = bytes[m == &loaded];
      to.resize(static_cast<size_t>(m->bytes()));
      copy(to.data(), static_cast<const std::byte*>(m->view().data), m->bytes(), *stream);
      stream->synchronize();
    }
    EXPECT_EQ(bytes[0], bytes[1]) << static_cast<int>(type);
  }
}

// Row r holds code r once and zeros elsewhere; token t picks column t.
TEST_F(CudaOps, EveryCodeIsWidenedExactly) {
  constexpr int kN = 256, kK = 64;
  for (WeightType type : kCodes) {
    const DeviceMatrix weight(type, kN, even_slices(kK, kGroupStep));
    const MatrixView& m = weight.view();
    const auto count = static_cast<size_t>(type == WeightType::kInt4 ? 16 : 256);  // codes there are
    std::vector<uint8_t> codes(kN * kK, type == WeightType::kInt4 ? 8 : 0);
    for (size_t row = 0; row < kN; ++row) codes[row * kK + row % kK] = static_cast<uint8_t>(row % count);
    const auto staged = to_device(stored(m, codes), *stream);
    const auto ones =
        to_device(std::vector<bf16>(static_cast<size_t>(kN * m.groups()), to_bf16(1.0f)), *stream);
    pack_rows(*stream, m, 0, kN, staged.data());
    pack_scales(*stream, m, 0, kN, ones.data());
    std::vector<bf16> unit(kK * kK);
    for (size_t t = 0; t < kK; ++t) unit[t * kK + t] = to_bf16(1.0f);
    const auto x = to_device(unit, *stream);
    const DeviceBuffer<float> out(kK * kN);
    matmul(*stream, {.rows = kK, .x_stride = kK, .out_stride = kN}, x.data(), m, out.data());
    const auto got = to_host(out, *stream);
    for (size_t row = 0; row < kN; ++row) {
      const float number = number_of_code(type, codes[row * kK + row % kK]);
      if (std::isnan(number)) continue;
      EXPECT_EQ(got[row % kK * kN + row], number) << row;
    }
  }
}

}  // namespace
}  // namespace outrider::cuda
