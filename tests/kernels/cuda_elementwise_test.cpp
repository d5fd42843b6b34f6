// Norms, SwiGLU and CUDA graphs with both on the device.
#include <gtest/gtest.h>

#include <cmath>
#include <latch>
#include <numbers>

#include "comm/cuda/peer_kernels.h"
#include "comm/device_group.h"
#include "model/expert_rows.h"
#include "model/kv/cpu_kv_storage.h"
#include "tests/kernels/cuda_test_support.h"
#include "tests/support/test_models.h"

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

// The output of attention or of an MLP is normalised before it is added. The following operation may need no
// norm.
TEST_F(CudaOps, NormOfWhatIsAddedEqualsDoubles) {
  constexpr int64_t kRows = 3, kHidden = 300;
  const auto residual = random_floats(kRows * kHidden, 1), added = random_floats(kRows * kHidden, 2);
  const auto bias = random_floats(kHidden, 3), added_weight = random_floats(kHidden, 4),
             weight = random_floats(kHidden, 5);
  const auto device_added = to_device(added, *stream), device_bias = to_device(bias, *stream);
  const auto device_added_weight = to_device(added_weight, *stream),
             device_weight = to_device(weight, *stream);
  const auto norm = [&](std::vector<double>& row, const std::vector<float>& weights) {
    double squares = 0;
    for (const double value : row) squares += value * value;
    const double scale = 1 / std::sqrt(squares / kHidden + 1e-5);
    for (size_t i = 0; i < row.size(); ++i) row[i] *= scale * static_cast<double>(weights[i]);
  };
  for (const bool is_normed : {true, false}) {
    const auto device_residual = to_device(residual, *stream);
    DeviceBuffer<float> out(kRows * kHidden);
    add_and_norm(*stream, {.residual = device_residual.data(),
                           .added = device_added.data(),
                           .bias = device_bias.data(),
                           .added_weight = device_added_weight.data(),
                           .factor = 0.25f,
                           .weight = is_normed ? device_weight.data() : nullptr,
                           .out = out.data(),
                           .rows = kRows,
                           .hidden = kHidden,
                           .epsilon = 1e-5f});
    const auto sums = to_host(device_residual, *stream), got = to_host(out, *stream);
    for (int64_t m = 0; m < kRows; ++m) {
      const auto at = [&](size_t i) { return static_cast<size_t>(m * kHidden) + i; };
      std::vector<double> row(kHidden);
      for (size_t i = 0; i < row.size(); ++i)
        row[i] = static_cast<double>(added[at(i)]) + static_cast<double>(bias[i]);
      norm(row, added_weight);
      for (size_t i = 0; i < row.size(); ++i) {
        row[i] = static_cast<double>(residual[at(i)]) + row[i] / 4;
        EXPECT_NEAR(static_cast<double>(sums[at(i)]), row[i], 2e-6);
      }
      if (is_normed) norm(row, weight);
      for (size_t i = 0; i < row.size(); ++i)
        EXPECT_NEAR(static_cast<double>(got[at(i)]), row[i], 4e-6 * std::abs(row[i]) + 2e-6);
    }
  }
}

// The tree over ranks continues the tree over leaves.
TEST_F(CudaOps, SquaresOfLeavesDoNotDependOnRanks) {
  constexpr int64_t kRows = 2, kQ = 80, kK = 40, kStride = kQ + 2 * kK;
  const auto qkv = random_floats(kRows * kStride, 1), bias = random_floats(kStride, 2);
  const auto device_qkv = to_device(qkv, *stream), device_bias = to_device(bias, *stream);
  const auto squares = [&](int64_t q_begin, int64_t k_begin, const LeafEnds& q, const LeafEnds& k) {
    DeviceBuffer<float> out(2 * kRows);
    sum_squares(*stream, {.qkv = device_qkv.data() + q_begin,
                          .stride = kStride,
                          .bias = device_bias.data() + q_begin,
                          .q = q,
                          .k = k,
                          .k_begin = kQ + k_begin - q_begin,
                          .out = out.data(),
                          .rows = kRows});
    return to_host(out, *stream);
  };
  const auto whole =
      squares(0, 0, {8, {10, 10, 20, 33, 40, 50, 79, 80}}, {8, {5, 10, 10, 20, 25, 30, 30, 40}});
  const auto low = squares(0, 0, {4, {10, 10, 20, 33}}, {4, {5, 10, 10, 20}}),
             high = squares(33, 20, {4, {7, 17, 46, 47}}, {4, {5, 10, 10, 20}});
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(whole[i], low[i] + high[i]);
    const size_t first = i / 2 * kStride + i % 2 * kQ, size = i % 2 ? kK : kQ;
    double expected = 0;
    for (size_t c = 0; c < size; ++c)
      expected += std::pow(static_cast<double>(qkv[first + c] + bias[i % 2 * kQ + c]), 2);
    EXPECT_NEAR(static_cast<double>(whole[i]), expected, 1e-5 * expected);
  }
}

