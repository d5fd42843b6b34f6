// Strong integer types shared by every folder: a token id is not a position and neither is a rank.
// Each wraps one integer, costs nothing, and converts only explicitly.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace outrider {

template <class Tag, class Rep>
class StrongInt {
 public:
  using rep = Rep;
  constexpr StrongInt() = default;
  constexpr explicit StrongInt(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  constexpr auto operator<=>(const StrongInt&) const = default;
  constexpr StrongInt& operator++() {
    ++value_;
    return *this;
  }
  constexpr StrongInt operator+(Rep distance) const { return StrongInt(static_cast<Rep>(value_ + distance)); }
  constexpr StrongInt operator-(Rep distance) const { return StrongInt(static_cast<Rep>(value_ - distance)); }
  constexpr Rep operator-(StrongInt other) const { return static_cast<Rep>(value_ - other.value_); }

 private:
  Rep value_ = 0;
};

using TokenId = StrongInt<struct TokenIdTag, int32_t>;
using Position = StrongInt<struct PositionTag, int32_t>;  // absolute index of a token in its sequence
using SequenceId = StrongInt<struct SequenceIdTag, uint64_t>;
using Epoch = StrongInt<struct EpochTag, uint32_t>;  // per sequence; bumped by every rejection
using Round = StrongInt<struct RoundTag, uint32_t>;  // per sequence; never repeats, gamma 0 counts too
using Rank = StrongInt<struct RankTag, int32_t>;
using Generation = StrongInt<struct GenerationTag, uint64_t>;  // one life of one worker

}  // namespace outrider

template <class Tag, class Rep>
struct std::hash<outrider::StrongInt<Tag, Rep>> {
  size_t operator()(outrider::StrongInt<Tag, Rep> id) const noexcept { return std::hash<Rep>{}(id.value()); }
};
