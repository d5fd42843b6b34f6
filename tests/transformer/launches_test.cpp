// What kernels cost, as far as the emulation can count it: bytes that are fetched, and launches.
#include <gtest/gtest.h>

#include "tests/emulation/copies.h"
#include "tests/transformer/cuda_test_support.h"

namespace outrider::cuda {
namespace {

class CudaLaunches : public CudaOps {};

// 16 rows of a 70B model's hidden size are more than shared memory holds. They are fetched once for 128 rows
// of weights, with the weights; by the form that stages nothing they come through the caches for every 32.
TEST_F(CudaLaunches, LongRowsAreFetchedOncePerBlockOfWeights) {
  constexpr int64_t kN = 256, kK = 8192, kRows = 16, kBlocks = 2;
  const DeviceMatrix weight(WeightType::kBFloat16, kN, even_slices(kK));
  const DeviceBuffer<bf16> x(kRows * kK);
  const DeviceBuffer<float> out(kRows * kN);
  const uint64_t before = emulation::copied_bytes();
  matmul(*stream,
         {.rows = kRows,
          .x_stride = kK,
          .out_stride = kN,
          .multiprocessors = info.multiprocessors,
          .shared_bytes = info.shared_bytes},
         x.data(), weight.view(), out.data());
  stream->synchronize();
  EXPECT_EQ(emulation::copied_bytes() - before, kN * kK * 2 + kBlocks * kRows * kK * 2);
}

}  // namespace
}  // namespace outrider::cuda
