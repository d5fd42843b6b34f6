// Expected times against arithmetic by hand, and properties that hold for all expected times.
#include "tests/gpu/expected_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "tests/gpu/published_schemes.h"

namespace outrider::gpu {
namespace {

constexpr WeightType kBf16 = WeightType::kBFloat16;

ModelConfig shape_8b() {
  return {.hidden_size = 4096,
          .num_layers = 32,
          .num_heads = 32,
          .num_kv_heads = 8,
          .head_dim = 128,
          .intermediate_size = 14336,
          .vocab_size = 128256};
}

// 28672 x 4096 weights of two bytes at 92 % of 4.8 TB/s are 53.2 us; a kernel that overlaps adds 1 us.
TEST(ExpectedTimes, OneRowIsTheTimeToReadTheWeights) {
  const ExpectedProduct one = expected_product(h200(), kBf16, 1, 28672, 4096);
  EXPECT_NEAR(one.seconds * 1e6, 54.2, 0.1);
  EXPECT_STREQ(one.bound, "memory");
  EXPECT_GT(expected_product(h100(), kBf16, 1, 28672, 4096).seconds, 1.4 * one.seconds);
}

// 15.0 GB of weights: 3.4 ms at 92 % of 4.8 TB/s, and 291 kernels.
TEST(ExpectedTimes, AStepOf8BReadsItsWeightsOnce) {
  const double on_h200 = seconds_of(expected_step(h200(), shape_8b(), {kBf16, kBf16}, 1, 128));
  EXPECT_GT(on_h200, 3.5e-3);
  EXPECT_LT(on_h200, 4.3e-3);
  EXPECT_GT(seconds_of(expected_step(h200(), shape_8b(), {kBf16, kBf16}, 1, 128, false)), on_h200 + 0.2e-3);
  EXPECT_LT(seconds_of(expected_step(h200(), shape_8b(), {kBf16, kBf16}, 8, 128)), 1.03 * on_h200);
}

// 749 MB of weights: 0.24 ms at 92 % of 3.35 TB/s, and 24 kernels.
TEST(ExpectedTimes, AStepOfAHeadReadsItsWeightsOnce) {
  ModelConfig layer = shape_8b();
  layer.num_layers = 1;
  const double step = seconds_of(expected_head_step(h100(), layer, 32000, {kBf16, kBf16}, 128));
  EXPECT_GT(step, 0.243e-3 + 20e-6);
  EXPECT_LT(step, 0.29e-3);
}

// Instructions of a warp for 16 x 64 weights, as those that run are counted in machine code for sm_90:
// products of up to 8 and of 9 to 16 rows, of matrices of few rows (blocks of a slice) and of many. Staged
// activations are a few more.
TEST(ExpectedTimes, StepsHaveTheInstructionsThatWereCounted) {
  Rates slow = h200();
  slow.instructions /= 1000;
  const auto counted = [&](int64_t rows, int64_t n, const auto& weights) {
    constexpr int64_t kColumns = 4096;
    const ExpectedProduct product = expected_product(slow, weights, rows, n, kColumns);
    EXPECT_STREQ(product.bound, "instructions");
    const double others = slow.overlapped_kernel_s + (n <= 8192 ? slow.meeting_s : 0);
    return (product.seconds - others) * slow.instructions / static_cast<double>(n / 16 * (kColumns / 64));
  };
  struct Counts {
    WeightType type = kBf16;
    double few[2], many[2];  // up to 8 rows, up to 16
  };
  for (const Counts& c :
       {Counts{kBf16, {4 * 34, 4 * 39}, {4 * 37, 4 * 37}}, Counts{WeightType::kInt8, {102, 109}, {107, 117}},
        Counts{WeightType::kFloat8, {133, 140}, {137, 147}},
        Counts{WeightType::kInt4, {103, 116}, {101, 116}}})
    for (const int i : {0, 1}) {
      EXPECT_NEAR(counted(8 * (i + 1), 4096, c.type) / c.few[i], 1, 0.08) << static_cast<int>(c.type) << i;
      EXPECT_NEAR(counted(8 * (i + 1), 28672, c.type) / c.many[i], 1, 0.08) << static_cast<int>(c.type) << i;
    }
  // Published codes, up to 8 rows: of four bits with a scale in fp16 for 64 columns and one zero or stored
  // ones, for 32 columns with one zero, Q4_K, Q6_K.
  cuda::CodeForm form{.scale = ScaleType::kFloat16, .words = 1};
  EXPECT_NEAR(counted(8, 4096, form) / 157, 1, 0.05);
  form.zero_type = ZeroType::kStored;
  form.words = 2;
  EXPECT_NEAR(counted(8, 4096, form) / 180, 1, 0.05);
  form = {.scale = ScaleType::kFloat16, .unit = 32, .words = 2};
  EXPECT_NEAR(counted(8, 4096, form) / 229, 1, 0.05);
  form = {.scale = ScaleType::kNested, .zero_type = ZeroType::kMinimum, .unit = 32, .words = 4};
  EXPECT_NEAR(counted(8, 4096, form) / 255, 1, 0.05);
  form = {.code = CodeType::kUnsigned8, .scale = ScaleType::kNested, .unit = 16, .words = 3};
  EXPECT_NEAR(counted(8, 4096, form) / 254, 1, 0.05);
  // MXFP4, and fp8 with a scale in fp32 for 64 columns.
  form = {.code = CodeType::kE2m1, .scale = ScaleType::kPowerOfTwo, .unit = 32, .words = 1};
  EXPECT_NEAR(counted(8, 4096, form) / 204, 1, 0.05);
  form = {.code = CodeType::kE4m3, .words = 2};
  EXPECT_NEAR(counted(8, 4096, form) / 167, 1, 0.05);
}

// Codes of four bits with an fp16 scale and a zero for 128 columns take two words for 64 weights, which is
// 4.5 bits a weight. A matrix of 28672 x 4096 takes 66 MB, which is 21.4 us of an H100 and the cost of a
// kernel, where one zero is for the whole matrix. Memory of an H200 would give it in 15.0 us, but a warp
// needs 180 instructions for 16 x 64 weights: 22.3 us.
TEST(ExpectedTimes, PublishedCodesAreReadWithTheirWords) {
  const cuda::CodeForm form{
      .scale = ScaleType::kFloat16, .zero_type = ZeroType::kStored, .unit = cuda::kGroupStep, .words = 2};
  cuda::CodeForm one_zero = form;
  one_zero.zero_type = ZeroType::kConstant;
  const ExpectedProduct on_h100 = expected_product(h100(), one_zero, 1, 28672, 4096),
                        on_h200 = expected_product(h200(), form, 1, 28672, 4096);
  EXPECT_NEAR(on_h100.seconds * 1e6, 22.4, 0.2);
  EXPECT_STREQ(on_h100.bound, "memory");
  EXPECT_NEAR(on_h200.seconds * 1e6, 23.3, 0.5);
  EXPECT_STREQ(on_h200.bound, "instructions");
}

// A rank of eight of DeepSeek-V3. 16 x 512 x 128 weights are 2.1 MB: 0.48 us of an H200, and a kernel. 2048
// latents of 576 are 16 splits, whose 8912 flops for each head and token keep 16 of 132 multiprocessors busy.
TEST(ExpectedTimes, LatentsWaitForTheFewBlocksThatHaveThem) {
  const LatentConfig latent{
      .q_rank = 1536, .kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128};
  const ModelConfig config{.num_heads = 16, .num_kv_heads = 1, .head_dim = 576, .latent = latent};
  const auto at = [](const std::vector<ExpectedKernel>& kernels, const char* name) {
    return std::find_if(kernels.begin(), kernels.end(),
                        [&](const ExpectedKernel& k) { return k.name == name; })
        ->seconds;
  };
  const auto one = expected_latents(h200(), config, 1, 2048),
             eight = expected_latents(h200(), config, 8, 2048);
  EXPECT_NEAR(at(one, "key_up") * 1e6, 1.48, 0.01);
  EXPECT_NEAR(at(one, "value_up") * 1e6, 1.48, 0.01);
  EXPECT_GT(at(one, "attention"), 3e-6);
  EXPECT_LT(at(one, "attention"), 8e-6);
  EXPECT_LT(at(eight, "attention"), 3 * at(one, "attention")) << "rows find idle multiprocessors";
}

// 128 x 128 numbers take 32 KB through L2 for 64 columns in bf16 and fp16, 24 KB in codes of eight bits and
// 20 KB of four, which are 340 to 530 TFLOP/s; fp16 wants twice the matrix instructions, and many scales and
// minima many others, so that Q4_K and Q6_K wait for instructions.
TEST(ExpectedTimes, PromptsInAnyFormatTakeAboutAsLongAsInBf16) {
  const auto rate = [](WeightType type) { return expected_product(h200(), type, 512, 28672, 4096).tflops; };
  const double stored = rate(kBf16);
  EXPECT_GT(stored, 300);
  EXPECT_GT(rate(WeightType::kFloat16), 0.8 * stored);
  for (const WeightType type : {WeightType::kInt8, WeightType::kFloat8, WeightType::kInt4})
    EXPECT_GT(rate(type), stored) << static_cast<int>(type);
  for (const auto& [name, scheme] : kPublished) {
    const ExpectedProduct product =
        expected_product(h200(), cuda::code_form(scheme, 4096, false).value(), 512, 28672, 4096);
    std::printf("%s: %.0f TFLOP/s, bound by %s\n", name, product.tflops, product.bound);
    EXPECT_EQ(product.form, "128 x 128") << name;
    EXPECT_GT(product.tflops, 0.85 * stored) << name;
  }
}

// A product of fewer rows never takes longer than one of more rows, narrow matrices included. For [4096,
// 4096], blocks of 64 rows keep most multiprocessors busy at 160 rows, and blocks of 128 rows at 320.
TEST(ExpectedTimes, NarrowMatricesFindTheirTile) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>(2048, 2048),
                             {3072, 3072},
                             {4096, 4096},
                             {4096, 14336},
                             {5120, 5120},
                             {6144, 4096},
                             {8192, 8192}})
    for (int64_t rows = 129; rows <= 448; rows += 1)
      EXPECT_LE(expected_product(h200(), kBf16, rows, n, k).seconds,
                1.01 * expected_product(h200(), kBf16, rows + 64, n, k).seconds)
          << "[" << n << ", " << k << "], " << rows << " rows";
  EXPECT_EQ(expected_product(h200(), kBf16, 160, 4096, 4096).form, "128 x 64");
  EXPECT_EQ(expected_product(h200(), kBf16, 320, 4096, 4096).form, "128 x 128");
}

