#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gguf_quantize.cpp"
#include <hwy/foreach_target.h>  // first: it re-includes this file for every instruction set

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/bfloat16.h"
#include "base/half.h"
#include "base/log.h"
#include "kernels/cpu/gguf_quantize.h"

HWY_BEFORE_NAMESPACE();
namespace outrider {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::CappedTag<float, 8>;
using V = hn::Vec<F>;
constexpr int kLanes = hn::MaxLanes(F());

// Eight numbers side by side, in as many vectors as the instruction set needs. Sums are taken in eight lanes
// and then in one order, without fused multiply-add, so that no instruction set changes a bit.
constexpr int kEight = 8, kVectors = kEight / kLanes;
struct Sum {
  V lanes[kVectors];
  Sum() {
    for (V& v : lanes) v = hn::Zero(F());
  }
  float total() const {
    HWY_ALIGN float l[kEight];
    for (int i = 0; i < kVectors; ++i) hn::Store(lanes[i], F(), l + i * kLanes);
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
  }
};

HWY_INLINE V product(V a, V b) { return hn::Mul(a, b); }
HWY_INLINE void add(Sum& sum, int lane, V value) { sum.lanes[lane] = hn::Add(sum.lanes[lane], value); }

// The nearest whole number, ties to even, within bounds.
HWY_INLINE V codes_of(V scaled, float low, float high) {
  const V magic = hn::Set(F(), 0x1.8p23f);
  const V inside = hn::Min(hn::Max(scaled, hn::Set(F(), low)), hn::Set(F(), high));
  return hn::Sub(hn::Add(inside, magic), magic);
}
HWY_INLINE float code_of(float scaled, float low, float high) {
  const float inside = scaled < low ? low : scaled > high ? high : scaled;
  return (inside + 0x1.8p23f) - 0x1.8p23f;
}

// 0 for a scale that is so small that every code is 0.
HWY_INLINE float inverse_of(float scale) { return std::abs(scale) < 0x1p-100f ? 0 : 1 / scale; }

// kSize numbers that share a scale, and how much the error of each counts: that of large ones more, and in
// proportion to its importance, where that is known.
template <int kSize>
struct Group {
  HWY_ALIGN float numbers[kSize];
  HWY_ALIGN float weights[kSize];
  float low = 0, high = 0;
  float squares = 0, sum = 0, weight = 0;  // weighted, of the numbers; and the sum of the weights

  explicit Group(const float* from, const float* importance = nullptr) {
    std::memcpy(numbers, from, sizeof numbers);
    Sum plain;
    for (int i = 0; i < kSize; i += kLanes) {
      const V x = hn::Load(F(), numbers + i);
      add(plain, i / kLanes % kVectors, product(x, x));
    }
    const V usual = hn::Set(F(), std::sqrt(plain.total() / static_cast<float>(kSize)));
    weigh(usual, importance);
    // Where nothing counts, every scale would be as good as any other.
    if (importance && !(squares > 0)) weigh(usual, nullptr);
    low = *std::min_element(numbers, numbers + kSize);
    high = *std::max_element(numbers, numbers + kSize);
  }

