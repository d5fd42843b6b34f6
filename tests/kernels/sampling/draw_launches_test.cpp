// The number of kernels that a draw launches, as the emulation counts them.
#include <gtest/gtest.h>

#include "kernels/sampling/cuda/device_draws.h"
#include "tests/emulation/copies.h"
#include "tests/kernels/sampling/reference.h"

namespace outrider::cuda {
namespace {

// Number of kernels that draw from one row of 5000 tokens, which has several parts.
uint64_t kernels_of_draw(const SamplingParams& params, int32_t row_bytes = 0) {
  constexpr int64_t kWidth = 5000;
  Stream stream;
  DeviceBuffer<float> memory(kWidth);
  DeviceDraws draws(
      {.rows = 1, .steps = 1, .width = kWidth, .stride = kWidth, .q_rows = 1, .counted = 1, .biases = 1},
      memory.data());
  const DrawRow row{.first = {.sampling = &params, .row_bytes = row_bytes}};
  draws.send({&row, 1}, false, stream);
  std::mt19937_64 rng(1);
  const auto logits = reference::random_logits(rng, kWidth);
  copy(memory.data(), logits.data(), kWidth, stream);
  const uint64_t before = emulation::kernels_run();
  draws.queue_step(1, stream);
  stream.synchronize();
  return emulation::kernels_run() - before;
}

TEST(DrawLaunches, ACutIsSixKernels) {
  const SamplingParams plain{.rule = Rule::kToken, .temperature = 1};
  const uint64_t without = kernels_of_draw(plain);
  EXPECT_EQ(without, 6);  // penalties, two for the maximum, one that settles it, weights, the draw
  SamplingParams params = plain;
  params.top_p = 0.9f;
  EXPECT_EQ(kernels_of_draw(params) - without, 6);
  params.top_k = 40;
  EXPECT_EQ(kernels_of_draw(params) - without, 12);
  params.min_p = 0.01f;
  EXPECT_EQ(kernels_of_draw(params) - without, 13);
}

// The weights' ranks, a cut, what it left counted and gathered, two turns of looks at units, the row.
TEST(DrawLaunches, ACompactRowIsTwelveKernels) {
  const SamplingParams plain{.rule = Rule::kToken, .temperature = 1};
  EXPECT_EQ(kernels_of_draw(plain, 100) - kernels_of_draw(plain), 12);
}

}  // namespace
}  // namespace outrider::cuda
