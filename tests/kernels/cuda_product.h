// Products of random matrices of every format on a device, for tests.
#pragma once

#include <limits>

#include "base/bfloat16.h"
#include "base/quant_scheme.h"
#include "kernels/cpu/quantize.h"
#include "tests/kernels/cuda_test_support.h"

namespace outrider::cuda {

// Numbers [n, k] as the host quantizes them: codes in the encoding of the device's functions, and scales by
// row and group.
struct Quantised {
  std::vector<uint8_t> codes;  // [n, k]
  std::vector<bf16> scales;    // [n, groups]
};
inline Quantised quantised(const MatrixView& m, const std::vector<float>& values) {
  Quantised q{.codes = std::vector<uint8_t>(values.size())};
  int8_t integers[kGroupStep];
  for (int32_t row = 0; row < m.n; ++row)
    for (int32_t g = 0; g < m.groups(); ++g) {
      const CodeGroup group = group_at(m.slices, m.group_size(), g);
      const auto at = static_cast<size_t>(row * m.slices.k() + group.begin);
      const auto count = static_cast<size_t>(group.count);
      q.scales.push_back(quantize_group(m.type, {values.data() + at, count}, integers));
      for (size_t c = 0; c < count; ++c)
        q.codes[at + c] = static_cast<uint8_t>(integers[c] + (m.type == WeightType::kInt4 ? 8 : 0));
    }
  return q;
}

// The values that a matrix represents for `values` [n, k]: rounded, or quantized as the host does it.
inline std::vector<float> representable(const MatrixView& m, std::vector<float> values) {
  if (m.type == WeightType::kBFloat16)
    for (float& v : values) v = to_float(to_bf16(v));
  if (m.type == WeightType::kFloat16)
    for (float& v : values) v = half_to_float(half_of(v));
  if (!is_quantized(m.type)) return values;
  const Quantised q = quantised(m, values);
  for (int32_t row = 0; row < m.n; ++row)
    for (int32_t g = 0; g < m.groups(); ++g) {
      const CodeGroup group = group_at(m.slices, m.group_size(), g);
      for (int32_t c = group.begin; c < group.begin + group.count; ++c) {
        const auto at = static_cast<size_t>(row * m.slices.k() + c);
        values[at] = number_of_code(m.type, q.codes[at]) *
                     to_float(q.scales[static_cast<size_t>(row * m.groups() + g)]);
      }
    }
  return values;
}

// Rows of codes as files hold them.
inline std::vector<uint8_t> stored(const MatrixView& m, const std::vector<uint8_t>& codes) {
  if (m.type != WeightType::kInt4) return codes;
  const auto k = static_cast<size_t>(m.slices.k()),
             bytes = static_cast<size_t>(row_bytes(m.type, m.slices.k()));
  std::vector<uint8_t> packed(static_cast<size_t>(m.n) * bytes);
  for (size_t i = 0; i < codes.size(); ++i) {
    uint8_t& byte = packed[i / k * bytes + i % k / 2];
    byte = static_cast<uint8_t>(byte | codes[i] << (i % k % 2 * 4));
  }
  return packed;
}

// Loads numbers [n, k] the way a model is loaded.
inline void fill(const DeviceMatrix& matrix, const std::vector<float>& values, StreamView stream) {
  const MatrixView& m = matrix.view();
  if (m.type == WeightType::kBFloat16 || m.type == WeightType::kFloat16) {
    std::vector<bf16> bits = as_bf16(values);
    if (m.type == WeightType::kFloat16)
      for (size_t i = 0; i < bits.size(); ++i) bits[i] = bf16{half_of(values[i])};
    const auto staged = to_device(bits, stream);
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
    return run(x, shared_bytes, multiprocessors, {});
  }
  // The product with its contraction split over blocks, if the shape and `multiprocessors` allow it.
  std::vector<float> split(const std::vector<float>& x, int64_t shared_bytes, int multiprocessors) const {
    return run(x, shared_bytes, multiprocessors,
               {split_parts_.data(), split_arrived_.data(), split_parts_.size()});
  }

 private:
  std::vector<float> run(const std::vector<float>& x, int64_t shared_bytes, int multiprocessors,
                         const SplitRoom& split) const {
    const int64_t rows = static_cast<int64_t>(x.size()) / std::max<int64_t>(1, k());
    const int64_t stride = round_up(k(), 8);
    std::vector<float> padded(static_cast<size_t>(rows * stride), std::numeric_limits<float>::quiet_NaN());
    for (int64_t m = 0; m < rows; ++m) std::copy_n(x.data() + m * k(), k(), padded.data() + m * stride);
    DeviceBuffer<float> out(rows * n());
    fill_bytes(out.data(), 0xff, out.bytes(), stream_);
    const MatmulShape shape{.rows = rows,
                            .x_stride = stride,
                            .out_stride = n(),
                            .split = split,
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

  StreamView stream_;
  DeviceMatrix weight_;
  std::vector<float> values_;
  DeviceBuffer<float> split_parts_{split_floats(kSplitRows, n())};
  DeviceBuffer<uint32_t> split_arrived_{kSplitCounters};
};

inline std::vector<float> random_inputs(WeightType type, int64_t count, uint32_t seed) {
  auto x = random_floats(count, seed);
  if (activation_type(type) == WeightType::kBFloat16)
    for (float& v : x) v = to_float(to_bf16(v));
  return x;
}

// All but fp32 have the forms of tensor cores.
constexpr WeightType kMatrixTypes[]{WeightType::kBFloat16, WeightType::kFloat16, WeightType::kInt8,
                                    WeightType::kFloat8, WeightType::kInt4};

}  // namespace outrider::cuda