 private:
  void weigh(V usual, const float* importance) {
    Sum s, x1, x2;
    for (int i = 0; i < kSize; i += kLanes) {
      const int lane = i / kLanes % kVectors;
      const V x = hn::Load(F(), numbers + i);
      V w = hn::Add(usual, hn::Abs(x));
      if (importance)
        w = product(hn::LoadU(F(), importance + i), hn::Sqrt(hn::Add(product(usual, usual), product(x, x))));
      hn::Store(w, F(), weights + i);
      add(s, lane, w);
      add(x1, lane, product(w, x));
      add(x2, lane, product(product(w, x), x));
    }
    weight = s.total();
    sum = x1.total();
    squares = x2.total();
  }
};

// number ~ scale * code + addend, codes 0 to kTop. The addend is a minimum's negative, so never above 0.
struct Affine {
  float scale = 0, addend = 0;
};
constexpr int kGroup = 32;
using AffineGroup = Group<kGroup>;

template <int kTop>
HWY_INLINE float error_of(const AffineGroup& g, Affine a) {
  const V inverse = hn::Set(F(), inverse_of(a.scale)), scale = hn::Set(F(), a.scale),
          addend = hn::Set(F(), a.addend);
  Sum errors;
  for (int i = 0; i < kGroup; i += kLanes) {
    const V x = hn::Load(F(), g.numbers + i);
    const V code = codes_of(product(hn::Sub(x, addend), inverse), 0, kTop);
    const V error = hn::Sub(hn::Add(product(scale, code), addend), x);
    add(errors, i / kLanes % kVectors, product(product(error, error), hn::Load(F(), g.weights + i)));
  }
  return errors.total();
}

// The scale and addend that fit the codes of `guess` best, by weighted least squares, and the error that they
// leave.
struct Fit {
  Affine numbers;
  float error = 0;
};
template <int kTop>
HWY_INLINE Fit refit(const AffineGroup& g, Affine guess) {
  const V inverse = hn::Set(F(), inverse_of(guess.scale)), addend = hn::Set(F(), guess.addend);
  Sum c1, c2, cx;
  for (int i = 0; i < kGroup; i += kLanes) {
    const int lane = i / kLanes % kVectors;
    const V x = hn::Load(F(), g.numbers + i);
    const V code = codes_of(product(hn::Sub(x, addend), inverse), 0, kTop);
    const V weighted = product(hn::Load(F(), g.weights + i), code);
    add(c1, lane, weighted);
    add(c2, lane, product(weighted, code));
    add(cx, lane, product(weighted, x));
  }
  const float codes = c1.total(), squares = c2.total(), products = cx.total();
  const float determinant = g.weight * squares - codes * codes;
  Affine fit;
  if (determinant > 0)
    fit = {(g.weight * products - codes * g.sum) / determinant,
           (squares * g.sum - codes * products) / determinant};
  if (fit.addend > 0) fit = {products / squares, 0};
  if (!(fit.scale > 0)) return {guess, g.squares};
  return {fit, g.squares - fit.scale * products - fit.addend * g.sum};
}

template <int kTop>
HWY_INLINE Affine search_affine(const AffineGroup& g) {
  const float low = std::min(g.low, 0.0f), range = g.high - low;
  if (!(range > 0)) return {0, low};
  // Ranges somewhat wider and narrower than that of the numbers: the ends may be cut off.
  constexpr int kTries = 21;
  constexpr auto kSteps = static_cast<float>(kTop);
  Fit best{{range / kSteps, low}, g.squares};
  for (int i = 0; i < kTries; ++i) {
    const float steps = kSteps - 1 + 0.1f * static_cast<float>(i);
    const Fit fit = refit<kTop>(g, {range / steps, low});
    if (fit.error < best.error) best = fit;
  }
  const Fit again = refit<kTop>(g, best.numbers);
  return again.error < best.error ? again.numbers : best.numbers;
}

// The next fp16 away from 0, so that no scale is above the largest of its steps.
HWY_INLINE uint16_t half_beyond(float value) {
  const uint16_t half = to_half(value);
  const bool is_short = std::abs(half_to_float(half)) < std::abs(value);
  return static_cast<uint16_t>(half + (is_short ? 1 : 0));
}
HWY_INLINE void put_half(uint8_t* to, uint16_t bits) { std::memcpy(to, &bits, sizeof bits); }

template <int kTop>
HWY_INLINE void write_codes(const float* numbers, Affine a, uint8_t (&codes)[kGroup]) {
  const float inverse = inverse_of(a.scale);
  for (int i = 0; i < kGroup; ++i)
    codes[i] = static_cast<uint8_t>(code_of((numbers[i] - a.addend) * inverse, 0, kTop));
}

constexpr int kSuperBlock = 256;

struct Steps {  // of the 6-bit scale and minimum of a group
  int scale = 0, minimum = 0;
};

// 12 bytes for eight groups: the layout of group_q4_k() in gguf_codes.cpp.
HWY_INLINE void put_six_bits(const Steps (&of)[8], uint8_t* to) {
  for (int g = 0; g < 4; ++g) {
    to[g] = static_cast<uint8_t>(of[g].scale | (of[g + 4].scale >> 4) << 6);
    to[g + 4] = static_cast<uint8_t>(of[g].minimum | (of[g + 4].minimum >> 4) << 6);
    to[g + 8] = static_cast<uint8_t>((of[g + 4].scale & 15) | (of[g + 4].minimum & 15) << 4);
  }
}

// Scales and minima of the groups of a super block.
struct SuperBlock {
  static constexpr int kGroups = kSuperBlock / kGroup;
  uint16_t scale_step = 0, minimum_step = 0;  // fp16
  Steps steps[kGroups];
  Affine of(Steps s) const {
    return {half_to_float(scale_step) * static_cast<float>(s.scale),
            -half_to_float(minimum_step) * static_cast<float>(s.minimum)};
  }
};

template <int kTop>
SuperBlock search_super_block(const float* numbers, const float* importance) {
  constexpr int kMostSteps = 63;
  Affine found[SuperBlock::kGroups];
  float largest_scale = 0, largest_minimum = 0;
  const auto group_at = [&](int g) {
    return AffineGroup(numbers + g * kGroup, importance ? importance + g * kGroup : nullptr);
  };
  for (int g = 0; g < SuperBlock::kGroups; ++g) {
    found[g] = search_affine<kTop>(group_at(g));
    largest_scale = std::max(largest_scale, found[g].scale);
    largest_minimum = std::max(largest_minimum, -found[g].addend);
  }
  SuperBlock out{.scale_step = half_beyond(largest_scale / kMostSteps),
                 .minimum_step = half_beyond(largest_minimum / kMostSteps)};
  const float scale_step = half_to_float(out.scale_step), minimum_step = half_to_float(out.minimum_step);
  for (int g = 0; g < SuperBlock::kGroups; ++g) {
    const AffineGroup group = group_at(g);
    const Steps near{static_cast<int>(code_of(found[g].scale * inverse_of(scale_step), 0, kMostSteps)),
                     static_cast<int>(code_of(-found[g].addend * inverse_of(minimum_step), 0, kMostSteps))};
    // Both were rounded; a neighbour of the pair may fit better.
    float least = -1;
    for (int s = std::max(near.scale - 1, 0); s <= std::min(near.scale + 1, kMostSteps); ++s)
      for (int n = std::max(near.minimum - 1, 0); n <= std::min(near.minimum + 1, kMostSteps); ++n) {
        const float error = error_of<kTop>(group, out.of({s, n}));
        if (least < 0 || error < least) least = error, out.steps[g] = {s, n};
      }
  }
  return out;
}

// d, m, and the groups' steps: 16 bytes.
HWY_INLINE void put_super_block(const SuperBlock& block, uint8_t* to) {
  put_half(to, block.scale_step);
  put_half(to + 2, block.minimum_step);
  put_six_bits(block.steps, to + 4);
}

void quantize_q4_k(const float* numbers, const float* importance, uint8_t* to) {
  const SuperBlock block = search_super_block<15>(numbers, importance);
  put_super_block(block, to);
  for (int g = 0; g < SuperBlock::kGroups; g += 2) {
    uint8_t low[kGroup], high[kGroup];
    write_codes<15>(numbers + g * kGroup, block.of(block.steps[g]), low);
    write_codes<15>(numbers + (g + 1) * kGroup, block.of(block.steps[g + 1]), high);
    for (int i = 0; i < kGroup; ++i)
      to[16 + g / 2 * kGroup + i] = static_cast<uint8_t>(low[i] | high[i] << 4);
  }
}

void quantize_q5_k(const float* numbers, const float* importance, uint8_t* to) {
  const SuperBlock block = search_super_block<31>(numbers, importance);
  put_super_block(block, to);
  uint8_t *const fifth = to + 16, *const halves = to + 48;
  std::fill_n(fifth, kGroup, uint8_t{0});
  for (int g = 0; g < SuperBlock::kGroups; ++g) {
    uint8_t codes[kGroup];
    write_codes<31>(numbers + g * kGroup, block.of(block.steps[g]), codes);
    for (int i = 0; i < kGroup; ++i) {
      uint8_t& byte = halves[g / 2 * kGroup + i];
      byte = static_cast<uint8_t>(g % 2 == 0 ? codes[i] & 15 : byte | (codes[i] & 15) << 4);
      fifth[i] = static_cast<uint8_t>(fifth[i] | codes[i] >> 4 << g);
    }
  }
}

// number ~ scale * code, codes -kMost to kMost - 1. A scale may be negative, so that the largest number gets
// -kMost.
template <int kMost, int kSize>
HWY_INLINE float search(const Group<kSize>& g) {
  const float largest = -g.low > g.high ? g.low : g.high;
  if (inverse_of(largest) == 0) return 0;
  constexpr int kTries = 19;
  float best = largest / -kMost, most = -1;
  for (int i = 0; i < kTries; ++i) {
    const float range = static_cast<float>(kMost) - 0.9f + 0.1f * static_cast<float>(i);
    const V inverse = hn::Set(F(), -range / largest);
    Sum c2, cx;
    for (int n = 0; n < kSize; n += kLanes) {
      const int lane = n / kLanes % kVectors;
      const V x = hn::Load(F(), g.numbers + n), code = codes_of(product(x, inverse), -kMost, kMost - 1);
      const V weighted = product(hn::Load(F(), g.weights + n), code);
      add(c2, lane, product(weighted, code));
      add(cx, lane, product(weighted, x));
    }
    // With their best scale these codes leave an error of the squares of the numbers less this.
    const float squares = c2.total(), products = cx.total();
    if (squares > 0 && products * products / squares > most) {
      most = products * products / squares;
      best = products / squares;
    }
  }
  return best;
}

void quantize_q5_0(const float* numbers, const float* importance, uint8_t* to) {
  const uint16_t d = to_half(search<16>(Group<kGroup>(numbers, importance)));
  const float inverse = inverse_of(half_to_float(d));
  uint32_t fifth_bits = 0;
  put_half(to, d);
  std::fill_n(to + 6, kGroup / 2, uint8_t{0});
  for (int i = 0; i < kGroup; ++i) {
    const auto code = static_cast<uint32_t>(code_of(numbers[i] * inverse, -16, 15) + 16);
    fifth_bits |= code >> 4 << i;
    uint8_t& byte = to[6 + i % (kGroup / 2)];
    byte = static_cast<uint8_t>(byte | (code & 15) << (i < kGroup / 2 ? 0 : 4));
  }
  std::memcpy(to + 2, &fifth_bits, sizeof fifth_bits);
}

constexpr int kSmallGroup = 16;

void quantize_q6_k(const float* numbers, const float* importance, uint8_t* to) {
  constexpr int kGroups = kSuperBlock / kSmallGroup;
  float found[kGroups], largest = 0;
  for (int g = 0; g < kGroups; ++g) {
    found[g] = search<32>(
        Group<kSmallGroup>(numbers + g * kSmallGroup, importance ? importance + g * kSmallGroup : nullptr));
    if (std::abs(found[g]) > std::abs(largest)) largest = found[g];
  }
  const uint16_t d = half_beyond(largest / -128);
  const float step = half_to_float(d);
  uint8_t codes[kSuperBlock];
  for (int g = 0; g < kGroups; ++g) {
    const float scale = code_of(found[g] * inverse_of(step), -128, 127), inverse = inverse_of(step * scale);
    to[192 + g] = static_cast<uint8_t>(static_cast<int8_t>(scale));
    for (int i = g * kSmallGroup; i < (g + 1) * kSmallGroup; ++i)
      codes[i] = static_cast<uint8_t>(code_of(numbers[i] * inverse, -32, 31) + 32);
  }
  put_half(to + 208, d);
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < 32; ++i) {
      const uint8_t* c = codes + half * 128 + i;
      to[half * 64 + i] = static_cast<uint8_t>((c[0] & 15) | (c[64] & 15) << 4);
      to[half * 64 + 32 + i] = static_cast<uint8_t>((c[32] & 15) | (c[96] & 15) << 4);
      to[128 + half * 32 + i] =
          static_cast<uint8_t>(c[0] >> 4 | (c[32] >> 4) << 2 | (c[64] >> 4) << 4 | (c[96] >> 4) << 6);
    }
}