// Products of a 70B model, over one to eight ranks. 57344 x 8192 weights are 940 MB: 212.5 us of an H200,
// which hide what 16 rows ask of L2 as well.
TEST(ExpectedTimes, SixteenRowsOf70BWaitForTheirWeightsAlone) {
  EXPECT_NEAR(expected_product(h200(), kBf16, 16, 57344, 8192).seconds * 1e6, 213.7, 0.5);
  EXPECT_EQ(expected_product(h200(), kBf16, 16, 57344, 8192).form, "128 x 16");
  EXPECT_EQ(expected_product(h200(), kBf16, 16, 28672, 4096).form, "a slice in a warp");
  for (const Rates& rates : {h100(), h200()})
    for (const int64_t ranks : {1, 2, 4, 8})
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>(10240 / ranks, 8192),
                                 {8192, 8192 / ranks},
                                 {57344 / ranks, 8192},
                                 {8192, 28672 / ranks},
                                 {128256 / ranks, 8192}})
        for (const int64_t rows : {9, 16}) {
          const ExpectedProduct one = expected_product(rates, kBf16, 1, n, k);
          const ExpectedProduct several = expected_product(rates, kBf16, rows, n, k);
          EXPECT_STREQ(several.bound, "memory") << "[" << n << ", " << k << "], " << rows << " rows";
          EXPECT_LT(several.seconds, 1.05 * one.seconds) << "[" << n << ", " << k << "], " << rows << " rows";
        }
}

