// The emulation of CUDA finds missing barriers, unawaited asynchronous copies and barriers that some threads
// miss. Its matrix instruction has the documented layout.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "base/cuda_device.h"
#include "base/cuda_peer.h"
#include "tests/emulation/stream.h"

namespace outrider::cuda {
namespace {

constexpr unsigned kThreads = 64;

// Every thread writes a word and reads its mirror image's.
template <bool kWithBarrier>
void mirror(float* out) {
  float* words = shared_memory<float>();
  words[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (kWithBarrier) sync_block();
  out[threadIdx.x] = words[kThreads - 1 - threadIdx.x];
}

int wrong_mirrors(void (*kernel)(float*)) {
  std::vector<float> out(kThreads);
  const Stream stream;
  launch(stream, {.threads = kThreads, .shared_bytes = kThreads * sizeof(float)}, kernel, out.data());
  int wrong = 0;
  for (unsigned i = 0; i < kThreads; ++i) wrong += out[i] != static_cast<float>(kThreads - 1 - i);
  return wrong;
}

TEST(CudaEmulation, MissingBarrierShows) {
  EXPECT_EQ(wrong_mirrors(&mirror<true>), 0);
  EXPECT_GT(wrong_mirrors(&mirror<false>), 0);
}

#if defined(__SANITIZE_ADDRESS__)
void write_word(int64_t at) { shared_memory<float>()[at] = 1; }

TEST(CudaEmulation, SharedMemoryEndsWhereItEnds) {
  const Stream stream;
  const LaunchShape shape{.threads = 1, .shared_bytes = 5 * sizeof(float)};
  launch(stream, shape, &write_word, int64_t{4});
  EXPECT_DEATH(launch(stream, shape, &write_word, int64_t{5}), "heap-buffer-overflow");
}
#endif

template <bool kWithWait>
void copy_through_shared(const uint32_t* from, uint32_t* to) {
  auto* words = shared_memory<uint32_t>();
  copy_async_16(words, from);
  copy_async_commit();
  if (kWithWait) copy_async_wait<0>();
  std::memcpy(to, words, 16);
}

TEST(CudaEmulation, CopiesArriveWhenTheyAreWaitedFor) {
  alignas(16) const uint32_t from[4] = {1, 2, 3, 4};
  uint32_t to[4] = {};
  const Stream stream;
  const LaunchShape shape{.threads = 1, .shared_bytes = 16};
  launch(stream, shape, &copy_through_shared<true>, &from[0], &to[0]);
  EXPECT_EQ(std::memcmp(from, to, 16), 0);
  launch(stream, shape, &copy_through_shared<false>, &from[0], &to[0]);
  EXPECT_NE(std::memcmp(from, to, 16), 0);
}

void uneven_barrier() {
  if (threadIdx.x == 0)
    sync_block();
  else
    sync_warp();
}

TEST(CudaEmulationDeathTest, ThreadsAtDifferentBarriersAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Stream stream;
  EXPECT_DEATH(launch(stream, {.threads = 32}, &uneven_barrier), "waits at a barrier alone");
}

void sum_lanes(const float* in, float* out) {
  float value = in[threadIdx.x];
  for (int lanes = 16; lanes >= 1; lanes /= 2) value = value + shuffle_xor(value, lanes);
  out[threadIdx.x] = value;
}

TEST(CudaEmulation, ShufflesReachEveryLane) {
  std::vector<float> in(64), out(64);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
  const Stream stream;
  launch(stream, {.threads = 64}, &sum_lanes, in.data(), out.data());
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], i < 32 ? 496.0f : 1520.0f);
}

// d = a . b with the fragments gathered by hand from row-major a [16, 16] and b [16, 8].
void multiply_tile(const bf16* a, const bf16* b, float* d) {
  const unsigned g = threadIdx.x / 4, t = threadIdx.x % 4;
  const auto pair = [](bf16 low, bf16 high) { return static_cast<uint32_t>(high.bits) << 16 | low.bits; };
  const auto at = [&](unsigned row, unsigned column) {
    return pair(a[row * 16 + column], a[row * 16 + column + 1]);
  };
  const uint32_t words_a[4] = {at(g, 2 * t), at(g + 8, 2 * t), at(g, 2 * t + 8), at(g + 8, 2 * t + 8)};
  const uint32_t words_b[2] = {pair(b[2 * t * 8 + g], b[(2 * t + 1) * 8 + g]),
                               pair(b[(2 * t + 8) * 8 + g], b[(2 * t + 9) * 8 + g])};
  float sum[4] = {};
  mma_16x8x16(sum, words_a, words_b);
  d[g * 8 + 2 * t] = sum[0];
  d[g * 8 + 2 * t + 1] = sum[1];
  d[(g + 8) * 8 + 2 * t] = sum[2];
  d[(g + 8) * 8 + 2 * t + 1] = sum[3];
}

TEST(CudaEmulation, MatrixInstructionMultiplies) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<bf16> a(16 * 16), b(16 * 8);
  for (auto* operand : {&a, &b})
    for (bf16& v : *operand) v = to_bf16(normal(random));
  std::vector<float> d(16 * 8);
  const Stream stream;
  launch(stream, {.threads = 32}, &multiply_tile, a.data(), b.data(), d.data());
  for (size_t row = 0; row < 16; ++row)
    for (size_t column = 0; column < 8; ++column) {
      double sum = 0;
      for (size_t k = 0; k < 16; ++k)
        sum +=
            static_cast<double>(to_float(a[row * 16 + k])) * static_cast<double>(to_float(b[k * 8 + column]));
      EXPECT_NEAR(static_cast<double>(d[row * 8 + column]), sum, 1e-5);
    }
}

TEST(CudaEmulation, GraphsKeepTheirWork) {
  std::vector<float> in(32, 1.0f), out(32);
  const Stream stream;
  const Graph graph(stream, [&] { launch(stream, {.threads = 32}, &sum_lanes, in.data(), out.data()); });
  EXPECT_EQ(out[0], 0);  // captured, not run
  graph.launch(stream);
  EXPECT_EQ(out[0], 32);
  in[3] = 5;
  graph.launch(stream);
  EXPECT_EQ(out[0], 36);
}

TEST(CudaEmulation, WorkBehindSomebodyElsesIsHeldUp) {
  const Stream stream;
  Event before, after;
  bool over = false;
  const int from = 7;
  int to = 0;
  before.record(stream);
  emulation::hold_up(stream, [&] { return over; });
  copy(&to, &from, 1, stream);
  after.record(stream);
  EXPECT_TRUE(is_done(before));
  EXPECT_FALSE(is_done(after) || is_done(stream));
  EXPECT_EQ(to, 0);
  over = true;
  after.synchronize();
  EXPECT_EQ(to, 7);
  EXPECT_TRUE(is_done(stream));
}

// As on a device, which answers with an error.
TEST(CudaEmulation, OnlyWhatHappenedIsTimed) {
  const Stream stream;
  Event begin, end;
  EXPECT_THROW((void)end.seconds_since(begin), CudaError);
  begin.record(stream);
  EXPECT_THROW((void)end.seconds_since(begin), CudaError);
  bool over = false;
  emulation::hold_up(stream, [&] { return over; });
  end.record(stream);
  EXPECT_THROW((void)end.seconds_since(begin), CudaError);
  over = true;
  EXPECT_GE(end.seconds_since(begin), 0);
}

}  // namespace
}  // namespace outrider::cuda