void quantize_q8_0(const float* numbers, const float*, uint8_t* to) {
  float largest = 0;
  for (int i = 0; i < kGroup; ++i) largest = std::max(largest, std::abs(numbers[i]));
  const uint16_t d = half_beyond(largest / 127);
  const float inverse = inverse_of(half_to_float(d));
  put_half(to, d);
  for (int i = 0; i < kGroup; ++i)
    to[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(code_of(numbers[i] * inverse, -127, 127)));
}

using Quantizer = void (*)(const float*, const float*, uint8_t*);
Quantizer quantizer_of(Dtype type) {
  return type == Dtype::kQ4K    ? quantize_q4_k
         : type == Dtype::kQ5K  ? quantize_q5_k
         : type == Dtype::kQ6K  ? quantize_q6_k
         : type == Dtype::kQ5_0 ? quantize_q5_0
                                : quantize_q8_0;
}

}  // namespace HWY_NAMESPACE
}  // namespace outrider
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace outrider {

HWY_EXPORT(quantizer_of);

void quantize_blocks(Dtype type, std::span<const float> numbers, std::byte* to,
                     std::span<const float> importance) {
  CHECK(can_quantize_to(type), "{} is not written", dtype_name(type));
  const DtypeBlock block = dtype_block(type);
  const auto size = static_cast<size_t>(block.elements);
  CHECK(numbers.size() % size == 0, "{} numbers of {}", numbers.size(), dtype_name(type));
  CHECK(importance.empty() || importance.size() == numbers.size(), "{} numbers have the importance of {}",
        numbers.size(), importance.size());
  const auto quantize = HWY_DYNAMIC_DISPATCH(quantizer_of)(type);
  for (size_t i = 0; i < numbers.size(); i += size, to += block.bytes)
    quantize(numbers.data() + i, importance.empty() ? nullptr : importance.data() + i,
             reinterpret_cast<uint8_t*>(to));
}

}  // namespace outrider
#endif
