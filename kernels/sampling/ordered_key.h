// Order-preserving integers for logits: reductions over ranks compare these, never floats, so that the
// maximum and the lowest-index argmax come from one integer maximum whatever the number of ranks.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "base/shared_code.h"
#include "base/types.h"

namespace outrider {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr uint32_t kNanKey = 0xFFFFFFFF;  // of every NaN: above all numbers
constexpr uint32_t kPlusInfinityKey = 0xFF800000;
constexpr uint32_t kMinusInfinityKey = 0x007FFFFF;

// a < b implies ordered_key(a) < ordered_key(b); -0 and +0 are equal.
OUTRIDER_SHARED_CODE inline uint32_t ordered_key(float value) {
  if (value != value) return kNanKey;
  const auto bits = std::bit_cast<uint32_t>(value + 0.0f);  // -0 becomes +0
  return bits >> 31 ? ~bits : bits | 0x80000000;
}

OUTRIDER_SHARED_CODE inline float value_of_key(uint32_t key) {
  return std::bit_cast<float>(key >> 31 ? key & 0x7FFFFFFF : ~key);
}

// One token with its logit or score: a larger one is better, and the lower id wins ties. 0 means "none".
struct RankedToken {
  uint64_t packed = 0;

  OUTRIDER_SHARED_CODE static RankedToken of(float value, int64_t id) {
    return {static_cast<uint64_t>(ordered_key(value)) << 32 | (0xFFFFFFFF - static_cast<uint32_t>(id))};
  }
  OUTRIDER_SHARED_CODE uint32_t key() const { return static_cast<uint32_t>(packed >> 32); }
  OUTRIDER_SHARED_CODE float value() const { return value_of_key(key()); }
  OUTRIDER_SHARED_CODE TokenId id() const {
    return TokenId(static_cast<int32_t>(0xFFFFFFFF - static_cast<uint32_t>(packed)));
  }
  // As the best token of a row: false if the row holds a NaN or +inf, or nothing above -inf. Such a row has
  // no distribution and fails its sequence.
  OUTRIDER_SHARED_CODE bool is_finite() const {
    return key() > kMinusInfinityKey && key() < kPlusInfinityKey;
  }

  auto operator<=>(const RankedToken&) const = default;
};

}  // namespace outrider
