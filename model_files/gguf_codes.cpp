#include "model_files/gguf_codes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/bfloat16.h"
#include "base/log.h"
#include "model_files/gguf_codebooks.h"

namespace outrider {
namespace {

constexpr int64_t kSuper = 256;  // columns of a block of the K, I and T types

uint16_t word_at(const uint8_t* bytes) { return static_cast<uint16_t>(bytes[0] | bytes[1] << 8); }
uint32_t long_at(const uint8_t* bytes) { return word_at(bytes) | uint32_t{word_at(bytes + 2)} << 16; }
float half_at(const uint8_t* bytes) { return half_to_float(word_at(bytes)); }
uint8_t byte_of(int value) { return static_cast<uint8_t>(value); }

// 16 bytes: low halves are columns 0 to 15, high halves 16 to 31.
void halves_of_16(const uint8_t* bytes, uint8_t* to) {
  for (int i = 0; i < 16; ++i) {
    to[i] = bytes[i] & 15;
    to[i + 16] = bytes[i] >> 4;
  }
}

// Q8_0: fp16 d, 32 int8. Weight d * q.
void codes_q8_0(const uint8_t* block, uint8_t* to) {
  for (int i = 0; i < 32; ++i) to[i] = block[2 + i] ^ 0x80;
}
template <int kZero>
GroupNumbers scale_first(const uint8_t* block, int64_t) {
  return {.scale = half_at(block), .zero = kZero};
}
// fp16 d, fp16 m. Weight d * q + m.
GroupNumbers scale_and_addend(const uint8_t* block, int64_t) {
  return {.scale = half_at(block), .minimum = -half_at(block + 2), .minimum_code = 1};
}

// Q4_0: d, 16 bytes of halves. Weight d * (q - 8).    Q4_1: d, m, the same bytes.
void codes_q4_0(const uint8_t* block, uint8_t* to) { halves_of_16(block + 2, to); }
void codes_q4_1(const uint8_t* block, uint8_t* to) { halves_of_16(block + 4, to); }

// Q5_0: d, 4 bytes whose bit i is the fifth of column i, 16 bytes of halves. d * (q - 16).    Q5_1: d, m,
// same.
void codes_of_5_bits(const uint8_t* bytes, uint8_t* to) {
  halves_of_16(bytes + 4, to);
  for (int i = 0; i < 4; ++i, to += 8) {  // bit j of a byte is the fifth of byte j of eight codes
    constexpr uint64_t kEach = 0x0101010101010101, kOwnBit = 0x8040201008040201;
    const uint64_t own = bytes[i] * kEach & kOwnBit;
    uint64_t eight;
    std::memcpy(&eight, to, sizeof eight);
    eight |= ((own + 0x7f * kEach) & (0x80 * kEach)) >> 3;
    std::memcpy(to, &eight, sizeof eight);
  }
}
void codes_q5_0(const uint8_t* block, uint8_t* to) { codes_of_5_bits(block + 2, to); }
void codes_q5_1(const uint8_t* block, uint8_t* to) { codes_of_5_bits(block + 4, to); }

// 64 bytes: of every 32, bits 2s and 2s + 1 are columns 32 s to 32 s + 31 of 128.
void codes_of_2_bits(const uint8_t* bytes, uint8_t* to) {
  for (int half = 0; half < 2; ++half)
    for (int s = 0; s < 4; ++s)
      for (int i = 0; i < 32; ++i) to[half * 128 + s * 32 + i] = bytes[half * 32 + i] >> 2 * s & 3;
}

// Q2_K: 16 bytes of scale (low half) and minimum of groups of 16, 64 bytes of codes, d, m.
// d * scale * q - m * minimum
void codes_q2_k(const uint8_t* block, uint8_t* to) { codes_of_2_bits(block + 16, to); }
GroupNumbers group_q2_k(const uint8_t* block, int64_t g) {
  return {.scale = half_at(block + 80),
          .scale_code = block[g] & 15,
          .minimum = half_at(block + 82),
          .minimum_code = block[g] >> 4};
}

// Q3_K: 32 bytes whose bit b is the third bit of columns 32 b to 32 b + 31, 64 bytes of codes, 12 bytes of
// 6-bit scales + 32 of groups of 16, d. d * (scale - 32) * (q - 4)
void codes_q3_k(const uint8_t* block, uint8_t* to) {
  codes_of_2_bits(block + 32, to);
  for (int b = 0; b < 8; ++b)
    for (int i = 0; i < 32; ++i) to[b * 32 + i] = byte_of(to[b * 32 + i] | (block[i] >> b & 1) << 2);
}
GroupNumbers group_q3_k(const uint8_t* block, int64_t g) {
  const uint8_t* s = block + 96;
  const int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4, high = s[8 + g % 4] >> 2 * (g / 4) & 3;
  return {.scale = half_at(block + 108), .scale_code = (low | high << 4) - 32, .zero = 4};
}

// 6-bit scales and minima of eight groups of 32 in 12 bytes: those of the last four are in two pieces.
GroupNumbers group_q4_k(const uint8_t* block, int64_t g) {
  const uint8_t* s = block + 4;
  const bool whole = g < 4;
  return {.scale = half_at(block),
          .scale_code = whole ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4,
          .minimum = half_at(block + 2),
          .minimum_code = whole ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4};
}
// 128 bytes: of every 32 the low halves are one group of 32, the high ones the next.
void halves_of_128(const uint8_t* bytes, uint8_t* to) {
  for (int part = 0; part < 4; ++part)
    for (int i = 0; i < 32; ++i) {
      to[part * 64 + i] = bytes[part * 32 + i] & 15;
      to[part * 64 + 32 + i] = bytes[part * 32 + i] >> 4;
    }
}
// Q4_K: d, m, scales and minima, 128 bytes of halves. d * scale * q - m * minimum
void codes_q4_k(const uint8_t* block, uint8_t* to) { halves_of_128(block + 16, to); }
// Q5_K: the same with 32 bytes before the halves, whose bit b is the fifth bit of group b.
void codes_q5_k(const uint8_t* block, uint8_t* to) {
  halves_of_128(block + 48, to);
  for (int b = 0; b < 8; ++b)
    for (int i = 0; i < 32; ++i) to[b * 32 + i] = byte_of(to[b * 32 + i] | (block[16 + i] >> b & 1) << 4);
}

// Q6_K: 128 bytes of low halves, 64 of upper two bits, int8 scales of groups of 16, d. Each half of 256
// columns has 64 bytes of low halves and 32 of upper bits. d * scale * (q - 32)
void codes_q6_k(const uint8_t* block, uint8_t* to) {
  for (int half = 0; half < 2; ++half) {
    const uint8_t *low = block + half * 64, *upper = block + 128 + half * 32;
    uint8_t* out = to + half * 128;
    for (int i = 0; i < 32; ++i) {
      out[i] = byte_of((low[i] & 15) | (upper[i] & 3) << 4);
      out[i + 32] = byte_of((low[i + 32] & 15) | (upper[i] >> 2 & 3) << 4);
      out[i + 64] = byte_of(low[i] >> 4 | (upper[i] >> 4 & 3) << 4);
      out[i + 96] = byte_of(low[i + 32] >> 4 | upper[i] >> 6 << 4);
    }
  }
}
GroupNumbers group_q6_k(const uint8_t* block, int64_t g) {
  return {.scale = half_at(block + 208), .scale_code = std::bit_cast<int8_t>(block[192 + g]), .zero = 32};
}

// TQ2_0: 64 bytes of codes, d. d * (q - 1)
void codes_tq2_0(const uint8_t* block, uint8_t* to) { codes_of_2_bits(block, to); }
GroupNumbers group_tq2_0(const uint8_t* block, int64_t) { return {.scale = half_at(block + 64), .zero = 1}; }

// TQ1_0: 52 bytes of five, the last four of four, digits of base 3 each: digit m of a byte b is the whole
// part of (b * 3^m mod 256) * 3 / 256. Then d. Columns run over the bytes first: 32, 16 and 4 at a time. d *
// (q - 1)
void codes_tq1_0(const uint8_t* block, uint8_t* to) {
  constexpr int kPowers[]{1, 3, 9, 27, 81};
  const auto digits = [&](const uint8_t* bytes, int count, int per_byte) {
    for (int m = 0; m < per_byte; ++m)
      for (int i = 0; i < count; ++i) *to++ = byte_of(byte_of(bytes[i] * kPowers[m]) * 3 >> 8);
  };
  digits(block, 32, 5);
  digits(block + 32, 16, 5);
  digits(block + 48, 4, 4);
}
GroupNumbers group_tq1_0(const uint8_t* block, int64_t) { return {.scale = half_at(block + 52), .zero = 1}; }

// A code of fp4 (e2m1); -0 becomes 0.
void e2m1_of(uint8_t* codes, int count) {
  for (int i = 0; i < count; ++i) codes[i] = codes[i] == 8 ? 0 : codes[i];
}
// MXFP4: a power of two (e8m0), 16 bytes of halves.
void codes_mxfp4(const uint8_t* block, uint8_t* to) {
  halves_of_16(block + 1, to);
  e2m1_of(to, 32);
}
GroupNumbers group_mxfp4(const uint8_t* block, int64_t) { return {.scale = power_of_code(block[0])}; }

// NVFP4: e4m3 scales of four groups of 16, without a sign, where 0x7f is 0; 32 bytes: of every 8 the low
// halves are columns 0 to 7 of a group, the high ones 8 to 15.
void codes_nvfp4(const uint8_t* block, uint8_t* to) {
  for (int g = 0; g < 4; ++g)
    for (int i = 0; i < 8; ++i) {
      to[g * 16 + i] = block[4 + g * 8 + i] & 15;
      to[g * 16 + 8 + i] = block[4 + g * 8 + i] >> 4;
    }
  e2m1_of(to, 64);
}
GroupNumbers group_nvfp4(const uint8_t* block, int64_t g) {
  const int code = block[g], exponent = code >> 3 & 15, mantissa = code & 7;
  if (code == 0x7f) return {};
  return {.scale = exponent == 0
                       ? static_cast<float>(mantissa) * 0x1p-9f
                       : static_cast<float>(8 + mantissa) * 0x1p-10f * static_cast<float>(1 << exponent)};
}

// Whole numbers from -128 to 127, as codes.
constexpr int kByteZero = 128;

// IQ4_NL: d, 16 bytes of halves, which name one of 16 numbers.
void iq4_of(uint8_t* codes, int count) {
  for (int i = 0; i < count; ++i) codes[i] = byte_of(kIq4Numbers[codes[i]] + kByteZero);
}
void codes_iq4_nl(const uint8_t* block, uint8_t* to) {
  halves_of_16(block + 2, to);
  iq4_of(to, 32);
}
// IQ4_XS: d, 2 bytes of upper two bits of eight scales + 32, 4 of their low halves, eight times 16 bytes.
void codes_iq4_xs(const uint8_t* block, uint8_t* to) {
  for (int g = 0; g < 8; ++g) halves_of_16(block + 8 + g * 16, to + g * 32);
  iq4_of(to, kSuper);
}
GroupNumbers group_iq4_xs(const uint8_t* block, int64_t g) {
  const int low = block[4 + g / 2] >> 4 * (g % 2) & 15, high = word_at(block + 2) >> 2 * g & 3;
  return {.scale = half_at(block), .scale_code = (low | high << 4) - 32, .zero = kByteZero};
}

// Codebooks of eight or four magnitudes, with a sign a column.
void put_signed(const uint8_t* magnitudes, int count, int signs, uint8_t* to) {
  for (int i = 0; i < count; ++i)
    to[i] = byte_of(kByteZero + (signs >> i & 1 ? -magnitudes[i] : magnitudes[i]));
}
// Seven bits stand for eight signs, an even number of which is minus.
int eight_signs(uint32_t seven) {
  seven &= 127;
  return static_cast<int>(seven | (std::popcount(seven) & 1u) << 7);
}
int nibble(const uint8_t* bytes, int64_t i) { return bytes[i / 2] >> 4 * (i % 2) & 15; }
// The scale is exact in fp32: fp16 times a factor of a few bits.
GroupNumbers wide_scale(const uint8_t* d, float factor) {
  return {.scale = half_at(d) * factor, .zero = kByteZero};
}
float odd_part(int scale) { return static_cast<float>(2 * scale + 1); }

// IQ2_XXS: d, for each group of 32 four bytes of entries and 4 bytes: four times 7 bits of signs, 4 of scale.
// d * (scale + 1/2) / 4 * q
void codes_iq2_xxs(const uint8_t* block, uint8_t* to) {
  for (int j = 0; j < 32; ++j) {
    const uint8_t* of = block + 2 + j / 4 * 8;
    put_signed(codebook_iq2_xxs(of[j % 4]), 8, eight_signs(long_at(of + 4) >> 7 * (j % 4)), to + 8 * j);
  }
}
GroupNumbers group_iq2_xxs(const uint8_t* block, int64_t g) {
  return wide_scale(block, odd_part(block[2 + g * 8 + 7] >> 4) / 8);
}
// IQ2_XS: d, 32 times 9 bits of entry and 7 of signs, 4-bit scales of groups of 16.
void codes_iq2_xs(const uint8_t* block, uint8_t* to) {
  for (int j = 0; j < 32; ++j) {
    const uint32_t word = word_at(block + 2 + 2 * j);
    put_signed(codebook_iq2_xs(word & 511), 8, eight_signs(word >> 9), to + 8 * j);
  }
}
GroupNumbers group_iq2_xs(const uint8_t* block, int64_t g) {
  return wide_scale(block, odd_part(nibble(block + 66, g)) / 8);
}
// IQ2_S: d, 32 bytes of entries, 32 of signs, 8 of the entries' upper two bits, 4-bit scales of groups of 16.
void codes_iq2_s(const uint8_t* block, uint8_t* to) {
  for (int j = 0; j < 32; ++j) {
    const int upper = block[66 + j / 4] >> 2 * (j % 4) & 3;
    put_signed(codebook_iq2_s(block[2 + j] | upper << 8), 8, block[34 + j], to + 8 * j);
  }
}
GroupNumbers group_iq2_s(const uint8_t* block, int64_t g) {
  return wide_scale(block, odd_part(nibble(block + 74, g)) / 8);
}
// IQ3_XXS: d, 64 bytes of entries of four, then as IQ2_XXS signs and scales. d * (scale + 1/2) / 2 * q
void codes_iq3_xxs(const uint8_t* block, uint8_t* to) {
  for (int j = 0; j < 32; ++j) {
    const int signs = eight_signs(long_at(block + 66 + j / 4 * 4) >> 7 * (j % 4));
    put_signed(codebook_iq3_xxs(block[2 + 2 * j]), 4, signs, to + 8 * j);
    put_signed(codebook_iq3_xxs(block[3 + 2 * j]), 4, signs >> 4, to + 8 * j + 4);
  }
}
GroupNumbers group_iq3_xxs(const uint8_t* block, int64_t g) {
  return wide_scale(block, odd_part(block[66 + g * 4 + 3] >> 4) / 4);
}
// IQ3_S: d, 64 bytes of entries of four, 8 of their ninth bits, 32 of signs, 4-bit scales of groups of 32.
// d * (1 + 2 scale) * q
void codes_iq3_s(const uint8_t* block, uint8_t* to) {
  for (int i = 0; i < 64; ++i) {
    const int ninth = block[66 + i / 8] >> i % 8 & 1;
    put_signed(codebook_iq3_s(block[2 + i] | ninth << 8), 4, block[74 + i / 2] >> 4 * (i % 2), to + 4 * i);
  }
}
GroupNumbers group_iq3_s(const uint8_t* block, int64_t g) {
  return wide_scale(block, odd_part(nibble(block + 106, g)));
}

// Codebook entries of 1.5 bits: eight values of -1, 0 or 1, all shifted by an eighth. A code is eight times
// the value.
void put_shifted(const int8_t* entry, bool down, uint8_t* to) {
  for (int i = 0; i < 8; ++i) to[i] = byte_of(kByteZero + 8 * entry[i] + (down ? -1 : 1));
}
// IQ1_S: d, 32 bytes of entries, for each group of 32 two bytes: four times three upper bits of entries,
// three of scale, one of the shift's sign. d * (2 scale + 1) * (q +- 1/8)
void codes_iq1_s(const uint8_t* block, uint8_t* to) {
  for (int j = 0; j < 32; ++j) {
    const int of = word_at(block + 34 + j / 4 * 2);
    put_shifted(codebook_iq1(block[2 + j] | (of >> 3 * (j % 4) & 7) << 8), of >> 15 != 0, to + 8 * j);
  }
}
GroupNumbers group_iq1_s(const uint8_t* block, int64_t g) {
  return wide_scale(block, odd_part(word_at(block + 34 + g * 2) >> 12 & 7) / 8);
}
// IQ1_M: 32 bytes of entries, half a byte for each entry: three upper bits and its shift's sign, four 16-bit
// words of four 3-bit scales of groups of 16 and a quarter of d each.
void codes_iq1_m(const uint8_t* block, uint8_t* to) {
  for (int j = 0; j < 32; ++j) {
    const int of = nibble(block + 32, j);
    put_shifted(codebook_iq1(block[j] | (of & 7) << 8), of >> 3 != 0, to + 8 * j);
  }
}
GroupNumbers group_iq1_m(const uint8_t* block, int64_t g) {
  const uint8_t* words = block + 48;
  uint8_t d[2]{};
  for (int i = 0; i < 4; ++i) d[i / 2] = byte_of(d[i / 2] | (words[2 * i + 1] >> 4) << 4 * (i % 2));
  return wide_scale(d, odd_part(word_at(words + g / 4 * 2) >> 3 * (g % 4) & 7) / 8);
}

constexpr QuantScheme plain(CodeType code, int32_t zero, int64_t group = 32) {
  return {.code = code, .scale = ScaleType::kFloat16, .zero = zero, .group = group};
}
constexpr QuantScheme with_addend(CodeType code) {
  return {.code = code, .zero_type = ZeroType::kMinimum, .scale = ScaleType::kFloat16, .group = 32};
}
constexpr QuantScheme nested(CodeType code, int32_t zero, int64_t group) {
  return {.code = code,
          .scale = ScaleType::kNested,
          .zero = zero,
          .group = group,
          .groups_together = kSuper / group};
}
constexpr QuantScheme nested_minimum(CodeType code, int64_t group) {
  return {.code = code,
          .zero_type = ZeroType::kMinimum,
          .scale = ScaleType::kNested,
          .group = group,
          .groups_together = kSuper / group};
}
constexpr QuantScheme wide(int64_t group) {
  return {.code = CodeType::kUnsigned8, .scale = ScaleType::kFloat32, .zero = kByteZero, .group = group};
}

constexpr CodeType k4 = CodeType::kUnsigned4, k8 = CodeType::kUnsigned8;

// A block's scale is read once for all groups.
template <GroupNumbers (*kGroup)(const uint8_t*, int64_t)>
void each(const uint8_t* block, int64_t first, std::span<GroupNumbers> to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = kGroup(block, first + static_cast<int64_t>(i));
}

constexpr auto kTypes = std::to_array<GgufType>({
    {2, Dtype::kQ4_0, plain(k4, 8), codes_q4_0, each<scale_first<8>>},
    {3, Dtype::kQ4_1, with_addend(k4), codes_q4_1, each<scale_and_addend>},
    {6, Dtype::kQ5_0, plain(k8, 16), codes_q5_0, each<scale_first<16>>},
    {7, Dtype::kQ5_1, with_addend(k8), codes_q5_1, each<scale_and_addend>},
    {8, Dtype::kQ8_0, plain(k8, kByteZero), codes_q8_0, each<scale_first<kByteZero>>},
    {10, Dtype::kQ2K, nested_minimum(k4, 16), codes_q2_k, each<group_q2_k>},
    {11, Dtype::kQ3K, nested(k4, 4, 16), codes_q3_k, each<group_q3_k>},
    {12, Dtype::kQ4K, nested_minimum(k4, 32), codes_q4_k, each<group_q4_k>},
    {13, Dtype::kQ5K, nested_minimum(k8, 32), codes_q5_k, each<group_q4_k>},
    {14, Dtype::kQ6K, nested(k8, 32, 16), codes_q6_k, each<group_q6_k>},
    {16, Dtype::kIQ2XXS, wide(32), codes_iq2_xxs, each<group_iq2_xxs>},
    {17, Dtype::kIQ2XS, wide(16), codes_iq2_xs, each<group_iq2_xs>},
    {18, Dtype::kIQ3XXS, wide(32), codes_iq3_xxs, each<group_iq3_xxs>},
    {19, Dtype::kIQ1S, wide(32), codes_iq1_s, each<group_iq1_s>},
    {20, Dtype::kIQ4NL, plain(k8, kByteZero), codes_iq4_nl, each<scale_first<kByteZero>>},
    {21, Dtype::kIQ3S, wide(32), codes_iq3_s, each<group_iq3_s>},
    {22, Dtype::kIQ2S, wide(16), codes_iq2_s, each<group_iq2_s>},
    {23, Dtype::kIQ4XS, nested(k8, kByteZero, 32), codes_iq4_xs, each<group_iq4_xs>},
    {29, Dtype::kIQ1M, wide(16), codes_iq1_m, each<group_iq1_m>},
    {34, Dtype::kTQ1_0, plain(k4, 1, kSuper), codes_tq1_0, each<group_tq1_0>},
    {35, Dtype::kTQ2_0, plain(k4, 1, kSuper), codes_tq2_0, each<group_tq2_0>},
    {39,
     Dtype::kMXFP4,
     {.code = CodeType::kE2m1, .scale = ScaleType::kPowerOfTwo, .group = 32},
     codes_mxfp4,
     each<group_mxfp4>},
    {40,
     Dtype::kNVFP4,
     {.code = CodeType::kE2m1, .scale = ScaleType::kFloat16, .group = 16},
     codes_nvfp4,
     each<group_nvfp4>},
});

const GgufType& block_type(Dtype dtype) {
  const auto found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const GgufType& type) { return type.dtype == dtype; });
  CHECK(found != kTypes.end(), "{} is no block", dtype_name(dtype));
  return *found;
}

