// Latent attention (MLA) without the attention itself: products of single heads, and the cached values.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cuda/latent_ops.h"
#include "tests/kernels/cuda_test_support.h"

namespace outrider::cuda {
namespace {

float as_held(WeightType type, float value) {
  return type == WeightType::kBFloat16 ? to_float(to_bf16(value)) : value;
}

// Matrices of heads, and inputs of many rows.
class HeadsOfNoise {
 public:
  HeadsOfNoise(WeightType type, int64_t n, int64_t k, StreamView stream)
      : type_(type),
        n_(n),
        k_(k),
        stream_(stream),
        weights_(random_floats(kHeads * n * k, 1)),
        x_(random_floats(kRows * kHeads * k, 2)),
        matrix_(type, kHeads * head_rows(n), slices()) {
    for (int64_t h = 0; h < kHeads; ++h) {
      const auto rows = weights_.begin() + h * n * k;
      const std::vector<float> head(rows, rows + n * k);
      if (type == WeightType::kFloat32)
        pack_rows(stream, matrix_.view(), h * head_rows(n), n, to_device(head, stream).data());
      else
        pack_rows(stream, matrix_.view(), h * head_rows(n), n, to_device(as_bf16(head), stream).data());
    }
    stream.synchronize();
  }

  // The products of rows [first, first + rows).
  std::vector<float> operator()(int64_t first, int64_t rows, bool is_x_float) const {
    const std::vector<float> own(x_.begin() + first * width(), x_.begin() + (first + rows) * width());
    const auto floats = to_device(own, stream_);
    const auto halves = to_device(as_bf16(own), stream_);
    const bool is_half = !is_x_float && type_ == WeightType::kBFloat16;
    DeviceBuffer<float> out(rows * kHeads * n_);
    DeviceBuffer<bf16> half_out(rows * kHeads * n_);
    multiply_heads(stream_,
                   {.x = is_half ? static_cast<const void*>(halves.data()) : floats.data(),
                    .x_stride = width(),
                    .x_each = k_,
                    .is_x_float = is_x_float,
                    .out = is_half ? static_cast<void*>(half_out.data()) : out.data(),
                    .out_stride = kHeads * n_,
                    .out_each = n_,
                    .rows = rows,
                    .heads = kHeads,
                    .n = n_},
                   matrix_.view());
    if (!is_half) return to_host(out, stream_);
    std::vector<float> numbers;
    for (const bf16 value : to_host(half_out, stream_)) numbers.push_back(to_float(value));
    return numbers;
  }

  double reference(int64_t row, int64_t head, int64_t i) const {
    double sum = 0;
    for (int64_t k = 0; k < k_; ++k)
      sum += static_cast<double>(as_held(type_, x_[static_cast<size_t>(row * width() + head * k_ + k)])) *
             static_cast<double>(as_held(type_, weights_[static_cast<size_t>((head * n_ + i) * k_ + k)]));
    return sum;
  }

  static constexpr int64_t kRows = 70, kHeads = 3;

 private:
  Slices slices() const {
    const int64_t ends[] = {k_};
    return slices_from_ends(ends, step_columns(type_));
  }
  int64_t width() const { return kHeads * k_; }

  WeightType type_;
  int64_t n_, k_;
  StreamView stream_;
  std::vector<float> weights_, x_;
  DeviceMatrix matrix_;
};

// Rows of a head and columns that fill no tile, and more columns than are fetched ahead.
TEST_F(CudaOps, ProductsOfHeadsEqualDoublesWhateverTheRows) {
  for (const WeightType type : {WeightType::kFloat32, WeightType::kBFloat16})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{18, 10}, {40, 150}, {12, 18}})
      for (const bool is_x_float : {true, false}) {
        const HeadsOfNoise heads(type, n, k, *stream);
        const auto all = heads(0, HeadsOfNoise::kRows, is_x_float);
        size_t at = 0;
        for (int64_t row = 0; row < HeadsOfNoise::kRows; ++row)
          for (int64_t h = 0; h < HeadsOfNoise::kHeads; ++h)
            for (int64_t i = 0; i < n; ++i, ++at) {
              const double expected = heads.reference(row, h, i);
              const double rounding = type == WeightType::kBFloat16 && !is_x_float ? 0.004 : 1e-5;
              ASSERT_NEAR(static_cast<double>(all[at]), expected, rounding * std::abs(expected) + 2e-5)
                  << row << ", head " << h << ", number " << i;
            }
        const auto width = static_cast<size_t>(HeadsOfNoise::kHeads * n);
        for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 1}, {5, 9}, {60, 10}, {3, 17}}) {
          const auto some = heads(first, rows, is_x_float);
          EXPECT_EQ(std::memcmp(some.data(), all.data() + static_cast<size_t>(first) * width,
                                some.size() * sizeof(float)),
                    0)
              << rows << " rows from " << first;
        }
      }
}

// Two rows with the latent of queries in front; the second row may have a latent that is not finite.
class CachedLatents {
 public:
  CachedLatents(KvType type, StreamView stream) : type_(type), stream_(stream) {}

  static constexpr int32_t kQRank = 20, kLatent = 18, kPairs = 3, kRows = 2,
                           kWidth = kQRank + kLatent + 2 * kPairs;

