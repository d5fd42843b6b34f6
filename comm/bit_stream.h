// Numbers of any width in a frame, the lowest bit first, and the codes of base/bit_codes.h. Only
// comm/q_row_fields.h and comm/hidden_row_fields.h include this.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "comm/wire_archive.h"

namespace outrider {

class BitWriter {
 public:
  explicit BitWriter(WireWriter& writer) : writer_(writer) {}

  void put_rice(uint32_t number, int k) { put_code(number >> k, number & ((uint32_t{1} << k) - 1), k); }
  void put_elias_gamma(uint32_t number) {
    const int below = std::bit_width(number) - 1;
    put_code(static_cast<uint32_t>(below), number & ((uint32_t{1} << below) - 1), below);
  }
  void put(uint64_t bits, int count) {  // at most 63
    window_ |= bits << held_;
    held_ += count;
    if (held_ < 64) return;
    writer_.put(&window_, sizeof window_);
    held_ -= 64;
    window_ = bits >> (count - held_);
  }
  // The rest of the last byte becomes zeros.
  void finish() { writer_.put(&window_, static_cast<size_t>((held_ + 7) / 8)); }

 private:
  // Ones, a zero, and `count` bits.
  void put_code(uint32_t ones, uint64_t bits, int count) {
    for (; ones >= 32; ones -= 32) put(UINT32_MAX, 32);
    put(((uint64_t{1} << ones) - 1) | bits << (ones + 1), static_cast<int>(ones) + 1 + count);
  }

  WireWriter& writer_;
  uint64_t window_ = 0;
  int held_ = 0;
};

// Does not consume the bytes after its last bit. After an error every number is 0 or 1.
class BitReader {
 public:
  explicit BitReader(WireReader& reader) : reader_(reader) {}

  uint32_t rice(int k, uint32_t most) {
    const uint64_t number = uint64_t{unary(most >> k)} << k | take(k);
    reader_.require(number <= most, "a number beyond its bound");
    return reader_.ok() ? static_cast<uint32_t>(number) : 0;
  }
  uint32_t elias_gamma() {
    const auto below = static_cast<int>(unary(31));
    const uint32_t number = uint32_t{1} << below | take(below);
    return reader_.ok() ? number : 1;
  }
  uint32_t take(int count) {  // at most 32
    if (held_ < count) fill();
    reader_.require(held_ >= count, "cut short");
    if (!reader_.ok()) return 0;
    const auto bits = static_cast<uint32_t>(window_ & ((uint64_t{1} << count) - 1));
    drop(count);
    return bits;
  }
  void finish() {
    reader_.require((window_ & ((uint64_t{1} << held_ % 8) - 1)) == 0, "bits that mean nothing");
    reader_.skip(at_ - static_cast<size_t>(held_ / 8));
  }

 private:
  uint32_t unary(uint32_t most) {
    uint32_t ones = 0;
    while (reader_.ok()) {
      const int run = std::min(std::countr_one(window_), held_);
      ones += static_cast<uint32_t>(run);
      reader_.require(ones <= most, "a number beyond its bound");
      if (run < held_) {
        drop(run + 1);
        return reader_.ok() ? ones : 0;
      }
      drop(run);
      fill();
      reader_.require(held_ > 0, "cut short");
    }
    return 0;
  }
  // Afterwards at least 56 bits are held, or all remaining ones.
  void fill() {
    const std::span<const std::byte> rest = reader_.rest();
    if (rest.size() - at_ >= sizeof window_) {
      uint64_t next = 0;
      std::memcpy(&next, rest.data() + at_, sizeof next);
      window_ |= next << held_;  // may include bits that are not counted yet; a later call takes them up
      at_ += static_cast<size_t>((63 - held_) / 8);
      held_ |= 56;
      return;
    }
    for (; held_ < 56 && at_ < rest.size(); held_ += 8)
      window_ |= static_cast<uint64_t>(rest[at_++]) << held_;
  }
  void drop(int count) {
    window_ >>= count;
    held_ -= count;
  }

  WireReader& reader_;
  size_t at_ = 0;  // in the reader's rest, after the held bits
  uint64_t window_ = 0;
  int held_ = 0;
};

}  // namespace outrider
