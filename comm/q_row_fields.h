// How a row of q travels. The rows are nearly all that the p/q rules send, so they are packed:
//
//   row     = sparse or dense, and no sum: the reader adds up
//   dense   = 0:varint count:varint width:u8 count*weight
//   width   = 2 if every weight has at most 11 significant bits (base/short_weight.h), else 4
//   sparse  = count:varint id_end:varint rest:varint unit:varint count*entry, zero bits up to a whole byte
//   id_end  = as in the row; without a rest the last id plus 1
//   unit    = the greatest common divisor of the weights
//   entry   = how many ids lie between the one before it (or the beginning) and this one, in the Rice code of
//             parameter gap_parameter(), base/bit_codes.h; weight / unit, in Elias' gamma code
//
// Rows of kernels/sampling/compact_row.h take some 10 bits an entry. An entry has at least 2 bits and
// becomes 8 bytes, so a hostile frame can ask for 32 times its size. Only comm/wire_fields.h includes this.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/bit_codes.h"
#include "base/short_weight.h"
#include "comm/bit_stream.h"
#include "comm/messages.h"
#include "comm/q_rows.h"

namespace outrider {

inline bool all_short(const std::vector<uint32_t>& weights) {
  return std::all_of(weights.begin(), weights.end(),
                     [](uint32_t weight) { return pack_short_weight(weight).has_value(); });
}

inline void save_dense(WireWriter& writer, const std::vector<uint32_t>& weights) {
  uint64_t count = weights.size();
  writer.require(count <= writer.limits().ids, "more elements than the limit");
  if (!writer.ok()) return;
  writer(VarintField{count});
  const bool is_short = all_short(weights);
  writer(static_cast<uint8_t>(is_short ? 2 : 4));
  if (!is_short) return writer.put(weights.data(), count * sizeof(uint32_t));
  std::vector<uint16_t> packed(weights.size());
  std::transform(weights.begin(), weights.end(), packed.begin(),
                 [](uint32_t weight) { return *pack_short_weight(weight); });
  writer.put(packed.data(), count * sizeof(uint16_t));
}
inline void load_dense(WireReader& reader, std::vector<uint32_t>& weights) {
  uint64_t count = 0;
  uint8_t width = 0;
  reader(VarintField{count}, width);
  reader.require(width == 2 || width == 4, "weights of neither 2 nor 4 bytes");
  reader.require(count <= reader.limits().ids, "more elements than the limit");
  if (!reader.ok()) return;
  reader.require(count <= reader.remaining() / width, "more elements than the frame can hold");
  if (!reader.ok()) return;
  weights.resize(count);
  if (width == 4) {
    reader.get(weights.data(), count * sizeof(uint32_t));
    return reader.require(!all_short(weights), "weights in the wrong form");
  }
  std::vector<uint16_t> packed(count);
  reader.get(packed.data(), count * sizeof(uint16_t));
  for (size_t i = 0; i < packed.size(); ++i) {
    const auto weight = unpack_short_weight(packed[i]);
    reader.require(weight.has_value(), "a weight of more than 32 bits");
    weights[i] = weight.value_or(0);
  }
}

inline void save_sparse(WireWriter& writer, const QRow& row) {
  uint64_t count = row.ids.size(), rest = row.rest;
  uint32_t divisor = 0;
  uint64_t id_end = row.rest > 0 ? row.id_end : uint64_t{row.ids.back()} + 1;
  for (const uint32_t weight : row.weights)
    if (divisor == 0 || weight % divisor != 0) divisor = std::gcd(divisor, weight);
  uint64_t unit = divisor;
  writer.require(id_end <= writer.limits().ids, "a token id beyond the limit");
  writer.require(is_sparse_row(row), "a row of q that is not well-formed");
  if (!writer.ok()) return;
  writer(VarintField{id_end}, VarintField{rest}, VarintField{unit});
  BitWriter bits(writer);
  const int k = gap_parameter(id_end, count);
  uint32_t next = 0;
  for (size_t i = 0; i < row.ids.size(); ++i) {
    bits.put_rice(row.ids[i] - next, k);
    bits.put_elias_gamma(row.weights[i] / divisor);
    next = row.ids[i] + 1;
  }
  bits.finish();
}
inline void load_sparse(WireReader& reader, uint64_t count, QRow& row) {
  uint64_t id_end = 0, rest = 0, unit = 0;
  reader(VarintField{id_end}, VarintField{rest}, VarintField{unit});
  reader.require(id_end <= reader.limits().ids, "a token id beyond the limit");
  reader.require(count <= id_end && count <= 4 * reader.remaining(), "more elements than the frame can hold");
  reader.require(rest <= UINT32_MAX && unit >= 1 && unit <= UINT32_MAX, "a weight of more than 32 bits");
  if (!reader.ok()) return;
  row.ids.resize(count);
  row.weights.resize(count);
  BitReader bits(reader);
  const int k = gap_parameter(id_end, count);
  uint64_t next = 0, divisor = 0;
  for (size_t i = 0; i < count; ++i) {
    reader.require(next < id_end, "a token id beyond the end");
    if (!reader.ok()) return;
    row.ids[i] = static_cast<uint32_t>(next) + bits.rice(k, static_cast<uint32_t>(id_end - next - 1));
    next = uint64_t{row.ids[i]} + 1;
    const uint64_t units = bits.elias_gamma();
    reader.require(units * unit <= UINT32_MAX, "a weight of more than 32 bits");
    row.weights[i] = static_cast<uint32_t>(units * unit);
    if (divisor != 1) divisor = std::gcd(divisor, units);
  }
  bits.finish();
  reader.require(divisor == 1 && (rest > 0 || next == id_end), "a row of q in the wrong form");
  row.rest = static_cast<uint32_t>(rest);
  row.id_end = rest > 0 ? static_cast<uint32_t>(id_end) : 0;
}

inline void save(WireWriter& writer, const QRow& row) {
  uint64_t count = row.ids.size();
  writer.require(count <= writer.limits().ids, "more elements than the limit");
  if (!writer.ok()) return;
  writer(VarintField{count});
  count == 0 ? save_dense(writer, row.weights) : save_sparse(writer, row);
}
inline void load(WireReader& reader, QRow& row) {
  uint64_t count = 0;
  reader(VarintField{count});
  reader.require(count <= reader.limits().ids, "more elements than the limit");
  if (!reader.ok()) return;
  count == 0 ? load_dense(reader, row.weights) : load_sparse(reader, count, row);
  if (reader.ok()) row.sum = sum_of(row);
}

}  // namespace outrider
