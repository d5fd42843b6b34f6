// Numbers of any width in a frame, the lowest bit first, and the codes of base/bit_codes.h. Only
// comm/q_row_fields.h and comm/hidden_row_fields.h include this.
#pragma once

#include <algorithm>
#include <bit>

#include "comm/wire_archive.h"

namespace outrider {

class BitWriter {
 public:
  explicit BitWriter(WireWriter& writer) : writer_(writer) {}

  void put_rice(uint32_t number, int k) {
    put_unary(number >> k);
    put(number & ((uint32_t{1} << k) - 1), k);
  }
  void put_elias_gamma(uint32_t number) {
    const int below = std::bit_width(number) - 1;
    put_unary(static_cast<uint32_t>(below));
    put(number & ((uint32_t{1} << below) - 1), below);
  }
  void put(uint64_t bits, int count) {  // at most 33
    window_ |= bits << held_;
    held_ += count;
    const int whole = held_ / 8;
    writer_.put(&window_, static_cast<size_t>(whole));
    window_ >>= 8 * whole;
    held_ %= 8;
  }
  // The rest of the last byte becomes zeros.
  void finish() {
    if (held_ > 0) put(0, 8 - held_);
  }

 private:
  void put_unary(uint32_t ones) {
    for (; ones >= 32; ones -= 32) put(UINT32_MAX, 32);
    put((uint64_t{1} << ones) - 1, static_cast<int>(ones) + 1);
  }

  WireWriter& writer_;
  uint64_t window_ = 0;
  int held_ = 0;
};

// Reads no byte before it needs one of its bits. After an error every number is 0 or 1.
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
    while (held_ < count && reader_.ok()) fill();
    if (!reader_.ok()) return 0;
    const auto bits = static_cast<uint32_t>(window_ & ((uint64_t{1} << count) - 1));
    drop(count);
    return bits;
  }
  void finish() { reader_.require(window_ == 0, "bits that mean nothing"); }

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
    }
    return 0;
  }
  void fill() {
    uint8_t byte = 0;
    reader_.get(&byte, 1);
    window_ |= uint64_t{byte} << held_;
    held_ += 8;
  }
  void drop(int count) {
    window_ >>= count;
    held_ -= count;
  }

  WireReader& reader_;
  uint64_t window_ = 0;
  int held_ = 0;
};

}  // namespace outrider
