// Shared helpers for tests of CUDA ops: copies between device memory and vectors, random inputs, and the
// fixture. The tests run on a device and on the emulation.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "kernels/cuda/cuda_ops.h"
#include "model/cuda_backend.h"

namespace outrider::cuda {

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

inline std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

inline std::vector<bf16> as_bf16(const std::vector<float>& values) {
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
    prepare_attention(info.shared_bytes);
    stream = std::make_unique<Stream>();
  }
  std::unique_ptr<Stream> stream;
  DeviceInfo info;
};

}  // namespace outrider::cuda
