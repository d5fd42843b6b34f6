// How a row of q travels. The rows are nearly all that the p/q rules send, so they are packed:
//
//   row     = sum:varint count:varint count*step:varint count:varint width:u8 count*weight
//   step    = an id less the one before it (the first: less 0), modulo 2^32
//   width   = 2 if every weight has at most 11 significant bits (base/short_weight.h), else 4
//
// A sparse row of m tokens thus takes some 4 m bytes. Only comm/wire_fields.h includes this.
#pragma once

#include <algorithm>
#include <vector>

#include "base/short_weight.h"
#include "comm/messages.h"
#include "comm/wire_archive.h"

namespace outrider {

inline bool all_short(const std::vector<uint32_t>& weights) {
  return std::all_of(weights.begin(), weights.end(),
                     [](uint32_t weight) { return pack_short_weight(weight).has_value(); });
}

inline void save_ids(WireWriter& writer, const std::vector<uint32_t>& ids) {
  uint64_t count = ids.size();
  writer(VarintField{count});
  uint32_t last = 0;
  for (const uint32_t id : ids) {
    uint64_t step = id - last;
    writer(VarintField{step});
    last = id;
  }
}
inline void load_ids(WireReader& reader, std::vector<uint32_t>& ids) {
  uint64_t count = 0;
  reader(VarintField{count});
  reader.require(count <= reader.limits().ids, "more elements than the limit");
  reader.require(count <= reader.remaining(), "more elements than the frame can hold");
  if (!reader.ok()) return;
  ids.resize(count);
  uint32_t last = 0;
  for (uint32_t& id : ids) {
    uint64_t step = 0;
    reader(VarintField{step});
    reader.require(step <= UINT32_MAX, "a token id of more than 32 bits");
    if (!reader.ok()) return;
    id = last += static_cast<uint32_t>(step);
  }
}

inline void save_weights(WireWriter& writer, const std::vector<uint32_t>& weights) {
  uint64_t count = weights.size();
  writer(VarintField{count});
  const bool is_short = all_short(weights);
  writer(static_cast<uint8_t>(is_short ? 2 : 4));
  if (!is_short) return writer.put(weights.data(), count * sizeof(uint32_t));
  std::vector<uint16_t> packed(weights.size());
  std::transform(weights.begin(), weights.end(), packed.begin(),
                 [](uint32_t weight) { return *pack_short_weight(weight); });
  writer.put(packed.data(), count * sizeof(uint16_t));
}
inline void load_weights(WireReader& reader, std::vector<uint32_t>& weights) {
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

inline void save(WireWriter& writer, const QRow& row) {
  uint64_t sum = row.sum;
  writer.require(row.ids.size() <= writer.limits().ids && row.weights.size() <= writer.limits().ids,
                 "more elements than the limit");
  if (!writer.ok()) return;
  writer(VarintField{sum});
  save_ids(writer, row.ids);
  save_weights(writer, row.weights);
}
inline void load(WireReader& reader, QRow& row) {
  reader(VarintField{row.sum});
  load_ids(reader, row.ids);
  if (reader.ok()) load_weights(reader, row.weights);
}

}  // namespace outrider
