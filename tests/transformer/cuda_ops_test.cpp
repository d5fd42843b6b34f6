// CUDA ops against plain loops in double, and their bits over rows and neighbours. Runs on a device, and on
// the emulation.
#include "transformer/ops/cuda_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <latch>
#include <limits>
#include <numeric>
#include <random>

#include "comm/cuda/peer_kernels.h"
#include "comm/device_group.h"
#include "tests/support/test_models.h"
#include "transformer/cuda_backend.h"
#include "transformer/ops/quantize.h"

namespace outrider::cuda {
namespace {

template <class T>
DeviceBuffer<T> to_device(const std::vector<T>& values, StreamView stream) {
  DeviceBuffer<T> buffer(static_cast<int64_t>(values.size()));
  copy(buffer.data(), values.data(), buffer.size(), stream);
  stream.synchronize();
  return buffer;
}

template <class T>
std::vector<T> to_host(const DeviceBuffer<T>& buffer, StreamView stream) {
  std::vector<T> values(static_cast<size_t>(buffer.size()));
  copy(values.data(), static_cast<const T*>(buffer.data()), buffer.size(), stream);
  stream.synchronize();
  return values;
}

std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

std::vector<bf16> as_bf16(const std::vector<float>& values) {
  std::vector<bf16> out;
  for (float v : values) out.push_back(to_bf16(v));
  return out;
}

class CudaOps : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto count = cuda_device_count();
    if (!count.ok()) GTEST_SKIP() << count.status().message();
    use_device(0);
    info = describe_device(0);
    prepare_matmul(info.shared_bytes);
    stream = std::make_unique<Stream>();
  }
  std::unique_ptr<Stream> stream;
  DeviceInfo info;
};

// What a matrix holds of `values` [n, k]: rounded, or quantised by the host's definition.
std::vector<float> representable(const MatrixView& m, std::vector<float> values) {
  const Slices& slices = m.slices;
  if (m.type == WeightType::kBFloat16)
    for (float& v : values) v = to_float(to_bf16(v));
  if (!is_quantized(m.type)) return values;
  int8_t codes[kGroupStep];
  for (int32_t row = 0; row < m.n; ++row)
    for (int32_t s = 0; s < slices.count; ++s)
      for (int32_t begin = slices.begin[s]; begin < slices.begin[s + 1]; begin += kGroupStep) {
        const int32_t count = std::min(kGroupStep, slices.begin[s + 1] - begin);
        float* group = values.data() + static_cast<ptrdiff_t>(row) * slices.k() + begin;
        const float scale = to_float(quantize_group(m.type, {group, static_cast<size_t>(count)}, codes));
        for (int32_t c = 0; c < count; ++c)
          group[c] = number_of_code(m.type, static_cast<uint8_t>(codes[c])) * scale;
      }
  return values;
}

// Loads numbers [n, k] the way a model is loaded.
void fill(const DeviceMatrix& matrix, const std::vector<float>& values, StreamView stream) {
  const MatrixView& m = matrix.view();
  if (m.type == WeightType::kBFloat16) {
    const auto staged = to_device(as_bf16(values), stream);
    pack_rows(stream, m, 0, m.n, staged.data());
    stream.synchronize();
    return;
  }
  const auto staged = to_device(values, stream);
  if (m.type == WeightType::kFloat32)
    pack_rows(stream, m, 0, m.n, staged.data());
  else
    quantize_rows(stream, m, 0, m.n, WeightType::kFloat32, staged.data());
  stream.synchronize();
}

// One product of a random weight [n, k]; x and results in host memory.
class Product {
 public:
  Product(WeightType type, const Slices& slices, int64_t n, StreamView stream)
      : Product(type, slices, n, random_floats(n * slices.k(), 3), stream) {}
  Product(WeightType type, const Slices& slices, int64_t n, const std::vector<float>& values,
          StreamView stream)
      : stream_(stream), weight_(type, n, slices), values_(representable(weight_.view(), values)) {
    fill(weight_, values, stream);
  }

  int64_t n() const { return weight_.view().n; }
  int64_t k() const { return weight_.view().slices.k(); }
  const std::vector<float>& weight() const { return values_; }