// A cut of 128256 logits reads 0.5 MB six times, 0.09 us each from L2, in kernels of 1 us: 6.6 us; twelve
// kernels in turn took 22 us and more.
TEST(ExpectedTimes, ACutIsSixShortKernels) {
  const auto seconds = [](const DrawKind& kind, bool overlaps) {
    return seconds_of(expected_draw(h200(), 128256, 1, kind, overlaps));
  };
  EXPECT_NEAR((seconds({.cuts = 1}, true) - seconds({}, true)) * 1e6, 6.6, 0.1);
  EXPECT_NEAR((seconds({.cuts = 2}, false) - seconds({}, false)) * 1e6, 22.7, 0.1);
  EXPECT_LT(seconds({.has_compact_q = true}, true), 60e-6)
      << "a block that searched alone took 100 us and more";
}

// 1 MB over eight devices: 7.3 MB over a link of 360 GB/s are 20.4 us; 64 blocks need two turns for it. Eight
// blocks that loaded 4 bytes a thread needed 64 turns of 1.5 us.
TEST(ExpectedTimes, SumsOfPromptsAreBoundByTheLink) {
  EXPECT_NEAR(expected_peer_sum(h200(), int64_t{1} << 20, 8, PeerPlace::kDeviceEach) * 1e6, 20.4 + 4.8, 0.1);
  EXPECT_LT(expected_peer_sum(h200(), int64_t{16} << 10, 8, PeerPlace::kDeviceEach), 7e-6);
  EXPECT_LT(expected_peer_sum(h200(), int64_t{1} << 20, 2, PeerPlace::kOneDevice), 12e-6);
}

