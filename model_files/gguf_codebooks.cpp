#include "model_files/gguf_codebooks.h"

#include <array>
#include <cstddef>

namespace outrider {
namespace {

#include "model_files/gguf_codebooks.inc"

// Entries of kPerEntry numbers each, unpacked.
template <class T, size_t kPerEntry, size_t kEntries, size_t kNumbers>
std::array<std::array<T, kPerEntry>, kEntries> unpacked(const uint16_t (&words)[kEntries],
                                                        const T (&numbers)[kNumbers]) {
  constexpr size_t kBits = 16 / kPerEntry;
  std::array<std::array<T, kPerEntry>, kEntries> out;
  for (size_t i = 0; i < kEntries; ++i)
    for (size_t j = 0; j < kPerEntry; ++j) out[i][j] = numbers[words[i] >> j * kBits & ((1u << kBits) - 1)];
  return out;
}

constexpr uint8_t kIq2Magnitudes[]{8, 25, 43, 0}, kIq3XxsMagnitudes[]{4, 12, 20, 28, 36, 44, 52, 62},
    kIq3SMagnitudes[]{1, 3, 5, 7, 9, 11, 13, 15};
constexpr int8_t kIq1Numbers[]{-1, 0, 1, 0};

}  // namespace

const uint8_t* codebook_iq2_xxs(uint32_t entry) {
  static const auto book = unpacked<uint8_t, 8>(kIQ2XXS, kIq2Magnitudes);
  return book[entry].data();
}
const uint8_t* codebook_iq2_xs(uint32_t entry) {
  static const auto book = unpacked<uint8_t, 8>(kIQ2XS, kIq2Magnitudes);
  return book[entry].data();
}
const uint8_t* codebook_iq2_s(uint32_t entry) {
  static const auto book = unpacked<uint8_t, 8>(kIQ2S, kIq2Magnitudes);
  return book[entry].data();
}
const uint8_t* codebook_iq3_xxs(uint32_t entry) {
  static const auto book = unpacked<uint8_t, 4>(kIQ3XXS, kIq3XxsMagnitudes);
  return book[entry].data();
}
const uint8_t* codebook_iq3_s(uint32_t entry) {
  static const auto book = unpacked<uint8_t, 4>(kIQ3S, kIq3SMagnitudes);
  return book[entry].data();
}
const int8_t* codebook_iq1(uint32_t entry) {
  static const auto book = unpacked<int8_t, 8>(kIQ1S, kIq1Numbers);
  return book[entry].data();
}

}  // namespace outrider