  // x [rows, k], already representable in the type. The output is poisoned first.
  // `shared_bytes` decides whether activations are staged in shared memory, and with `multiprocessors` by how
  // many warps.
  std::vector<float> operator()(const std::vector<float>& x, int64_t shared_bytes = 0,
                                int multiprocessors = 1) const {
    const int64_t rows = static_cast<int64_t>(x.size()) / std::max<int64_t>(1, k());
    const int64_t stride = round_up(k(), 8);
    std::vector<float> padded(static_cast<size_t>(rows * stride), std::numeric_limits<float>::quiet_NaN());
    for (int64_t m = 0; m < rows; ++m) std::copy_n(x.data() + m * k(), k(), padded.data() + m * stride);
    DeviceBuffer<float> out(rows * n());
    fill_bytes(out.data(), 0xff, out.bytes(), stream_);
    const MatmulShape shape{.rows = rows,
                            .x_stride = stride,
                            .out_stride = n(),
                            .multiprocessors = multiprocessors,
                            .shared_bytes = shared_bytes};
    if (activation_type(weight_.view().type) == WeightType::kBFloat16) {
      const auto device = to_device(as_bf16(padded), stream_);
      matmul(stream_, shape, device.data(), weight_.view(), out.data());
      return to_host(out, stream_);
    }
    const auto device = to_device(padded, stream_);
    matmul(stream_, shape, device.data(), weight_.view(), out.data());
    return to_host(out, stream_);
  }

 private:
  StreamView stream_;
  DeviceMatrix weight_;
  std::vector<float> values_;
};

std::vector<float> random_inputs(WeightType type, int64_t count, uint32_t seed) {
  auto x = random_floats(count, seed);
  if (activation_type(type) == WeightType::kBFloat16)
    for (float& v : x) v = to_float(to_bf16(v));
  return x;
}

