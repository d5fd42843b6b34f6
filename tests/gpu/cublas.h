// cuBLAS's matrix product for comparison. The library is loaded if present and never linked.
#pragma once

#include <cstdint>
#include <memory>

#include "base/cuda.h"
#include "base/status.h"

namespace outrider::gpu {

class Cublas {
 public:
  static Result<std::unique_ptr<Cublas>> load(cuda::StreamView stream);
  ~Cublas();

  // out[m, n] = x[m, k] . weight[n, k], all row-major; bf16 in, fp32 out.
  void multiply(int64_t rows, int64_t n, int64_t k, const void* x, const void* weight, float* out);

 private:
  struct Functions;
  Cublas();
  std::unique_ptr<Functions> functions_;
  void* handle_ = nullptr;
};

}  // namespace outrider::gpu