// Bits that hold every code of a type.
int64_t held_bits(Dtype dtype) {
  switch (dtype) {
    case Dtype::kQ5_0:
    case Dtype::kQ5_1:
    case Dtype::kQ5K:
      return 5;
    case Dtype::kQ6K:
      return 6;
    default:
      return code_bits(block_type(dtype).scheme.code);
  }
}

class BlockCodes final : public CodedMatrix {
 public:
  explicit BlockCodes(const TensorInfo& tensor)
      : CodedMatrix("GGUF " + std::string(dtype_name(tensor.dtype)), block_type(tensor.dtype).scheme,
                    tensor.shape[0], tensor.shape[1], {&tensor}),
        tensor_(tensor),
        type_(block_type(tensor.dtype)),
        block_(dtype_block(tensor.dtype)),
        block_shift_(std::countr_zero(static_cast<uint64_t>(block_.elements))),
        group_shift_(std::countr_zero(static_cast<uint64_t>(scheme_.group))) {
    bits_ = held_bits(tensor.dtype);
  }

  void read_codes(int64_t row, int64_t begin, std::span<uint8_t> to) const override {
    const uint8_t* block = block_at(row, begin);
    int64_t first = begin & (block_.elements - 1);
    for (size_t i = 0; i < to.size(); block += block_.bytes, first = 0) {
      const size_t count = std::min(to.size() - i, static_cast<size_t>(block_.elements - first));
      if (count == static_cast<size_t>(block_.elements)) {
        type_.codes(block, to.data() + i);
      } else {
        uint8_t whole[kSuper];
        type_.codes(block, whole);
        std::memcpy(to.data() + i, whole + first, count);
      }
      i += count;
    }
  }

