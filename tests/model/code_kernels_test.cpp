// Products with matrices of codes, on every instruction set, against what their schemes state.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>
#include <vector>

#include "base/quant_scheme.h"
#include "kernels/cpu/cpu_ops.h"
#include "model/weights.h"

namespace outrider {
namespace {

// Every scale type, nested scales and minima included, and groups that leaves cut anywhere: what a matrix
// holds and what it multiplies is what weight_of_code() says.
class SyntheticCodes : public CodedMatrix {
 public:
  SyntheticCodes(QuantScheme scheme, int64_t n, int64_t k, bool ordered, int64_t bits = 0)
      : CodedMatrix("synthetic", scheme, n, k, {}) {
    if (bits != 0) bits_ = bits;
    for (int64_t i = 0; ordered && i < k; ++i) order_.push_back(static_cast<int32_t>(i * 7 % groups()));
  }
  void read_codes(int64_t row, int64_t begin, std::span<uint8_t> to) const override {
    for (size_t i = 0; i < to.size(); ++i) {
      const auto mixed =
          static_cast<uint32_t>(row * 131 + (begin + static_cast<int64_t>(i)) * 29 + 7) * 2654435761u >> 24;
      to[i] = static_cast<uint8_t>(code_bits(scheme_.code) == 4      ? mixed & 15
                                   : scheme_.code == CodeType::kE4m3 ? mixed % 120
                                                                     : mixed >> (8 - bits()));
    }
  }
  GroupNumbers group(int64_t row, int64_t group) const override {
    const auto mixed = static_cast<float>((row * 31 + group * 17) % 23 + 1);
    if (scheme_.scale == ScaleType::kPowerOfTwo)
      return {.scale = power_of_code(static_cast<uint8_t>(110 + (row * 3 + group) % 9))};
    const bool nested = scheme_.scale == ScaleType::kNested;
    const int64_t outer = nested ? group / scheme_.groups_together : 0;
    const auto of_outer = static_cast<float>((row * 3 + outer * 5) % 7 + 1);
    return {.scale = nested ? of_outer * 0x1p-8f
                            : mixed * 0x1p-7f * (scheme_.scale == ScaleType::kFloat32 ? 1.2345f : 1),
            .scale_code =
                nested ? static_cast<int32_t>(mixed) - (scheme_.zero_type == ZeroType::kMinimum ? 0 : 12) : 1,
            .zero = scheme_.zero_type == ZeroType::kStored ? static_cast<int32_t>((row + group) % 13)
                                                           : scheme_.zero,
            .minimum = of_outer * 0x1p-6f,
            .minimum_code = nested ? static_cast<int32_t>((row + group) % 60) : 1};
  }
};

// Adds the product of one run of columns to a sum, in the order that matmul_codes.cpp states.
float add_run(float sum, const CodedMatrix& coded, int64_t row, int64_t group,
              const std::vector<int64_t>& columns, std::span<const float> x, int64_t first) {
  const QuantScheme& scheme = coded.scheme();
  const GroupNumbers g = coded.group(row, group);
  const bool stored = scheme.zero_type == ZeroType::kStored, minima = scheme.zero_type == ZeroType::kMinimum;
  const int32_t base = minima    ? 0
                       : !stored ? scheme.zero
                                 : std::map<CodeType, int32_t>{{CodeType::kUnsigned4, 8},
                                                               {CodeType::kUnsigned8, 128}}[scheme.code];
  float a = 0, sums[16] = {};
  for (size_t i = 0; i < columns.size(); i += 2)
    for (const size_t at : {i + 1, i}) {
      if (at >= columns.size()) continue;
      uint8_t code = 0;
      coded.read_codes(row, first + columns[at], {&code, 1});
      QuantScheme plain = scheme;
      plain.zero_type = ZeroType::kConstant;
      const float number = weight_of_code(plain, code, {.scale = 1, .zero = base});
      a = std::fma(number, to_float(to_bf16(x[static_cast<size_t>(columns[at])])), a);
    }
  for (size_t i = 0; i < columns.size(); ++i)
    sums[i % 16] += to_float(to_bf16(x[static_cast<size_t>(columns[i])]));
  for (size_t half = 8; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  if (stored) a = std::fma(-static_cast<float>(g.zero - base), sums[0], a);
  sum = std::fma(a, g.scale * static_cast<float>(g.scale_code), sum);
  return minima ? std::fma(-g.minimum * static_cast<float>(g.minimum_code), sums[0], sum) : sum;
}

// One output: columns [first, first + x.size()) of a row, leaf by leaf, runs in the order of their groups.
float stated_product(const CodedMatrix& coded, int64_t row, int64_t first, const std::vector<int64_t>& leaves,
                     std::span<const float> x) {
  std::vector<float> sums;
  int64_t begin = 0;
  for (const int64_t end : leaves) {
    std::map<int64_t, std::vector<int64_t>> runs;
    for (; begin < end; ++begin) runs[coded.group_of(first + begin)].push_back(begin);
    sums.push_back(0);
    for (const auto& [group, columns] : runs)
      sums.back() = add_run(sums.back(), coded, row, group, columns, x, first);
  }
  for (; sums.size() > 1; sums.resize(sums.size() / 2))
    for (size_t i = 0; i < sums.size() / 2; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  return sums.front();
}

std::vector<QuantScheme> schemes_of_every_kind() {
  std::vector<QuantScheme> schemes;
  for (const CodeType code : {CodeType::kUnsigned4, CodeType::kUnsigned8, CodeType::kE4m3})
    for (const ZeroType zero : {ZeroType::kConstant, ZeroType::kStored})
      for (const ScaleType scale :
           {ScaleType::kFloat32, ScaleType::kBFloat16, ScaleType::kFloat16, ScaleType::kNested})
        schemes.push_back({.code = code,
                           .zero_type = zero,
                           .scale = scale,
                           .zero = zero == ZeroType::kConstant && code != CodeType::kE4m3 ? 5 : 0,
                           .group = 24,
                           .groups_together = scale == ScaleType::kNested ? 4 : 1});
  schemes.push_back(
      {.zero_type = ZeroType::kMinimum, .scale = ScaleType::kNested, .group = 32, .groups_together = 2});
  for (const CodeType code : {CodeType::kUnsigned4, CodeType::kUnsigned8})
    schemes.push_back(
        {.code = code, .zero_type = ZeroType::kMinimum, .scale = ScaleType::kFloat16, .group = 32});
  schemes.push_back({.code = CodeType::kUnsigned8,
                     .zero_type = ZeroType::kMinimum,
                     .scale = ScaleType::kNested,
                     .group = 16,
                     .groups_together = 4});
  schemes.push_back({.code = CodeType::kE2m1, .scale = ScaleType::kFloat16, .group = 16});
  schemes.push_back({.code = CodeType::kE2m1, .scale = ScaleType::kPowerOfTwo, .group = 32});
  schemes.push_back({.code = CodeType::kE4m3, .group = 7});
  return schemes;
}

TEST(CodeKernels, ComputeWhatIsStatedOnEveryInstructionSetWithFma) {
  constexpr int64_t kRows = 37, kColumns = 200, kInputs = 17;
  const std::vector<std::vector<int64_t>> cuts{{kColumns}, {20, 40, 60, 60, 130, 142, 198, kColumns}};
  ThreadPool pool(2);
  MatmulScratch scratch;
  Buffer<float> x(kInputs * 208);
  for (int64_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 37 % 101) - 50) * 0.01f;
  for (const QuantScheme& scheme : schemes_of_every_kind())
    for (const auto& leaves : cuts)
      for (const bool ordered : {false, true}) {
        if (ordered && scheme.scale == ScaleType::kNested) continue;  // no format has both
        const auto coded = std::make_shared<SyntheticCodes>(scheme, kRows + 3, kColumns + 40, ordered);
        const TensorInfo nothing;
        const TensorPart part{
            .tensor = &nothing, .rows = {3, 3 + kRows}, .columns = {40, 40 + kColumns}, .coded = coded};
        const MatrixSource source{{part}, leaves};
        const PackedMatrix codes = pack_matrix(source, WeightType::kCodes, pool);
        std::vector<float> packed(kColumns), stored(kColumns);
        for (int64_t row = 0; row < kRows; ++row) {
          codes.copy_row(row, packed);
          coded->read_weights(row + 3, 40, stored);
          ASSERT_EQ(packed, stored) << row;
        }
        EXPECT_LT(codes.bytes(), kRows * kColumns * 3);
        std::vector<float> expected;
        for (int64_t m = 0; m < kInputs; ++m)
          for (int64_t row = 0; row < kRows; ++row)
            expected.push_back(stated_product(*coded, row + 3, 40, leaves, {x.data() + m * 208, kColumns}));
        for (const std::string& isa : available_isas()) {
          ASSERT_TRUE(pin_isa(isa).ok());
          for (const int64_t m : {1, 3, 6, 17}) {
            Buffer<float> out(m * 48);
            const TensorView<const float, 2> in(x.data(), {m, kColumns}, {208, 1});
            matmul(pool, scratch, in, codes, TensorView<float, 2>(out.data(), {m, kRows}, {48, 1}));
            for (int64_t i = 0; i < m * kRows; ++i) {
              const float got = out[i / kRows * 48 + i % kRows], want = expected[static_cast<size_t>(i)];
              const float off = isa == "scalar" ? 1e-4f * (1 + std::abs(want)) : 0;  // it has no fma
              ASSERT_LE(std::abs(got - want), off)
                  << isa << " rows " << m << " output " << i << ": " << got << " " << want << " code "
                  << static_cast<int>(scheme.code) << " zero " << static_cast<int>(scheme.zero_type)
                  << " scale " << static_cast<int>(scheme.scale) << " leaves " << leaves.size() << " ordered "
                  << ordered;
            }
          }
        }
      }
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
}

// The same for inputs quantized to int8. A run has at most 32 columns of a group, and its inputs have a scale
// of their own.
float add_int8_run(float sum, const SyntheticCodes& coded, int64_t row, int64_t group,
                   std::span<const int64_t> columns, std::span<const float> x, int64_t first) {
  float largest = 0;
  for (const int64_t c : columns) largest = std::max(largest, std::abs(x[static_cast<size_t>(c)]));
  const float unit = largest > 0 ? 127 / largest : 0, scale = largest / 127;
  const QuantScheme& scheme = coded.scheme();
  const GroupNumbers g = coded.group(row, group);
  int32_t dot = 0, integers = 0;
  for (const int64_t c : columns) {
    uint8_t code = 0;
    coded.read_codes(row, first + c, {&code, 1});
    const auto q = static_cast<int32_t>(std::nearbyint(x[static_cast<size_t>(c)] * unit));
    dot += code * q;
    integers += q;
  }
  const bool has_minima = scheme.zero_type == ZeroType::kMinimum;
  if (!has_minima) dot -= g.zero * integers;
  const float weight_scale = g.scale * static_cast<float>(g.scale_code);
  sum = std::fma(static_cast<float>(dot), weight_scale * scale, sum);
  if (has_minima)
    sum = std::fma(-(g.minimum * static_cast<float>(g.minimum_code)), scale * static_cast<float>(integers),
                   sum);
  return sum;
}

// The columns of each leaf by their group.
using LeafGroups = std::vector<std::map<int64_t, std::vector<int64_t>>>;
LeafGroups groups_of_leaves(const CodedMatrix& coded, int64_t first, const std::vector<int64_t>& leaves) {
  LeafGroups groups;
  int64_t begin = 0;
  for (const int64_t end : leaves) {
    groups.emplace_back();
    for (; begin < end; ++begin) groups.back()[coded.group_of(first + begin)].push_back(begin);
  }
  return groups;
}

float stated_int8_product(const SyntheticCodes& coded, int64_t row, int64_t first, const LeafGroups& leaves,
                          std::span<const float> x) {
  std::vector<float> sums;
  for (const auto& groups : leaves) {
    sums.push_back(0);
    for (const auto& [group, columns] : groups)
      for (size_t i = 0; i < columns.size(); i += kActivationGroup)
        sums.back() = add_int8_run(
            sums.back(), coded, row, group,
            std::span(columns).subspan(i, std::min<size_t>(kActivationGroup, columns.size() - i)), x, first);
  }
  for (; sums.size() > 1; sums.resize(sums.size() / 2))
    for (size_t i = 0; i < sums.size() / 2; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  return sums.front();
}

TEST(CodeKernels, WithInt8InputsComputeWhatIsStatedOnEveryInstructionSetWithFma) {
  constexpr int64_t kRows = 37, kColumns = 200, kInputs = 17, kMostInputs = 64;
  std::vector<int64_t> batches(kInputs);
  std::iota(batches.begin(), batches.end(), 1);
  batches.insert(batches.end(), {32, kMostInputs});
  const std::vector<std::vector<int64_t>> cuts{{kColumns}, {20, 40, 60, 60, 130, 142, 198, kColumns}};
  ThreadPool pool(2);
  MatmulScratch scratch;
  Buffer<float> x(kMostInputs * 208);
  for (int64_t i = 0; i < x.size(); ++i)  // inputs repeat
    x[i] = static_cast<float>((i % (kInputs * 208) * 37 % 101) - 50) * 0.01f;
  std::vector<std::pair<QuantScheme, int64_t>> schemes;  // and the bits that hold a code
  for (QuantScheme scheme : schemes_of_every_kind()) {
    if (!takes_int8_inputs(scheme.code)) continue;
    const int64_t type_bits = code_bits(scheme.code);
    for (const int64_t bits : {type_bits, int64_t{5}, int64_t{6}}) {
      if (bits > type_bits) continue;
      schemes.emplace_back(scheme, bits);
      if (scheme.scale == ScaleType::kNested) continue;
      QuantScheme longer = scheme;
      longer.group = 100;  // several runs
      schemes.emplace_back(longer, bits);
    }
  }
  // Q5_0 and Q6_K: the zero is the middle of all codes
  schemes.emplace_back(
      QuantScheme{.code = CodeType::kUnsigned8, .scale = ScaleType::kFloat16, .zero = 16, .group = 32}, 5);
  schemes.emplace_back(QuantScheme{.code = CodeType::kUnsigned8,
                                   .scale = ScaleType::kNested,
                                   .zero = 32,
                                   .group = 16,
                                   .groups_together = 4},
                       6);
  for (const auto& [scheme, bits] : schemes)
    for (const auto& leaves : cuts)
      for (const bool ordered : {false, true}) {
        if (ordered && scheme.scale == ScaleType::kNested) continue;  // no format has both
        const auto coded = std::make_shared<SyntheticCodes>(scheme, kRows + 3, kColumns + 40, ordered, bits);
        const TensorInfo nothing;
        const TensorPart part{
            .tensor = &nothing, .rows = {3, 3 + kRows}, .columns = {40, 40 + kColumns}, .coded = coded};
        const PackedMatrix codes =
            pack_matrix({{part}, leaves}, WeightType::kCodes, pool, ActivationFormat::kInt8);
        ASSERT_EQ(codes.codes()->bits, bits);
        std::vector<float> packed(kColumns), stored(kColumns), expected;
        for (int64_t row = 0; row < kRows; ++row) {
          codes.copy_row(row, packed);
          coded->read_weights(row + 3, 40, stored);
          ASSERT_EQ(packed, stored) << row;
        }
        const LeafGroups groups = groups_of_leaves(*coded, 40, leaves);
        for (int64_t m = 0; m < kInputs; ++m)
          for (int64_t row = 0; row < kRows; ++row)
            expected.push_back(
                stated_int8_product(*coded, row + 3, 40, groups, {x.data() + m * 208, kColumns}));
        for (const std::string& isa : available_isas()) {
          ASSERT_TRUE(pin_isa(isa).ok());
          for (const int64_t m : batches) {
            const bool is_few = m == 1 || m == 3 || m == 6 || m == 17;
            if ((ordered || leaves.size() > 1) && !is_few) continue;
            Buffer<float> out(m * 48);
            const TensorView<const float, 2> in(x.data(), {m, kColumns}, {208, 1});
            matmul(pool, scratch, in, codes, TensorView<float, 2>(out.data(), {m, kRows}, {48, 1}));
            for (int64_t i = 0; i < m * kRows; ++i) {
              const float got = out[i / kRows * 48 + i % kRows],
                          want = expected[static_cast<size_t>(i % (kInputs * kRows))];
              const float off = isa == "scalar" ? 1e-4f * (1 + std::abs(want)) : 0;  // it has no fma
              ASSERT_LE(std::abs(got - want), off)
                  << isa << " rows " << m << " output " << i << ": " << got << " " << want << " code "
                  << static_cast<int>(scheme.code) << " zero " << static_cast<int>(scheme.zero_type)
                  << " scale " << static_cast<int>(scheme.scale) << " bits " << bits << " group "
                  << scheme.group << " leaves " << leaves.size() << " ordered " << ordered;
            }
          }
        }
      }
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
}

// The largest sums of a group: every code is the least or the greatest, every input the same or its opposite.
TEST(CodeKernels, SumsOfExtremeCodesAndInt8InputsDoNotOverflow) {
  class Extremes final : public SyntheticCodes {
   public:
    using SyntheticCodes::SyntheticCodes;
    void read_codes(int64_t row, int64_t, std::span<uint8_t> to) const override {
      std::fill(to.begin(), to.end(), static_cast<uint8_t>(row % 2 == 0 ? 0 : (1 << bits_) - 1));
    }
  };
  constexpr int64_t kRows = 16, kColumns = 64, kInputs = 9;
  ThreadPool pool(1);
  MatmulScratch scratch;
  Buffer<float> x(kInputs * kColumns), out(kInputs * kRows);
  for (int64_t i = 0; i < x.size(); ++i) x[i] = i / kColumns % 2 == 0 ? -1 : 1;
  for (const int64_t bits : {4, 5, 6, 8})
    for (const int64_t group : {16, 32})
      for (const ZeroType zero_type : {ZeroType::kConstant, ZeroType::kMinimum, ZeroType::kStored}) {
        const QuantScheme scheme{.code = bits == 4 ? CodeType::kUnsigned4 : CodeType::kUnsigned8,
                                 .zero_type = zero_type,
                                 .scale = ScaleType::kFloat16,
                                 .zero = zero_type == ZeroType::kConstant ? 1 << (bits - 1) : 0,
                                 .group = group};
        const auto coded = std::make_shared<Extremes>(scheme, kRows, kColumns, false, bits);
        const TensorInfo nothing;
        const TensorPart part{
            .tensor = &nothing, .rows = {0, kRows}, .columns = {0, kColumns}, .coded = coded};
        const PackedMatrix codes =
            pack_matrix({{part}, {kColumns}}, WeightType::kCodes, pool, ActivationFormat::kInt8);
        const LeafGroups groups = groups_of_leaves(*coded, 0, {kColumns});
        for (const std::string& isa : available_isas()) {
          ASSERT_TRUE(pin_isa(isa).ok());
          for (int64_t m = 1; m <= kInputs; ++m) {
            matmul(pool, scratch, TensorView<const float, 2>(x.data(), {m, kColumns}, {kColumns, 1}), codes,
                   TensorView<float, 2>(out.data(), {m, kRows}, {kRows, 1}));
            for (int64_t i = 0; i < m * kRows; ++i) {
              const float want = stated_int8_product(*coded, i % kRows, 0, groups,
                                                     {x.data() + i / kRows * kColumns, kColumns});
              const float off = isa == "scalar" ? 1e-5f * std::abs(want) : 0;  // it has no fma
              ASSERT_LE(std::abs(out[i] - want), off)
                  << isa << " rows " << m << " output " << i << " bits " << bits << " group " << group;
            }
          }
        }
      }
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
}

// Every code of 8 bits, alone: outputs are the numbers themselves; and a NaN shows in every product of its
// row.
TEST(CodeKernels, EveryFloatOfEightBitsIsItsNumber) {
  class AllCodes final : public CodedMatrix {
   public:
    AllCodes() : CodedMatrix("all", {.code = CodeType::kE4m3, .group = 1}, 256, 1, {}) {}
    void read_codes(int64_t row, int64_t, std::span<uint8_t> to) const override {
      to[0] = static_cast<uint8_t>(row);
    }
    GroupNumbers group(int64_t, int64_t) const override { return {.scale = 1}; }
  };
  const TensorInfo nothing;
  const TensorPart part{
      .tensor = &nothing, .rows = {0, 256}, .columns = {0, 1}, .coded = std::make_shared<AllCodes>()};
  ThreadPool pool(1);
  MatmulScratch scratch;
  const PackedMatrix codes = pack_matrix({{part}, {1}}, WeightType::kCodes, pool);
  for (const std::string& isa : available_isas()) {
    ASSERT_TRUE(pin_isa(isa).ok());
    Buffer<float> x(16), out(256);
    x[0] = 1;
    matmul(pool, scratch, TensorView<const float, 2>(x.data(), {1, 1}, {16, 1}), codes,
           TensorView<float, 2>(out.data(), {1, 256}, {256, 1}));
    for (int64_t code = 0; code < 256; ++code) {
      const float number = e4m3_to_float(static_cast<uint8_t>(code));
      if (std::isnan(number))
        EXPECT_TRUE(std::isnan(out[code])) << isa << " " << code;
      else
        EXPECT_EQ(out[code], number) << isa << " " << code;
    }
  }
  ASSERT_TRUE(pin_isa(available_isas().front()).ok());
}

TEST(QuantScheme, HalvesComeBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = half_to_float(half);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(half_to_float(half_of(value))));
    } else {
      ASSERT_EQ(half_of(value), half);
    }
  }
}

}  // namespace
}  // namespace outrider