TEST_F(CudaOps, FactorsAndCapsEqualDoubles) {
  const auto numbers = random_floats(300, 7);
  for (const float cap : {0.0f, 0.5f}) {
    const auto x = to_device(numbers, *stream);
    scale_and_cap(*stream, x.data(), x.size(), 0.3f, cap);
    const auto got = to_host(x, *stream);
    for (size_t i = 0; i < got.size(); ++i) {
      const double scaled = static_cast<double>(numbers[i] * 0.3f), at = static_cast<double>(cap);
      EXPECT_NEAR(static_cast<double>(got[i]), cap > 0 ? at * std::tanh(scaled / at) : scaled, 1e-6);
    }
  }
}

TEST_F(CudaOps, GatesEqualDoubles) {
  constexpr int64_t kRows = 3, kColumns = 70;
  const auto gate_up = random_floats(kRows * 2 * kColumns, 5), bias = random_floats(2 * kColumns, 6);
  const auto device = to_device(gate_up, *stream), device_bias = to_device(bias, *stream);
  DeviceBuffer<float> out(kRows * kColumns);
  silu_mul(*stream, device.data(), device_bias.data(), kRows, kColumns, WeightType::kFloat32, out.data());
  const auto got = to_host(out, *stream);
  gelu_tanh_mul(*stream, device.data(), device_bias.data(), kRows, kColumns, WeightType::kFloat32,
                out.data());
  const auto of_gelu = to_host(out, *stream);
  for (int64_t m = 0; m < kRows; ++m)
    for (int64_t i = 0; i < kColumns; ++i) {
      const auto value = [&](int64_t c) {
        return static_cast<double>(gate_up[static_cast<size_t>(m * 2 * kColumns + c)]) +
               static_cast<double>(bias[static_cast<size_t>(c)]);
      };
      const double expected = value(i) / (1 + std::exp(-value(i))) * value(kColumns + i);
      EXPECT_NEAR(static_cast<double>(got[static_cast<size_t>(m * kColumns + i)]), expected,
                  2e-6 * std::abs(expected) + 1e-6);
      const double x = value(i), inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
      const double gelu = 0.5 * x * (1 + std::tanh(inner)) * value(kColumns + i);
      EXPECT_NEAR(static_cast<double>(of_gelu[static_cast<size_t>(m * kColumns + i)]), gelu,
                  4e-6 * std::abs(gelu) + 1e-6);
    }
}

