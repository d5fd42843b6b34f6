#include "tests/gpu/cublas.h"

#include <dlfcn.h>

#ifdef OUTRIDER_HAS_CUBLAS_HEADERS
#include <cublas_v2.h>

namespace outrider::gpu {

struct Cublas::Functions {
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasDestroy_v2) destroy = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                         const void*, cudaDataType, int, const void*, cudaDataType, int, const void*, void*,
                         cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t) = nullptr;
};

Cublas::Cublas() : functions_(std::make_unique<Functions>()) {}
Cublas::~Cublas() {
  if (handle_) functions_->destroy(static_cast<cublasHandle_t>(handle_));
}

Result<std::unique_ptr<Cublas>> Cublas::load(cuda::StreamView stream) {
  void* library = nullptr;
  for (const char* name : {"libcublas.so.13", "libcublas.so"})
    if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library) return unavailable("libcublas.so.13 is not found; put its folder into LD_LIBRARY_PATH");
  std::unique_ptr<Cublas> cublas(new Cublas);
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  Functions& f = *cublas->functions_;
  if (!find(f.create, "cublasCreate_v2") || !find(f.destroy, "cublasDestroy_v2") ||
      !find(f.set_stream, "cublasSetStream_v2") || !find(f.gemm, "cublasGemmEx"))
    return unavailable("libcublas lacks a function");
  cublasHandle_t handle = nullptr;
  if (f.create(&handle) != CUBLAS_STATUS_SUCCESS) return unavailable("cublasCreate failed");
  cublas->handle_ = handle;
  f.set_stream(handle, reinterpret_cast<cudaStream_t>(stream.handle()));
  return cublas;
}

void Cublas::multiply(int64_t rows, int64_t n, int64_t k, const void* x, const void* weight, float* out) {
  const float one = 1, zero = 0;
  const int in = static_cast<int>(k), to = static_cast<int>(n);
  // Column-major: out^T [n, rows] = weight [n, k] . x^T [k, rows].
  const auto status =
      functions_->gemm(static_cast<cublasHandle_t>(handle_), CUBLAS_OP_T, CUBLAS_OP_N, to,
                       static_cast<int>(rows), in, &one, weight, CUDA_R_16BF, in, x, CUDA_R_16BF, in, &zero,
                       out, CUDA_R_32F, to, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  if (status != CUBLAS_STATUS_SUCCESS) throw cuda::CudaError("cublasGemmEx failed");
}

}  // namespace outrider::gpu

#else

namespace outrider::gpu {

struct Cublas::Functions {};
Cublas::Cublas() = default;
Cublas::~Cublas() = default;
Result<std::unique_ptr<Cublas>> Cublas::load(cuda::StreamView) {
  return unavailable("this build has no cuBLAS headers");
}
void Cublas::multiply(int64_t, int64_t, int64_t, const void*, const void*, float*) {}

}  // namespace outrider::gpu

#endif
