// Matrices of random codes, as published schemes have them, in device memory: for tests.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "model/cuda/code_plan.h"
#include "tests/kernels/cuda_test_support.h"

namespace outrider::cuda {

// Any codes and numbers, as some scheme has them.
class RandomCodes final : public CodedMatrix {
 public:
  RandomCodes(const QuantScheme& scheme, int64_t n, int64_t k, bool has_order, uint32_t seed)
      : CodedMatrix("random", scheme, n, k, {}), codes_(static_cast<size_t>(n * k)) {
    std::mt19937 random(seed);
    for (uint8_t& code : codes_) {
      code = static_cast<uint8_t>(random() % (code_bits(scheme.code) == 4 ? 16 : 256));
      if (scheme.scale == ScaleType::kNested && scheme.code == CodeType::kUnsigned8) code %= 64;
      if (scheme.code == CodeType::kE4m3 && (code & 127) == 127) code = 1;
    }
    if (has_order) {
      for (int64_t i = 0; i < k; ++i) order_.push_back(static_cast<int32_t>(i / scheme.group));
      std::shuffle(order_.begin(), order_.end(), random);
    }
    numbers_.resize(static_cast<size_t>(n * groups_));
    std::vector<GroupNumbers> outer(numbers_.size());
    const auto half = [&](float value) { return half_to_float(half_of(value)); };
    const auto fraction = [&] { return 0.25f + static_cast<float>(random() % 1000) / 1000; };
    for (size_t i = 0; i < numbers_.size(); ++i) {
      GroupNumbers& g = numbers_[i];
      g.zero = scheme.zero;
      g.scale = fraction() / 8;
      if (scheme.scale == ScaleType::kFloat16 || scheme.scale == ScaleType::kNested) g.scale = half(g.scale);
      if (scheme.scale == ScaleType::kBFloat16) g.scale = to_float(to_bf16(g.scale));
      if (scheme.scale == ScaleType::kPowerOfTwo)
        g.scale = power_of_code(static_cast<uint8_t>(120 + random() % 10));
      if (scheme.zero_type == ZeroType::kStored)
        g.zero = static_cast<int32_t>(random() % (code_bits(scheme.code) == 4 ? 16 : 256));
      if (scheme.zero_type == ZeroType::kMinimum) {
        g.minimum = half(fraction() / 4);
        g.minimum_code = static_cast<int32_t>(random() % 64);
      }
      if (scheme.scale != ScaleType::kNested) continue;
      g.scale_code = scheme.zero_type == ZeroType::kMinimum ? static_cast<int32_t>(random() % 64)
                                                            : static_cast<int32_t>(random() % 256) - 128;
      const size_t together =
          i - i % static_cast<size_t>(groups_) % static_cast<size_t>(scheme.groups_together);
      g.scale = numbers_[together].scale;
      g.minimum = numbers_[together].minimum;
    }
  }
  void read_codes(int64_t row, int64_t begin, std::span<uint8_t> to) const override {
    std::copy_n(codes_.begin() + row * k_ + begin, to.size(), to.begin());
  }
  GroupNumbers group(int64_t row, int64_t group) const override {
    return numbers_[static_cast<size_t>(row * groups_ + group)];
  }

 private:
  std::vector<uint8_t> codes_;
  std::vector<GroupNumbers> numbers_;
};

struct CodeCase {
  std::string name;
  QuantScheme scheme;
  int64_t k = 256;
  bool has_order = false;
};

inline std::vector<CodeCase> code_cases() {
  using C = CodeType;
  using S = ScaleType;
  using Z = ZeroType;
  const QuantScheme q4_k{.zero_type = Z::kMinimum, .scale = S::kNested, .group = 32, .groups_together = 8};
  const QuantScheme q6_k{
      .code = C::kUnsigned8, .scale = S::kNested, .zero = 32, .group = 16, .groups_together = 16};
  return {
      {"gptq 4 bit", {.code = C::kUnsigned4, .zero_type = Z::kStored, .scale = S::kFloat16, .group = 128}},
      {"gptq 4 bit in groups of 32",
       {.code = C::kUnsigned4, .zero_type = Z::kStored, .scale = S::kFloat16, .group = 32}},
      {"act-order",
       {.code = C::kUnsigned4, .zero_type = Z::kStored, .scale = S::kFloat16, .group = 64},
       256,
       true},
      {"gptq 8 bit",
       {.code = C::kUnsigned8, .zero_type = Z::kStored, .scale = S::kFloat16, .group = 300},
       300},
      {"gptq 8 bit in groups of 32",
       {.code = C::kUnsigned8, .zero_type = Z::kStored, .scale = S::kBFloat16, .group = 32}},
      {"compressed 4 bit", {.code = C::kUnsigned4, .scale = S::kBFloat16, .zero = 8, .group = 128}, 384},
      {"compressed 4 bit in groups of 40",
       {.code = C::kUnsigned4, .scale = S::kBFloat16, .zero = 8, .group = 40}},
      {"fp32 scales and zeros",
       {.code = C::kUnsigned4, .zero_type = Z::kStored, .scale = S::kFloat32, .group = 64}},
      {"integers", {.code = C::kUnsigned8, .scale = S::kBFloat16, .zero = 128, .group = 256}},
      {"Q8_0", {.code = C::kUnsigned8, .scale = S::kFloat16, .zero = 128, .group = 32}},
      {"Q4_0", {.code = C::kUnsigned4, .scale = S::kFloat16, .zero = 8, .group = 32}},
      {"Q4_K", q4_k, 512},
      {"Q6_K", q6_k, 512},
      {"fp8 blocks", {.code = C::kE4m3, .scale = S::kFloat32, .group = 128}},
      {"fp8 blocks of 40", {.code = C::kE4m3, .scale = S::kFloat32, .group = 40}},
      {"fp8 channels", {.code = C::kE4m3, .scale = S::kBFloat16, .group = 256}},
      {"MXFP4", {.code = C::kE2m1, .scale = S::kPowerOfTwo, .group = 32}},
  };
}

// Rows of pieces in device memory.
inline DeviceMatrix loaded(const CodePlan& plan, std::span<const CodedPiece> pieces, int64_t n,
                           StreamView stream) {
  DeviceMatrix matrix(plan.form, n, plan.slices, plan.columns, stream);
  std::vector<std::byte> codes(static_cast<size_t>(n * staged_code_bytes(plan)));
  std::vector<uint16_t> words(static_cast<size_t>(n * staged_words(plan)));
  for (int64_t row = 0; row < n; ++row)
    stage_codes(plan, pieces, row, codes.data() + row * staged_code_bytes(plan),
                words.data() + row * staged_words(plan));
  const auto device_codes = to_device(codes, stream);
  const auto device_words = to_device(words, stream);
  pack_rows(stream, matrix.view(), 0, n, device_codes.data());
  pack_words(stream, matrix.view(), 0, n, device_words.data());
  stream.synchronize();
  return matrix;
}

}  // namespace outrider::cuda