// More experts than lanes, the shared one with and without a gate, scores that are all alike; shares and
// sigmoids, corrected ones, groups of several sizes.
TEST_F(CudaOps, ExpertsAreChosenAsOnTheHost) {
  constexpr int32_t kRows = 3, kHidden = 40, kExperts = 45, kChosen = 4;
  auto x = random_floats(kRows * kHidden, 1);
  std::fill_n(x.begin() + kHidden, kHidden, 0.0f);
  const auto router = random_floats(kExperts * kHidden, 2), shared = random_floats(kHidden, 3),
             corrections = random_floats(kExperts, 4);
  const auto device_x = to_device(x, *stream), device_router = to_device(router, *stream),
             device_shared = to_device(shared, *stream), device_corrections = to_device(corrections, *stream);
  struct Case {
    RoutingRule rule;
    bool is_corrected = false, is_gated = true;
  };
  const std::vector<Case> cases{
      {{.renormalise = true}},
      {{.renormalise = false}},
      {{.renormalise = false, .groups = 5, .groups_chosen = 2, .factor = 1.5f}, false, false},
      {{.score = RouterScore::kSigmoid}, false, false},
      {{.score = RouterScore::kSigmoid, .groups = 9, .groups_chosen = 4, .factor = 2.5f}, true, false},
      {{.renormalise = false, .score = RouterScore::kSigmoid, .groups = 3, .groups_chosen = 1}, true},
      {{.score = RouterScore::kSigmoid, .factor = 1.5f, .added = 0.5f}, true, false},
      {{.renormalise = true}, true, false},
      {{.renormalise = false}, true}};
  for (size_t c = 0; c < cases.size(); ++c) {
    const auto& [rule, is_corrected, is_gated] = cases[c];
    DeviceBuffer<float> weights(kRows * (kExperts + 1));
    choose_experts(*stream, {.x = device_x.data(),
                             .rows = kRows,
                             .hidden = kHidden,
                             .router = device_router.data(),
                             .correction = is_corrected ? device_corrections.data() : nullptr,
                             .has_shared = true,
                             .shared_gate = is_gated ? device_shared.data() : nullptr,
                             .experts = kExperts,
                             .chosen = kChosen,
                             .is_sigmoid = rule.score == RouterScore::kSigmoid,
                             .groups = static_cast<int32_t>(rule.groups),
                             .groups_chosen = static_cast<int32_t>(rule.groups_chosen),
                             .renormalise = rule.renormalise,
                             .factor = rule.factor,
                             .added = rule.added,
                             .weights = weights.data()});
    const auto got = to_host(weights, *stream);
    for (size_t m = 0; m < kRows; ++m) {
      const auto score = [&](const std::vector<float>& row, size_t e) {
        float sum = 0;
        for (size_t i = 0; i < kHidden; ++i) sum += row[e * kHidden + i] * x[m * kHidden + i];
        return sum;
      };
      std::vector<float> scores;
      for (size_t e = 0; e < kExperts; ++e) scores.push_back(score(router, e));
      std::vector<ExpertChoice> choices(kChosen);
      choose_experts(scores, rule, is_corrected ? corrections : std::vector<float>{}, choices);
      std::vector<float> expected(kExperts + 1);
      for (const ExpertChoice& choice : choices) expected[static_cast<size_t>(choice.expert)] = choice.weight;
      expected[kExperts] = is_gated ? 1 / (1 + std::exp(-score(shared, 0))) : 1;
      for (size_t e = 0; e <= kExperts; ++e)
        EXPECT_NEAR(got[m * (kExperts + 1) + e], expected[e], 1e-5f)
            << "case " << c << ", token " << m << ", expert " << e;
    }
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

// A text in two blocks and a tree behind it: slots 18 and 19 have position 18, and slot 20 follows slot 19.
TEST_F(CudaOps, ShortConvolutionsEqualTheHosts) {
  constexpr int32_t kChannels = 150, kTaps = 3, kRows = 21, kTree = 18;
  const auto projected = random_floats(kRows * 3 * kChannels, 1), taps = random_floats(kTaps * kChannels, 2);
  const std::vector<int32_t> tables{1, 0}, tails{19, 19, 20};
  std::vector<int32_t> positions, tail_begins(kRows, kNoTail), tail_at(kRows, 0);
  for (int32_t row = 0; row < kRows; ++row) positions.push_back(row < 19 ? row : row - 1);
  tail_begins[19] = tail_begins[20] = kTree;
  tail_at[20] = 1;
  const auto device_projected = to_device(projected, *stream), device_taps = to_device(taps, *stream);
  const auto device_positions = to_device(positions, *stream), device_tables = to_device(tables, *stream),
             device_begins = to_device(tail_begins, *stream), device_at = to_device(tail_at, *stream),
             device_tails = to_device(tails, *stream),
             row_table = to_device(std::vector<int32_t>(kRows, 0), *stream);
  const DeviceBatch batch{.positions = device_positions.data(),
                          .row_table = row_table.data(),
                          .tables = device_tables.data(),
                          .tail_begins = device_begins.data(),
                          .tail_at = device_at.data(),
                          .tails = device_tails.data(),
                          .table_stride = 2};
  ThreadPool pool(1);
  for (const KvType type : {KvType::kFloat32, KvType::kBFloat16}) {
    const CpuKvStorage host({.layers = 1, .type = type, .row_layers = {true}, .row_size = kChannels}, 2);
    std::vector<AttentionRow> rows;
    std::vector<float> gates, expected(kRows * kChannels);
    for (int32_t row = 0; row < kRows; ++row) {
      const float* const b = projected.data() + row * 3 * kChannels;
      std::vector<float> product;
      for (int32_t c = 0; c < kChannels; ++c) product.push_back(b[c] * b[2 * kChannels + c]);
      store_row(host.layer(0), tables[static_cast<size_t>(row / kBlockTokens)], row % kBlockTokens, product);
      gates.insert(gates.end(), b + kChannels, b + 2 * kChannels);
      const auto at = static_cast<size_t>(row);
      rows.push_back({.block_table = tables.data(),
                      .position = positions[at],
                      .tail_begin = kTree,
                      .tail_slots = tail_begins[at] == kNoTail ? nullptr : tails.data() + tail_at[at]});
    }
    outrider::short_convolution(pool, TensorView<const float, 2>(gates.data(), {kRows, kChannels}),
                                host.layer(0), taps, rows,
                                TensorView<float, 2>(expected.data(), {kRows, kChannels}));
    KvLayer layer{.type = type, .kv_heads = 1, .head_dim = kChannels, .latent_dim = kChannels};
    const DeviceBuffer<float> kept(2 * layer.block_elements()), out(kRows * kChannels);
    layer.keys = kept.data();
    const ShortConvArguments arguments{.projected = device_projected.data(),
                                       .rows = kRows,
                                       .channels = kChannels,
                                       .taps = device_taps.data(),
                                       .count = kTaps,
                                       .out = out.data()};
    store_conv_rows(*stream, batch, layer, arguments);
    short_convolution(*stream, batch, layer, arguments);
    const auto got = to_host(out, *stream);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-5f) << i;
  }
}

}  // namespace
}  // namespace outrider::cuda