  void operator()(const std::vector<float>& numbers, bool interleaved) {
    const auto device_numbers = to_device(numbers, stream_), kv_norm = to_device(kv_norm_, stream_),
               q_norm = to_device(q_norm_, stream_), cosines = to_device(cosines_, stream_),
               sines = to_device(sines_, stream_);
    const auto ints =
        to_device(std::vector<int32_t>{3, 4, 0, 0, 1}, stream_);  // positions, tables' rows, table
    layer_ = {.type = type_, .kv_heads = 1, .head_dim = kLatent + 2 * kPairs, .latent_dim = kLatent};
    const DeviceBuffer<float> keys(2 * layer_.block_elements());
    const DeviceBuffer<float> q_latent(kRows * kQRank);
    layer_.keys = keys.data();
    store_latents(
        stream_,
        {.positions = ints.data(),
         .row_table = ints.data() + 2,
         .tables = ints.data() + 4,
         .table_stride = 1},
        layer_,
        {.latents = device_numbers.data(),
         .stride = kWidth,
         .kv_begin = kQRank,
         .kv_norm = kv_norm.data(),
         .q_rank = kQRank,
         .q_norm = q_norm.data(),
         .q_latent = q_latent.data(),
         .rows = kRows,
         .epsilon = 1e-6f,
         .turns = {
             .pairs = kPairs, .interleaved = interleaved, .cosines = cosines.data(), .sines = sines.data()}});
    q_latents = to_host(q_latent, stream_);
    memory_ = to_host(keys, stream_);
  }
  float key(int32_t row, int32_t i) const {
    const int64_t at = layer_.key_offset(1, 0, 3 + row, i);
    if (type_ == KvType::kFloat32) return memory_[static_cast<size_t>(at)];
    return to_float(reinterpret_cast<const bf16*>(memory_.data())[at]);
  }

  std::vector<float> q_latents;
  const std::vector<float> kv_norm_ = random_floats(kLatent, 5), q_norm_ = random_floats(kQRank, 6),
                           cosines_ = random_floats(5 * kPairs, 7), sines_ = random_floats(5 * kPairs, 8);

 private:
  KvType type_;
  StreamView stream_;
  KvLayer layer_;
  std::vector<float> memory_;
};

double normed(const float* row, int32_t size, int32_t i, float weight) {
  double squares = 0;
  for (int32_t j = 0; j < size; ++j) squares += static_cast<double>(row[j]) * static_cast<double>(row[j]);
  return static_cast<double>(row[i]) / std::sqrt(squares / size + 1e-6) * static_cast<double>(weight);
}

TEST_F(CudaOps, LatentsAreNormedTurnedAndStored) {
  using C = CachedLatents;
  for (const KvType type : {KvType::kFloat32, KvType::kBFloat16})
    for (const bool interleaved : {true, false}) {
      const auto numbers = random_floats(C::kRows * C::kWidth, 3);
      CachedLatents cached(type, *stream);
      cached(numbers, interleaved);
      const double rounding = type == KvType::kBFloat16 ? 0.004 : 1e-6;
      for (int32_t row = 0; row < C::kRows; ++row) {
        const float* of_row = numbers.data() + row * C::kWidth;
        for (int32_t i = 0; i < C::kQRank; ++i) {
          const double expected = normed(of_row, C::kQRank, i, cached.q_norm_[static_cast<size_t>(i)]);
          EXPECT_NEAR(static_cast<double>(cached.q_latents[static_cast<size_t>(row * C::kQRank + i)]),
                      expected, 1e-6 * std::abs(expected) + 1e-6);
        }
        const float* latent = of_row + C::kQRank;
        for (int32_t i = 0; i < C::kLatent; ++i) {
          const double expected = normed(latent, C::kLatent, i, cached.kv_norm_[static_cast<size_t>(i)]);
          EXPECT_NEAR(static_cast<double>(cached.key(row, i)), expected,
                      rounding * std::abs(expected) + 1e-6);
        }
        for (int32_t i = 0; i < C::kPairs; ++i) {
          const float* part = latent + C::kLatent;
          const float x = part[interleaved ? 2 * i : i], y = part[interleaved ? 2 * i + 1 : C::kPairs + i];
          const auto at = static_cast<size_t>((3 + row) * C::kPairs + i);
          const float low = x * cached.cosines_[at] - y * cached.sines_[at],
                      high = y * cached.cosines_[at] + x * cached.sines_[at];
          EXPECT_NEAR(cached.key(row, C::kLatent + i), low, rounding * 4);
          EXPECT_NEAR(cached.key(row, C::kLatent + C::kPairs + i), high, rounding * 4);
        }
      }
    }
}

// Rows of a tile multiply each other's latents by zero, so in bf16 these are finite whatever was computed;
// who attends to the row learns it from the part that turns.
TEST_F(CudaOps, LatentsThatAreNotFiniteAreStoredAsZerosBesideNaN) {
  using C = CachedLatents;
  for (const int32_t where : {C::kQRank + 4, C::kQRank + C::kLatent + 1})
    for (const float value :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      auto numbers = random_floats(C::kRows * C::kWidth, 3);
      CachedLatents cached(KvType::kBFloat16, *stream);
      cached(numbers, true);
      std::vector<float> before;
      for (int32_t i = 0; i < C::kLatent + 2 * C::kPairs; ++i) before.push_back(cached.key(0, i));
      numbers[static_cast<size_t>(C::kWidth + where)] = value;
      cached(numbers, true);
      for (int32_t i = 0; i < C::kLatent + 2 * C::kPairs; ++i) {
        EXPECT_EQ(cached.key(0, i), before[static_cast<size_t>(i)]);
        if (i < C::kLatent)
          EXPECT_EQ(cached.key(1, i), 0);
        else
          EXPECT_TRUE(std::isnan(cached.key(1, i)));
      }
    }
}

}  // namespace
}  // namespace outrider::cuda
