// Kernel costs that the emulation can count: fetched bytes and launches.
#include <gtest/gtest.h>

#include "model/cuda/model.h"
#include "tests/emulation/copies.h"
#include "tests/kernels/cuda_test_support.h"
#include "tests/model/model_suite.h"

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

// A layer of a pass on one rank: norm, q with k and v, their rotation, attention and the meeting of its
// splits, o, norm, gates with ups, down.
TEST_F(CudaLaunches, ALayerIsNineKernels) {
  const auto single = make_single_collectives();
  const auto kernels_of = [&](int64_t layers, WeightFormat format) {
    const ModelConfig config{.hidden_size = 64,
                             .num_layers = layers,
                             .num_heads = 4,
                             .num_kv_heads = 2,
                             .head_dim = 16,
                             .intermediate_size = 96,
                             .vocab_size = 64,
                             .max_position_embeddings = 64};
    const auto model =
        CudaModel::of_noise(
            config, {.device = testing::suite_device(), .kv_tokens = 64, .weight_format = format}, *single)
            .value();
    const TokenId id(1);
    const BatchSlice slice{model->kv().create(), {&id, 1}, 1};
    const uint64_t before = emulation::kernels_run();
    EXPECT_TRUE(model->forward({&slice, 1}).ok());
    return emulation::kernels_run() - before;
  };
  for (const WeightFormat format : {WeightFormat::kBFloat16, WeightFormat::kInt4})
    EXPECT_EQ(kernels_of(3, format) - kernels_of(2, format), 9);
}

}  // namespace
}  // namespace outrider::cuda