  GroupNumbers group(int64_t row, int64_t group) const override {
    GroupNumbers one;
    read_groups(row, group, {&one, 1});
    return one;
  }
  void read_groups(int64_t row, int64_t first, std::span<GroupNumbers> to) const override {
    const size_t groups_of_block = size_t{1} << (block_shift_ - group_shift_);
    const uint8_t* block = block_at(row, first << group_shift_);
    for (size_t in_block = static_cast<size_t>(first) & (groups_of_block - 1); !to.empty();
         in_block = 0, block += block_.bytes) {
      const size_t count = std::min(to.size(), groups_of_block - in_block);
      type_.groups(block, static_cast<int64_t>(in_block), to.first(count));
      to = to.subspan(count);
    }
  }

 private:
  const uint8_t* block_at(int64_t row, int64_t column) const {
    return reinterpret_cast<const uint8_t*>(tensor_.data.data()) +
           (stored_row(tensor_, row) * (k_ >> block_shift_) + (column >> block_shift_)) * block_.bytes;
  }

  const TensorInfo& tensor_;
  const GgufType& type_;
  const DtypeBlock block_;
  const int block_shift_, group_shift_;  // of their columns, which are powers of two
};

}  // namespace

std::span<const GgufType> gguf_block_types() { return kTypes; }

std::shared_ptr<const CodedMatrix> gguf_codes(const TensorInfo& tensor) {
  return std::make_shared<BlockCodes>(tensor);
}

}  // namespace outrider
