// Answers for one GPU of compute capability 9.0: does wgmma add in the order of mma.sync? Only if no sum of
// the two differs may prompts use wgmma while steps use mma.sync (kernels/cuda/matmul_wide.cu), because the
// number of rows must change no bit. Compares 64 x 128 sums over 2,048 columns of noise with a few large
// numbers.
//   wgmma_bits        prints a line for each instruction; exit codes: 0 it ran, 77 no such GPU
// Sources: PTX ISA, wgmma.mma_async, matrix descriptor without swizzle.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

namespace {

constexpr int kColumns = 2048, kRows = 64, kTokens = 128, kStep = 16, kThreads = 128;

__device__ uint32_t pair(const uint16_t* p) { return *reinterpret_cast<const uint32_t*>(p); }

// This lane's part of its warp's 16 rows of weights [kRows][kColumns].
__device__ void load_weights(const uint16_t* weights, int k, uint32_t (&a)[4]) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  const uint16_t* upper = weights + row * kColumns + k + lane % 4 * 2;
  const uint16_t* lower = upper + 8 * kColumns;
  a[0] = pair(upper), a[1] = pair(lower), a[2] = pair(upper + 8), a[3] = pair(lower + 8);
}

__device__ void store(const float* sums, int first, int groups, float* out) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  for (int i = 0; i < 4 * groups; ++i)
    out[(row + (i % 4 >= 2 ? 8 : 0)) * kTokens + first + i / 4 * 8 + lane % 4 * 2 + i % 2] = sums[i];
}

// The operand of eight tokens, and m16n8k16, or two m16n8k8.
template <bool kHalves>
__global__ void by_mma(const uint16_t* weights, const uint16_t* inputs, float* out) {
  const int lane = threadIdx.x % 32;
  for (int n = 0; n < kTokens; n += 8) {
    float d[4] = {};
    for (int k = 0; k < kColumns; k += kStep) {
      uint32_t a[4];
      load_weights(weights, k, a);
      const uint16_t* x = inputs + (n + lane / 4) * kColumns + k + lane % 4 * 2;
      const uint32_t b[2] = {pair(x), pair(x + 8)};
      if constexpr (kHalves) {
        for (int half = 0; half < 2; ++half)
          asm volatile(
              "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
              : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
              : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
      } else {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
            "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
      }
    }
    store(d, n, 1, out);
  }
}

// wgmma m64n32k16 with weights from registers. A step of the tokens lies in shared memory as core matrices of
// 8 tokens x 16 bytes: [half of the step][8 tokens].
__global__ void by_wgmma(const uint16_t* weights, const uint16_t* inputs, float* out) {
  constexpr int kAtOnce = 32;
  __shared__ __align__(128) uint16_t step[kAtOnce * kStep];
  for (int n = 0; n < kTokens; n += kAtOnce) {
    float d[kAtOnce / 2] = {};
    for (int k = 0; k < kColumns; k += kStep) {
      for (int i = threadIdx.x; i < kAtOnce * kStep; i += kThreads) {
        const int token = i / kStep, column = i % kStep;
        step[(column / 8 * (kAtOnce / 8) + token / 8) * 64 + token % 8 * 8 + column % 8] =
            inputs[(n + token) * kColumns + k + column];
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      __syncthreads();
      uint32_t a[4];
      load_weights(weights, k, a);
      const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(step));
      constexpr uint64_t kNextHalf = kAtOnce / 8 * 128, kNextTokens = 128;  // bytes between core matrices
      const uint64_t b = (at & 0x3ffff) >> 4 | kNextHalf >> 4 << 16 | kNextTokens >> 4 << 32;
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      asm volatile(
          "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
          "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},{%16,%17,%18,%19},%20,1,1,1,0;"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
            "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),
            "+f"(d[15])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
          : "memory");
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      __syncthreads();
    }
    store(d, n, kAtOnce / 8, out);
  }
}

using Kernel = void (*)(const uint16_t*, const uint16_t*, float*);

bool check(cudaError_t error) {
  if (error != cudaSuccess) std::printf("CUDA: %s\n", cudaGetErrorString(error));
  return error == cudaSuccess;
}

uint16_t bfloat(float number) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

int run() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> weights(kRows * kColumns), inputs(kTokens * kColumns);
  for (auto& w : weights) w = bfloat(0.02f * normal(random));
  for (auto& x : inputs) x = bfloat(normal(random) * (random() % 50 == 0 ? 30.0f : 1.0f));
  uint16_t *on_device_w = nullptr, *on_device_x = nullptr;
  float* on_device_out = nullptr;
  constexpr size_t kSums = kRows * kTokens, kOutBytes = kSums * sizeof(float);
  if (!check(cudaMalloc(&on_device_w, weights.size() * 2)) ||
      !check(cudaMalloc(&on_device_x, inputs.size() * 2)) || !check(cudaMalloc(&on_device_out, kOutBytes)) ||
      !check(cudaMemcpy(on_device_w, weights.data(), weights.size() * 2, cudaMemcpyHostToDevice)) ||
      !check(cudaMemcpy(on_device_x, inputs.data(), inputs.size() * 2, cudaMemcpyHostToDevice)))
    return 77;
  const std::pair<const char*, Kernel> kernels[]{{"mma.sync m16n8k16", by_mma<false>},
                                                 {"two mma.sync m16n8k8", by_mma<true>},
                                                 {"wgmma m64n32k16", by_wgmma}};
  std::vector<float> first;
  for (const auto& [name, kernel] : kernels) {
    std::vector<float> sums(kSums);
    cudaMemset(on_device_out, 0xff, kOutBytes);
    kernel<<<1, kThreads>>>(on_device_w, on_device_x, on_device_out);
    if (!check(cudaGetLastError()) || !check(cudaDeviceSynchronize()) ||
        !check(cudaMemcpy(sums.data(), on_device_out, kOutBytes, cudaMemcpyDeviceToHost)))
      return 77;
    if (first.empty()) first = sums;
    int differing = 0;
    for (size_t i = 0; i < kSums; ++i) differing += std::memcmp(&sums[i], &first[i], sizeof(float)) != 0;
    std::printf("%-22s %d of %zu sums differ from those of %s\n", name, differing, kSums, kernels[0].first);
  }
  return 0;
}

}  // namespace

int main() { return run(); }
