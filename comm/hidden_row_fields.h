// How the quantised hidden states of a draft travel:
//
//   rows  = count:varint, and unless it is 0: bits:u8 width:varint count*row
//   row   = scale:u16 max:f32 width*code, zero bits up to a whole byte
//   bits  = 1 to 7: the width of the largest code of all rows
//   scale = the upper half of a float, the lower one is zero
//   code  = (code + 2^bits - 1) / 2: codes are odd
//
// A code has at least one bit and becomes a byte, and a row has 7 bytes and becomes some 40, so a hostile
// frame can ask for about ten times its size. Only comm/wire_fields.h includes this.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/bfloat16.h"
#include "base/hidden_row.h"
#include "comm/bit_stream.h"

namespace outrider {

struct HiddenRowsField {
  std::vector<HiddenRow>& rows;
};

inline int hidden_code_bits(const std::vector<HiddenRow>& rows) {
  int largest = 0;
  for (const HiddenRow& row : rows)
    for (const int8_t code : row.codes) largest = std::max(largest, std::abs(int{code}));
  return std::bit_width(static_cast<unsigned>(largest));
}

// Whether the row can be encoded.
inline bool can_travel(const HiddenRow& row, uint64_t width) {
  return row.codes.size() == width && to_float(to_bf16(row.scale)) == row.scale && std::isfinite(row.scale) &&
         std::isfinite(row.max) &&
         std::all_of(row.codes.begin(), row.codes.end(), [](int8_t code) { return code % 2 != 0; });
}

inline void save(WireWriter& writer, const HiddenRowsField& field) {
  uint64_t count = field.rows.size(), width = count == 0 ? 0 : field.rows.front().codes.size();
  const auto bits = static_cast<uint8_t>(hidden_code_bits(field.rows));
  writer.require(count <= writer.limits().draft_tokens && width <= writer.limits().ids,
                 "more elements than the limit");
  writer.require(count == 0 || (width > 0 && bits <= kMaxHiddenBits), "a state that is not well-formed");
  for (const HiddenRow& row : field.rows)
    writer.require(can_travel(row, width), "a state that is not well-formed");
  if (!writer.ok()) return;
  writer(VarintField{count});
  if (count == 0) return;
  writer(bits, VarintField{width});
  for (const HiddenRow& row : field.rows) {
    writer(to_bf16(row.scale).bits, row.max);
    BitWriter packed(writer);
    for (const int8_t code : row.codes) packed.put(static_cast<uint64_t>((code + (1 << bits) - 1) / 2), bits);
    packed.finish();
  }
}

inline void load(WireReader& reader, HiddenRowsField& field) {
  uint64_t count = 0, width = 0;
  uint8_t bits = 0;
  reader(VarintField{count});
  reader.require(count <= reader.limits().draft_tokens, "more elements than the limit");
  if (!reader.ok() || count == 0) return;
  reader(bits, VarintField{width});
  reader.require(bits >= 1 && bits <= kMaxHiddenBits, "codes of so many bits");
  reader.require(width >= 1 && width <= reader.limits().ids, "more elements than the limit");
  if (!reader.ok()) return;
  const uint64_t row_bytes = sizeof(bf16) + sizeof(float) + (width * bits + 7) / 8;
  reader.require(count <= reader.remaining() / row_bytes, "more elements than the frame can hold");
  if (!reader.ok()) return;
  field.rows.resize(count);
  for (HiddenRow& row : field.rows) {
    bf16 scale;
    reader(scale.bits, FiniteField{row.max});
    row.scale = to_float(scale);
    reader.require(std::isfinite(row.scale), "a number that is not finite");
    row.codes.resize(width);
    BitReader packed(reader);
    for (int8_t& code : row.codes)
      code = static_cast<int8_t>(2 * static_cast<int>(packed.take(bits)) - (1 << bits) + 1);
    packed.finish();
  }
  reader.require(hidden_code_bits(field.rows) == bits, "states in the wrong form");
}

}  // namespace outrider