constexpr WeightType kTypes[]{WeightType::kBFloat16, WeightType::kFloat32, WeightType::kInt8,
                              WeightType::kFloat8};

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
    for (int64_t rows : {1, 3, 8, 9, 16, 17, 70}) {
      const Product product(c.type, c.slices, c.n, *stream);
      const int64_t k = product.k();
      const auto x = random_inputs(c.type, rows * k, static_cast<uint32_t>(rows));
      const auto out = product(x);
      for (int multiprocessors : {1, 100}) {
        const auto staged = product(x, info.shared_bytes, multiprocessors);
        ASSERT_EQ(std::memcmp(out.data(), staged.data(), out.size() * sizeof(float)), 0) << "n " << c.n;
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
  for (WeightType type : {WeightType::kInt8, WeightType::kFloat8}) {
    const Slices slices = slices_from_ends(std::vector<int64_t>{0, 24, 120, 250}, kGroupStep);
    auto values = random_floats(kN * slices.k(), 4);
    for (size_t i = 0; i < 24; ++i) values[i] = 0;  // a group of zeros
    values[30] = 1e4f;                              // one that drowns its group
    const DeviceMatrix matrix(type, kN, slices), loaded(type, kN, slices);
    fill(matrix, values, *stream);
    std::vector<uint8_t> codes(values.size());
    std::vector<bf16> scales;
    for (int32_t row = 0; row < kN; ++row)
      for (int32_t s = 0; s < slices.count; ++s)
        for (int32_t begin = slices.begin[s]; begin < slices.begin[s + 1]; begin += kGroupStep) {
          const auto at = static_cast<size_t>(row * slices.k() + begin);
          const auto count = static_cast<size_t>(std::min(kGroupStep, slices.begin[s + 1] - begin));
          scales.push_back(quantize_group(type, {values.data() + at, count},
                                          reinterpret_cast<int8_t*>(codes.data() + at)));
        }
    const auto staged_codes = to_device(codes, *stream);
    const auto staged_scales = to_device(scales, *stream);
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
  for (WeightType type : {WeightType::kInt8, WeightType::kFloat8}) {
    const DeviceMatrix weight(type, kN, even_slices(kK, kGroupStep));
    std::vector<uint8_t> codes(kN * kK);
    for (size_t row = 0; row < kN; ++row) codes[row * kK + row % kK] = static_cast<uint8_t>(row);
    const auto staged = to_device(codes, *stream);
    const auto ones = to_device(std::vector<bf16>(kN, to_bf16(1.0f)), *stream);
    pack_rows(*stream, weight.view(), 0, kN, staged.data());
    pack_scales(*stream, weight.view(), 0, kN, ones.data());
    std::vector<bf16> unit(kK * kK);
    for (size_t t = 0; t < kK; ++t) unit[t * kK + t] = to_bf16(1.0f);
    const auto x = to_device(unit, *stream);
    const DeviceBuffer<float> out(kK * kN);
    matmul(*stream, {.rows = kK, .x_stride = kK, .out_stride = kN}, x.data(), weight.view(), out.data());
    const auto got = to_host(out, *stream);
    for (size_t row = 0; row < kN; ++row) {
      const float number = number_of_code(type, static_cast<uint8_t>(row));
      if (std::isnan(number)) continue;
      EXPECT_EQ(got[row % kK * kN + row], number) << row;
    }
  }
}

TEST_F(CudaOps, NormEqualsDoublesAndGathers) {
  constexpr int64_t kRows = 5, kHidden = 300;
  const auto residual = random_floats(kRows * kHidden, 1), added = random_floats(kRows * kHidden, 2);
  const auto bias = random_floats(kHidden, 3), weight = random_floats(kHidden, 4);
  const auto device_residual = to_device(residual, *stream), device_added = to_device(added, *stream);
  const auto device_bias = to_device(bias, *stream), device_weight = to_device(weight, *stream);
  DeviceBuffer<float> out(kRows * kHidden);
  const NormArguments arguments{.residual = device_residual.data(),
                                .added = device_added.data(),
                                .bias = device_bias.data(),
                                .weight = device_weight.data(),
                                .out = out.data(),
                                .type = WeightType::kFloat32,
                                .rows = kRows,
                                .hidden = kHidden,
                                .epsilon = 1e-5f};
  const std::vector<int32_t> rows{3, 0};
  const auto rows_from = to_device(rows, *stream);
  DeviceBuffer<float> gathered(2 * kHidden);
  NormArguments gather = arguments;
  gather.rows_from = rows_from.data();
  gather.out = gathered.data();
  gather.rows = 2;
  add_and_norm(*stream, gather);  // first: it must not write the residual
  add_and_norm(*stream, arguments);
  const auto sums = to_host(device_residual, *stream), normed = to_host(out, *stream);
  const auto some = to_host(gathered, *stream);
  for (int64_t m = 0; m < kRows; ++m) {
    double squares = 0;
    for (int64_t i = 0; i < kHidden; ++i) {
      const auto at = static_cast<size_t>(m * kHidden + i);
      EXPECT_EQ(sums[at], residual[at] + (added[at] + bias[static_cast<size_t>(i)]));
      squares += static_cast<double>(sums[at]) * static_cast<double>(sums[at]);
    }
    const double scale = 1 / std::sqrt(squares / kHidden + 1e-5);
    for (int64_t i = 0; i < kHidden; ++i) {
      const auto at = static_cast<size_t>(m * kHidden + i);
      const double expected =
          static_cast<double>(sums[at]) * scale * static_cast<double>(weight[static_cast<size_t>(i)]);
      EXPECT_NEAR(static_cast<double>(normed[at]), expected, 2e-6 * std::abs(expected) + 1e-7);
    }
  }
  for (int64_t i = 0; i < kHidden; ++i) {
    EXPECT_EQ(some[static_cast<size_t>(i)], normed[static_cast<size_t>(3 * kHidden + i)]);
    EXPECT_EQ(some[static_cast<size_t>(kHidden + i)], normed[static_cast<size_t>(i)]);
  }
}

// Ranks as threads: what one kernel does over peer memory are the bits of the sum and then the norm. Slots of
// two rows, so that it takes several rounds; with gathered rows too.
TEST_F(CudaOps, SumAndNormInOneKernelHasTheBitsOfTwo) {
  constexpr int64_t kRows = 5, kHidden = 300, kSize = kRows * kHidden;
  const std::vector<int32_t> gathered{4, 0, 2};
  const auto residuals = random_floats(kSize, 1);
  for (int ranks : {2, 4, 8}) {
    std::latch done(ranks);  // groups end together
    testing::run_group(ranks, [&](Collectives& host) {
      use_device(0);
      const Stream own;
      const auto group = make_peer_group(host, {.slot_bytes = 2 * kHidden * 4}).value();
      const auto parts = random_floats(kSize, 10 + static_cast<uint32_t>(host.rank()));
      const auto bias = to_device(random_floats(kHidden, 2), own);
      const auto weight = to_device(random_floats(kHidden, 3), own);
      const auto rows_from = to_device(gathered, own);
      // Nothing is freed while a peer's kernel may be waiting for us: that would wait for the device.
      const DeviceBuffer<float> residual(kSize), added(kSize), out(kSize);
      for (bool gather : {false, true}) {
        const NormArguments arguments{.residual = residual.data(),
                                      .added = added.data(),
                                      .bias = gather ? nullptr : bias.data(),
                                      .weight = weight.data(),
                                      .rows_from = gather ? rows_from.data() : nullptr,
                                      .out = out.data(),
                                      .rows = gather ? rows_from.size() : kRows,
                                      .hidden = kHidden,
                                      .epsilon = 1e-5f};
        std::vector<float> sums[2], outs[2];
        for (bool fused : {false, true}) {
          copy(residual.data(), residuals.data(), kSize, own);
          copy(added.data(), parts.data(), kSize, own);
          if (fused) {
            sum_and_norm(own, *group->peer_view(), arguments);
          } else {
            group->all_reduce(Reduction::kTreeSum, added.data(), kSize, own);
            add_and_norm(own, arguments);
          }
          group->wait(own);
          sums[fused] = to_host(residual, own);
          outs[fused] = to_host(out, own);
        }
        EXPECT_EQ(outs[0], outs[1]) << ranks;
        EXPECT_TRUE(gather || sums[0] == sums[1]) << ranks;
        EXPECT_NE(outs[1][0], 0);
      }
      done.arrive_and_wait();
    });
  }
}

TEST_F(CudaOps, SiluEqualsDoubles) {
  constexpr int64_t kRows = 3, kColumns = 70;
  const auto gate_up = random_floats(kRows * 2 * kColumns, 5), bias = random_floats(2 * kColumns, 6);
  const auto device = to_device(gate_up, *stream), device_bias = to_device(bias, *stream);
  DeviceBuffer<float> out(kRows * kColumns);
  silu_mul(*stream, device.data(), device_bias.data(), kRows, kColumns, WeightType::kFloat32, out.data());
  const auto got = to_host(out, *stream);
  for (int64_t m = 0; m < kRows; ++m)
    for (int64_t i = 0; i < kColumns; ++i) {
      const auto value = [&](int64_t c) {
        return static_cast<double>(gate_up[static_cast<size_t>(m * 2 * kColumns + c)]) +
               static_cast<double>(bias[static_cast<size_t>(c)]);
      };
      const double expected = value(i) / (1 + std::exp(-value(i))) * value(kColumns + i);
      EXPECT_NEAR(static_cast<double>(got[static_cast<size_t>(m * kColumns + i)]), expected,
                  2e-6 * std::abs(expected) + 1e-6);
    }
}

// Two sequences whose blocks are interleaved in the pool; rows before, at and after a split's border.
TEST_F(CudaOps, AttentionEqualsDoubles) {
  constexpr int32_t kHeads = 6, kKvHeads = 2, kDim = 24, kPositions = 600, kBlocks = 80;
  const int64_t table_stride = kv_blocks_for(kPositions);
  for (KvType type : {KvType::kFloat32, KvType::kBFloat16}) {
    const int64_t elements = kBlocks * kKvHeads * kBlockTokens * kDim;
    auto keys = random_floats(elements, 1), values = random_floats(elements, 2);
    const auto bytes_of = [&](std::vector<float>& v) {
      std::vector<std::byte> bytes;
      if (type == KvType::kBFloat16)
        for (float& f : v) f = to_float(to_bf16(f));
      const auto halves = as_bf16(v);
      const auto* from = type == KvType::kBFloat16 ? reinterpret_cast<const std::byte*>(halves.data())
                                                   : reinterpret_cast<const std::byte*>(v.data());
      bytes.assign(from, from + v.size() * (type == KvType::kBFloat16 ? 2 : 4));
      return bytes;
    };
    const auto device_keys = to_device(bytes_of(keys), *stream),
               device_values = to_device(bytes_of(values), *stream);
    std::vector<int32_t> tables(static_cast<size_t>(2 * table_stride));
    for (int64_t i = 0; i < 2 * table_stride; ++i)
      tables[static_cast<size_t>(i)] = static_cast<int32_t>(i * 37 % kBlocks);
    const std::vector<int32_t> positions{0, 15, 255, 256, 300, 511, 512, 599},
        row_table{0, 1, 0, 1, 0, 1, 0, 1};
    const auto rows = static_cast<int64_t>(positions.size());
    const auto q = random_floats(rows * kHeads * kDim, 4);
    const auto device_q = to_device(q, *stream);
    const auto device_positions = to_device(positions, *stream), device_rows = to_device(row_table, *stream),
               device_tables = to_device(tables, *stream);
    const DeviceBatch batch{.positions = device_positions.data(),
                            .row_table = device_rows.data(),
                            .tables = device_tables.data(),
                            .table_stride = table_stride};
    const KvLayer layer{.type = type,
                        .keys = device_keys.data(),
                        .values = device_values.data(),
                        .kv_heads = kKvHeads,
                        .head_dim = kDim};
    DeviceBuffer<float> workspace(attention_workspace(kHeads, kDim, kPositions)), out(rows * kHeads * kDim);
    fill_bytes(workspace.data(), 0xff, workspace.bytes(), *stream);
    attention(*stream, batch, layer,
              {.q = device_q.data(),
               .q_stride = kHeads * kDim,
               .out = out.data(),
               .out_type = WeightType::kFloat32,
               .rows = rows,
               .heads = kHeads,
               .heads_per_kv = 3,
               .max_positions = kPositions,
               .workspace = workspace.data()});
    const auto got = to_host(out, *stream);
    for (int64_t m = 0; m < rows; ++m)
      for (int64_t h = 0; h < kHeads; ++h) {
        const auto at = [&](int64_t p) {
          const int64_t block = tables[static_cast<size_t>(row_table[static_cast<size_t>(m)] * table_stride +
                                                           p / kBlockTokens)];
          return kv_offset(kKvHeads, kBlockTokens, kDim, block, h / 3, p % kBlockTokens);
        };
        std::vector<double> weights, result(kDim, 0);
        double max = -1e300, sum = 0;
        for (int64_t p = 0; p <= positions[static_cast<size_t>(m)]; ++p) {
          double score = 0;
          for (int64_t i = 0; i < kDim; ++i)
            score += static_cast<double>(q[static_cast<size_t>((m * kHeads + h) * kDim + i)]) *
                     static_cast<double>(keys[static_cast<size_t>(at(p) + i)]);
          weights.push_back(score / std::sqrt(static_cast<double>(kDim)));
          max = std::max(max, weights.back());
        }
        for (double& w : weights) sum += w = std::exp(w - max);
        for (size_t p = 0; p < weights.size(); ++p)
          for (int64_t i = 0; i < kDim; ++i)
            result[static_cast<size_t>(i)] +=
                weights[p] / sum *
                static_cast<double>(values[static_cast<size_t>(at(static_cast<int64_t>(p)) + i)]);
        for (int64_t i = 0; i < kDim; ++i)
          EXPECT_NEAR(static_cast<double>(got[static_cast<size_t>((m * kHeads + h) * kDim + i)]),
                      result[static_cast<size_t>(i)], 5e-6)
              << "row " << m << " head " << h;
      }
  }
}

TEST_F(CudaOps, GraphReplaysWithNewInputs) {
  const auto ones = random_floats(64, 1), twos = random_floats(64, 2);
  const std::vector<float> weight(64, 1.0f);
  DeviceBuffer<float> residual(64), out(64);
  const auto device_weight = to_device(weight, *stream);
  const NormArguments arguments{.residual = residual.data(),
                                .weight = device_weight.data(),
                                .out = out.data(),
                                .rows = 1,
                                .hidden = 64,
                                .epsilon = 1e-6f};
  const Graph graph(*stream, [&] { add_and_norm(*stream, arguments); });
  std::vector<std::vector<float>> results;
  for (const auto& input : {ones, twos, ones}) {
    copy(residual.data(), input.data(), 64, *stream);
    graph.launch(*stream);
    results.push_back(to_host(out, *stream));
  }
  EXPECT_EQ(results[0], results[2]);
  EXPECT_NE(results[0], results[1]);
}

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

TEST(CudaLayout, CodesAndScalesHaveTheirOwnPlaces) {
  const Slices slices = slices_from_ends(std::vector<int64_t>{0, 24, 24, 190}, kGroupStep);
  constexpr int32_t kRows = 40;
  std::vector<int> codes(static_cast<size_t>(3 * slices.steps() * kGroupTileBytes));
  std::vector<int> scales(static_cast<size_t>(3 * slices.steps() * kTileRows));
  EXPECT_EQ(static_cast<int64_t>(codes.size() + scales.size() * sizeof(bf16)),
            DeviceMatrix::bytes_for(WeightType::kInt8, kRows, slices));
  for (int32_t row = 0; row < kRows; ++row) {
    for (int32_t column = 0; column < slices.k(); ++column)
      EXPECT_EQ(codes[static_cast<size_t>(code_offset(slices, row, column))]++, 0) << row << " " << column;
    for (int32_t step = 0; step < slices.steps(); ++step)
      EXPECT_EQ(scales[static_cast<size_t>(scale_offset(slices, row, step))]++, 0) << row << " " << step;
  }
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

}  // namespace
}  // namespace outrider::cuda
