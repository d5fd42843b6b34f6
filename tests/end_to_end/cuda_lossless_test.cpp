// The promise on CUDA: with every model on a device, speculation of any length changes no byte, nor does the
// number of target ranks (threads that share the device). Golden models in every format of weights.
#include <gtest/gtest.h>

#include <random>

#include "tests/support/test_cluster.h"
#include "transformer/model/cuda_backend.h"

namespace outrider {
namespace {

using testing::ClusterOptions;
using testing::DrafterKind;
using testing::Finished;
using testing::TestCluster;

constexpr Device kDevice{.kind = Device::Kind::kCuda};

// The emulation takes its time.
bool emulated() { return describe_cuda().front() == "emulation"; }

std::vector<Request> some_requests(int gamma) {
  std::mt19937 random(3);
  std::vector<Request> requests;
  for (Rule rule : {Rule::kGreedy, Rule::kInvariant, Rule::kNaive})
    for (int length : {1, 9, 17}) {
      Request request{.max_tokens = emulated() ? 8 : 40};
      for (int i = 0; i < length; ++i) request.prompt.emplace_back(static_cast<int32_t>(random() % 6 + 10));
      request.sampling.rule = rule;
      request.sampling.temperature = rule == Rule::kGreedy ? 0.0f : 1.2f;
      request.sampling.seed = Seed{100 + requests.size()};
      request.gamma = parse_gamma_policy("fixed:gamma=" + std::to_string(gamma)).value();
      requests.push_back(std::move(request));
    }
  return requests;
}

std::vector<std::vector<TokenId>> texts(std::vector<Finished> finished) {
  std::vector<std::vector<TokenId>> ids;
  for (Finished& f : finished) {
    EXPECT_TRUE(f.error.ok()) << f.error.message();
    ids.push_back(std::move(f.ids));
  }
  return ids;
}

struct Weights {
  std::string name;   // of the case
  std::string model;  // golden
  WeightFormat format = WeightFormat::kAuto;
};

class CudaLossless : public ::testing::TestWithParam<Weights> {
 protected:
  void SetUp() override {
    const auto count = cuda_device_count();
    if (!count.ok()) GTEST_SKIP() << count.status().message();
  }
};

TEST_P(CudaLossless, SpeculationOfAnyLengthEqualsPlainDecoding) {
  TestCluster plain({.target = GetParam().model, .device = kDevice, .weight_format = GetParam().format});
  const auto expected = texts(plain.run(some_requests(0)));
  // The copy of the bf16 fixture is exact: every draft is accepted, and blocks end at their full length.
  const testing::PerturbedModel draft(GetParam().model, 0.2f);
  TestCluster cluster({.target = GetParam().model,
                       .draft = draft.path(),
                       .drafter = DrafterKind::kModel,
                       .max_num_seqs = 2,
                       .device = kDevice,
                       .weight_format = GetParam().format});
  for (int gamma : emulated() ? std::vector{1, 4, 8} : std::vector{1, 2, 3, 4, 5, 6, 7, 8})
    EXPECT_EQ(expected, texts(cluster.run(some_requests(gamma)))) << "gamma " << gamma;
  EXPECT_GT(cluster.totals().rounds.accepted, 20);
}

TEST_P(CudaLossless, RanksThatShareTheDeviceGiveTheSameText) {
  TestCluster one({.target = GetParam().model, .device = kDevice, .weight_format = GetParam().format});
  const auto expected = texts(one.run(some_requests(0)));
  for (int tp_size : emulated() ? std::vector{4} : std::vector{2, 4}) {
    TestCluster cluster({.target = GetParam().model,
                         .drafter = DrafterKind::kNgram,
                         .tp_size = tp_size,
                         .device = kDevice,
                         .weight_format = GetParam().format});
    EXPECT_EQ(expected, texts(cluster.run(some_requests(3)))) << "tensor-parallel size " << tp_size;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaLossless,
                         ::testing::Values(Weights{"fp32", "qwen3"}, Weights{"bf16", "qwen3-bf16"},
                                           Weights{"int8", "qwen3-bf16", WeightFormat::kInt8},
                                           Weights{"fp8", "qwen3-bf16", WeightFormat::kFloat8}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace outrider