TEST(ExpectedTimes, WhatIsOffIsSaid) {
  EXPECT_EQ(judge(1.4, 1), "as expected");
  EXPECT_EQ(judge(2, 1), "2.0 times expected");
  EXPECT_EQ(judge(0.5, 1), "only 0.50 of expected");
}

TEST(ExpectedTimes, OtherDevicesAreScaledByTheirMultiprocessors) {
  const Rates half = rates_of({.name = "NVIDIA L40", .multiprocessors = 66});
  EXPECT_NEAR(half.matrix_flops, h100().matrix_flops / 2, 1);
  EXPECT_EQ(rates_of({.name = "NVIDIA H200", .multiprocessors = 132}).read_bytes, h200().read_bytes);
}

// 8 rows of 128256 logits are 4.1 MB, which a pass reads and writes in 1.5 us and another pass reads. The
// noise of a million tokens takes 113 million operations, 7.6 us. There are six kernels, and blocks wait for
// each other in pairs four times.
TEST(ExpectedTimes, ADepthOfATreeIsRankedInTheTimeOfAFewKernels) {
  const auto eight = expected_looks(h200(), 128256, 8, 4);
  EXPECT_NEAR(seconds_of(eight) * 1e6, 6 + 1.5 + 7.6 + 2.4, 0.2);
  EXPECT_LT(seconds_of(expected_looks(h200(), 128256, 1, 4)), 10.5e-6);
  // Over PCIe, 50 GB/s at best, the logits alone take longer.
  EXPECT_LT(4 * seconds_of(eight), 8 * 128256 * 4 / 50e9);
}

}  // namespace
}  // namespace outrider::gpu
