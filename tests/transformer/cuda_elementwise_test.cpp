// Norms, SwiGLU and graphs of them on the device.
#include <gtest/gtest.h>

#include <cmath>
#include <latch>

#include "comm/cuda/peer_kernels.h"
#include "comm/device_group.h"
#include "tests/support/test_models.h"
#include "tests/transformer/cuda_test_support.h"

namespace outrider::cuda {
namespace {

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
// four rows, so that it takes several rounds and the emulation's blocks several rows; with gathered rows too.
TEST_F(CudaOps, SumAndNormInOneKernelHasTheBitsOfTwo) {
  constexpr int64_t kRows = 5, kHidden = 300, kSize = kRows * kHidden;
  const std::vector<int32_t> gathered{4, 0, 2};
  const auto residuals = random_floats(kSize, 1);
  for (int ranks : {2, 4, 8}) {
    std::latch done(ranks);  // groups end together
    testing::run_group(ranks, [&](Collectives& host) {
      use_device(0);
      const Stream own;
      const auto group = make_peer_group(host, {.slot_bytes = 4 * kHidden * 4}).value();
      const auto parts = random_floats(kSize, 10 + static_cast<uint32_t>(host.rank()));
      const auto bias = to_device(random_floats(kHidden, 2), own);
      const auto weight = to_device(random_floats(kHidden, 3), own);
      const auto rows_from = to_device(gathered, own);
      // Nothing is freed while a peer's kernel may be waiting for us: that would wait for the device.
      const DeviceBuffer<float> residual(kSize), added(kSize), out(kSize);
      host.barrier();
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

}  // namespace
}  // namespace outrider::cuda
