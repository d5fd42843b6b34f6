#include "kernels/cpu/pack.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "kernels/cpu/quantize.h"

namespace outrider {
namespace {

using Rows = std::array<SourceRow, kTileColumns>;

// 16 words of each of 16 rows, transposed: the rows of a tile side by side. Four by four, so that the
// compiler keeps a block in registers.
void transpose_words(const uint32_t (&rows)[kTileColumns][16], int64_t count, uint32_t* to) {
  using Words = uint32_t __attribute__((vector_size(16)));
  uint32_t whole[16 * kTileColumns];
  uint32_t* out = count == 16 ? to : whole;
  for (int64_t lane = 0; lane < kTileColumns; lane += 4)
    for (int64_t i = 0; i < 16; i += 4) {
      Words r[4];
      for (int64_t j = 0; j < 4; ++j) std::memcpy(&r[j], &rows[lane + j][i], sizeof(Words));
      const Words a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5),
                  b = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
      const Words c = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7),
                  d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
      const Words columns[4]{
          __builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
          __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
      for (int64_t j = 0; j < 4; ++j)
        std::memcpy(out + (i + j) * kTileColumns + lane, &columns[j], sizeof(Words));
    }
  if (out != to) std::memcpy(to, whole, static_cast<size_t>(count * kTileColumns) * sizeof(uint32_t));
}

// One leaf of fp32 or bf16 weights: words of one column, or of two.
void pack_words(const Rows& rows, const PackedMatrix::Leaf& leaf, bool pairs, uint32_t* to) {
  constexpr int64_t kWords = 16;
  const int64_t columns_per_chunk = pairs ? 2 * kWords : kWords;
  uint32_t words[kTileColumns][kWords] = {};
  float floats[2 * kWords];
  for (int64_t c = leaf.begin; c < leaf.end; c += columns_per_chunk) {
    const int64_t count = std::min(columns_per_chunk, leaf.end - c);
    for (size_t lane = 0; lane < rows.size(); ++lane) {
      const SourceRow& row = rows[lane];
      if (row.is_zero()) continue;
      if (count < columns_per_chunk) std::memset(words[lane], 0, sizeof words[lane]);
      const auto bytes = static_cast<size_t>(count) * (pairs ? 2 : 4);
      if (!row.coded && row.step == 0 && row.dtype == (pairs ? Dtype::kBF16 : Dtype::kF32)) {
        std::memcpy(words[lane], row.data + static_cast<size_t>(c) * (pairs ? 2 : 4), bytes);
        continue;
      }
      read_floats(row, c, {floats, static_cast<size_t>(count)});
      if (!pairs) {
        std::memcpy(words[lane], floats, bytes);
      } else {
        auto* halves = reinterpret_cast<bf16*>(words[lane]);
        for (int64_t i = 0; i < count; ++i) halves[i] = to_bf16(floats[i]);
      }
    }
    const int64_t packed = leaf.packed + c - leaf.begin, used = pairs ? (count + 1) / 2 : round_up(count, 2);
    transpose_words(words, used, to + (pairs ? packed / 2 : packed) * kTileColumns);
  }
}

// One leaf of fp16 weights, as they are.
void pack_halves(const Rows& rows, const PackedMatrix::Leaf& leaf, uint16_t* to) {
  constexpr int64_t kChunk = 32;
  for (int64_t c = leaf.begin; c < leaf.end; c += kChunk) {
    const int64_t count = std::min(kChunk, leaf.end - c);
    uint16_t chunk[kChunk][kTileColumns] = {};
    for (size_t lane = 0; lane < rows.size(); ++lane) {
      const SourceRow& row = rows[lane];
      if (row.is_zero()) continue;
      CHECK(row.dtype == Dtype::kF16, "{} into fp16", dtype_name(row.dtype));
      const int64_t step = row.step != 0 ? row.step : int64_t{sizeof(uint16_t)};
      const std::byte* from = row.data + c * step;
      for (int64_t i = 0; i < count; ++i, from += step) std::memcpy(&chunk[i][lane], from, sizeof(uint16_t));
    }
    std::memcpy(to + (leaf.packed + c - leaf.begin) * kTileColumns, chunk,
                static_cast<size_t>(round_up(count, 2)) * sizeof chunk[0]);
  }
}

// Integers and scale of one group of one row.
bf16 read_group(const SourceRow& row, WeightType type, const PackedMatrix::Group& group, size_t group_index,
                int8_t* integers) {
  const auto count = static_cast<size_t>(group.end - group.begin);
  if (row.is_zero()) return {};
  if (!row.scales) {
    float floats[kMaxGroupColumns];
    read_floats(row, group.begin, {floats, count});
    return quantize_group(type, {floats, count}, integers);
  }
  if (type == WeightType::kInt8) {
    std::memcpy(integers, row.data + group.begin, count);
  } else {
    const auto* bytes = reinterpret_cast<const uint8_t*>(row.data) + group.begin / 2;
    for (size_t i = 0; i < count; ++i)
      integers[i] = static_cast<int8_t>((i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4) - 8);
  }
  bf16 scale;
  std::memcpy(&scale, row.scales + group_index * sizeof scale, sizeof scale);
  return scale;
}

void pack_integers(const Rows& rows, const PackedMatrix& matrix, std::byte* tile) {
  const WeightType type = matrix.type();
  auto* data = reinterpret_cast<uint8_t*>(tile);
  auto* scales = reinterpret_cast<bf16*>(tile + matrix.scales_offset());
  for (size_t g = 0; g < matrix.groups().size(); ++g) {
    const PackedMatrix::Group& group = matrix.groups()[g];
    uint8_t* to = data + matrix.bytes_of(group.packed);
    for (size_t lane = 0; lane < rows.size(); ++lane) {
      int8_t integers[kMaxGroupColumns] = {};  // columns that pad a group are zero
      scales[g * kTileColumns + lane] = read_group(rows[lane], type, group, g, integers);
      const int64_t padded = round_up(group.end - group.begin, column_alignment(type));
      uint8_t* column = to + lane * 4;
      if (type == WeightType::kInt8)
        for (int64_t i = 0; i < padded; i += 4, column += 4 * kTileColumns)
          for (int64_t j = 0; j < 4; ++j) column[j] = static_cast<uint8_t>(integers[i + j] + 128);
      else
        for (int64_t i = 0; i < padded; i += 8, column += 4 * kTileColumns)
          for (int64_t j = 0; j < 4; ++j)
            column[j] = static_cast<uint8_t>((integers[i + j] + 8) | (integers[i + j + 4] + 8) << 4);
    }
  }
}

// The numbers that groups of columns share, of one row. Nested scales are fp16 numbers, and scales keep their
// type, so nothing is rounded.
class GroupPacker {
 public:
  GroupPacker(const CodeLayout& layout, size_t lane, std::byte* tile)
      : c_(layout),
        lane_(static_cast<int64_t>(lane)),
        tile_(tile),
        till_next_(layout.scheme.groups_together) {
    if (c_.scheme.scale == ScaleType::kNested) till_next_ -= c_.first_group % c_.scheme.groups_together;
  }

  void pack(const SourceRow& row) {
    constexpr int64_t kAtOnce = 64;
    std::array<GroupNumbers, kAtOnce> numbers;
    for (int64_t first = 0; first < c_.groups; first += kAtOnce) {
      const auto count = static_cast<size_t>(std::min(kAtOnce, c_.groups - first));
      row.coded->read_groups(row.row, c_.first_group + first, std::span(numbers).first(count));
      for (size_t i = 0; i < count; ++i)
        if (c_.scheme.scale == ScaleType::kNested)
          put_nested(first + static_cast<int64_t>(i), numbers[i]);
        else
          put_plain(first + static_cast<int64_t>(i), numbers[i]);
    }
  }

 private:
  template <class T>
  void put(int64_t offset, int64_t index, const T value) {
    std::memcpy(tile_ + offset + (index * kTileColumns + lane_) * static_cast<int64_t>(sizeof value), &value,
                sizeof value);
  }

  void put_plain(int64_t i, const GroupNumbers& g) {
    switch (c_.scheme.scale) {
      case ScaleType::kFloat32:
        put(c_.scales, i, g.scale);
        break;
      case ScaleType::kBFloat16:
        put(c_.scales, i, to_bf16(g.scale));
        break;
      case ScaleType::kFloat16:
        put(c_.scales, i, half_of(g.scale));
        break;
      case ScaleType::kPowerOfTwo:
        put(c_.scales, i, code_of_power(g.scale));
        break;
      case ScaleType::kNested:
        break;
    }
    if (c_.scheme.zero_type == ZeroType::kStored) put(c_.zeros, i, static_cast<uint8_t>(g.zero));
    if (c_.scheme.zero_type == ZeroType::kMinimum) put(c_.minima, i, half_of(g.minimum));
  }

  // Groups come in their order. Those that share an outer scale have the same, so the first one's is written.
  void put_nested(int64_t i, const GroupNumbers& g) {
    const bool has_minimum = c_.scheme.zero_type == ZeroType::kMinimum;
    put(c_.scales, i, static_cast<int8_t>(g.scale_code));
    if (c_.scheme.zero_type == ZeroType::kStored) put(c_.zeros, i, static_cast<uint8_t>(g.zero));
    if (has_minimum) put(c_.minima, i, static_cast<int8_t>(g.minimum_code));
    if (is_first_) {
      put(c_.outer_scales, outer_, half_of(g.scale));
      if (has_minimum) put(c_.outer_minima, outer_, half_of(g.minimum));
    }
    is_first_ = --till_next_ == 0;
    if (!is_first_) return;
    ++outer_;
    till_next_ = c_.scheme.groups_together;
  }

  const CodeLayout& c_;
  const int64_t lane_;
  std::byte* const tile_;
  int64_t outer_ = 0, till_next_;  // groups left that share this outer scale
  bool is_first_ = true;
};

// A NaN among the codes of a group makes its scale NaN, as kernels know no NaN of codes.
void spoil_groups(const CodeLayout& c, size_t leaf, std::span<const uint8_t> codes, size_t lane,
                  std::byte* tile) {
  const auto is_nan = [](uint8_t code) { return (code & 127) == 127; };
  for (int64_t r = c.first_run[leaf], at = 0; r < c.first_run[leaf + 1]; ++r) {
    const CodeLayout::Run& run = c.runs[static_cast<size_t>(r)];
    const auto begin = codes.begin() + at;
    at += run.columns;
    if (!std::any_of(begin, begin + run.columns, is_nan)) continue;
    const bool is_wide = c.scheme.scale == ScaleType::kFloat32;
    const bool is_power = c.scheme.scale == ScaleType::kPowerOfTwo;
    const int64_t index = run.group * kTileColumns + static_cast<int64_t>(lane);
    const uint32_t nan = is_wide ? 0x7fc00000u : is_power ? 255u : 0x7fffu;  // bf16 and fp16 alike
    const int64_t size = is_wide ? 4 : is_power ? 1 : 2;
    std::memcpy(tile + c.scales + index * size, &nan, static_cast<size_t>(size));
  }
}

// A code of the row for every column of a leaf in a tile.
void order_codes(const CodeLayout& c, const PackedMatrix::Leaf& leaf, std::span<const uint8_t> own,
                 std::span<uint8_t> to) {
  std::fill(to.begin(), to.end(), uint8_t{0});
  if (c.columns.empty()) {
    std::copy(own.begin(), own.end(), to.begin());
    return;
  }
  for (size_t i = 0; i < to.size(); ++i) {
    const int32_t column = c.columns[static_cast<size_t>(leaf.packed) + i];
    if (column >= 0) to[i] = own[static_cast<size_t>(column - leaf.begin)];
  }
}

// Eight codes of 4 bits as their word (shift_of_nibble): every other code, then those between.
uint32_t word_of_nibbles(const uint8_t* codes) {
  uint64_t eight;
  std::memcpy(&eight, codes, sizeof eight);
  const auto every_other = [](uint64_t bytes) {
    bytes &= 0x00ff00ff00ff00ff;
    bytes |= bytes >> 12;
    return static_cast<uint32_t>((bytes & 0xff) | (bytes >> 24 & 0xff00));
  };
  return every_other(eight) | every_other(eight >> 8) << 16;
}

// Columns of a leaf for int8 inputs, of all rows side by side: lines of four columns of 8 bits, or of eight
// of 4.
void put_quads(std::span<const uint8_t> codes, size_t stride, size_t count, int64_t bits, std::byte* to) {
  const size_t line = bits == 8 ? 4 : 8;
  for (size_t i = 0; i < count; i += line)
    for (size_t lane = 0; lane < kTileColumns; ++lane, to += sizeof(uint32_t)) {
      const uint8_t* from = &codes[lane * stride + i];
      uint32_t word;
      std::memcpy(&word, from, sizeof word);
      if (bits == 4) {
        uint32_t high;
        std::memcpy(&high, from + 4, sizeof high);
        word |= high << 4;
      }
      std::memcpy(to, &word, sizeof word);
    }
}

// The same of 5 or 6 bits: lines of the lower 4 bits, then one of the upper bits (packed_matrix.h).
void put_planes(std::span<const uint8_t> codes, size_t stride, size_t count, const CodeLayout& c,
                std::byte* to) {
  const auto together = static_cast<size_t>(c.line_columns());
  const auto upper_bits = static_cast<int>(c.bits) - 4;
  for (size_t i = 0; i < count; i += together) {
    for (size_t lane = 0; lane < kTileColumns; ++lane) {
      std::byte* out = to + lane * sizeof(uint32_t);
      uint32_t upper = 0;
      for (size_t q = 0; q < together / 4; q += 2) {
        uint32_t two[2];
        std::memcpy(two, &codes[lane * stride + i + 4 * q], sizeof two);
        const uint32_t lower = (two[0] & 0x0f0f0f0f) | (two[1] & 0x0f0f0f0f) << 4;
        for (size_t side = 0; side < 2; ++side)
          upper |= (two[side] >> 4 & 0x03030303) << static_cast<int>(q + side) * upper_bits;
        std::memcpy(out, &lower, sizeof lower);
        out += kTileColumns * sizeof(uint32_t);
      }
      std::memcpy(out, &upper, sizeof upper);
    }
    to += static_cast<size_t>(c.bits) * together * kTileColumns / 8;
  }
}

// Columns [begin, begin + count) of a leaf in a tile, of all rows side by side. codes: of row `lane` from
// lane * stride on.
void put_codes(const CodeLayout& c, std::span<const uint8_t> codes, size_t stride, size_t count,
               std::byte* to) {
  if (c.activations == ActivationFormat::kInt8)
    return c.bits == 5 || c.bits == 6 ? put_planes(codes, stride, count, c, to)
                                      : put_quads(codes, stride, count, c.bits, to);
  if (code_bits(c.scheme.code) == 8) {
    for (size_t i = 0; i < count; i += 2)
      for (size_t lane = 0; lane < kTileColumns; ++lane, to += 2)
        std::memcpy(to, &codes[lane * stride + i], 2);
    return;
  }
  for (size_t i = 0; i < count; i += 8)
    for (size_t lane = 0; lane < kTileColumns; ++lane, to += sizeof(uint32_t)) {
      const uint32_t word = word_of_nibbles(&codes[lane * stride + i]);
      std::memcpy(to, &word, sizeof word);
    }
}

void pack_codes(const Rows& rows, const PackedMatrix& matrix, std::byte* tile) {
  const CodeLayout& c = *matrix.codes();
  for (size_t lane = 0; lane < rows.size(); ++lane)  // a row of zeros has scales of zero
    if (!rows[lane].is_zero()) GroupPacker(c, lane, tile).pack(rows[lane]);
  // So many columns of 16 rows stay in the first cache. With an order a leaf is read as a whole.
  constexpr int64_t kChunk = 512;
  std::vector<uint8_t> own, codes;
  for (size_t l = 0; l < matrix.leaves().size(); ++l) {
    const PackedMatrix::Leaf& leaf = matrix.leaves()[l];
    const bool is_whole = !c.columns.empty() || c.scheme.code == CodeType::kE4m3;
    const int64_t chunk = is_whole ? std::max<int64_t>(leaf.packed_size, 1) : kChunk;
    for (int64_t begin = 0; begin < leaf.packed_size; begin += chunk) {
      const auto count = static_cast<size_t>(std::min(chunk, leaf.packed_size - begin));
      codes.assign(count * kTileColumns, 0);
      for (size_t lane = 0; lane < rows.size(); ++lane) {
        const SourceRow& row = rows[lane];
        if (row.is_zero()) continue;
        const std::span<uint8_t> to = std::span(codes).subspan(lane * count, count);
        if (!is_whole) {  // what fills up the last run has no column
          const int64_t first = leaf.begin + begin, last = std::min(leaf.end, first + chunk);
          if (first < last)
            row.coded->read_codes(row.row, row.first + first, to.first(static_cast<size_t>(last - first)));
          continue;
        }
        own.resize(static_cast<size_t>(leaf.end - leaf.begin));
        row.coded->read_codes(row.row, row.first + leaf.begin, own);
        order_codes(c, leaf, own, to);
        if (c.scheme.code == CodeType::kE4m3) spoil_groups(c, l, to, lane, tile);
      }
      put_codes(c, codes, count, count, tile + matrix.bytes_of(leaf.packed + begin));
    }
  }
}

float number_at(const std::byte* from, Dtype dtype) {
  if (dtype == Dtype::kF32) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return dtype == Dtype::kBF16 ? to_float(bf16{bits}) : half_to_float(bits);
}

// Numbers of a transposed matrix.
void read_apart(const SourceRow& row, int64_t begin, std::span<float> to) {
  const std::byte* from = row.data + begin * row.step;
  for (float& value : to) {
    value = number_at(from, row.dtype);
    from += row.step;
  }
}

}  // namespace

void read_floats(const SourceRow& row, int64_t begin, std::span<float> to) {
  if (row.coded && row.step != 0) {
    for (size_t i = 0; i < to.size(); ++i) {
      const int64_t at = row.row + (begin + static_cast<int64_t>(i)) * row.step, k = row.coded->k();
      row.coded->read_weights(at / k, at % k, to.subspan(i, 1));
    }
    return;
  }
  if (row.coded) return row.coded->read_weights(row.row, row.first + begin, to);
  if (row.step != 0) return read_apart(row, begin, to);
  const std::byte* from = row.data + begin * dtype_bits(row.dtype) / 8;
  if (row.dtype == Dtype::kF32) {
    std::memcpy(to.data(), from, to.size_bytes());
    return;
  }
  CHECK(is_weight_dtype(row.dtype), "{} is no number format", dtype_name(row.dtype));
  uint16_t halves[kMaxGroupColumns];
  for (size_t done = 0; done < to.size(); done += kMaxGroupColumns, from += sizeof halves) {
    const auto part = to.subspan(done, std::min<size_t>(kMaxGroupColumns, to.size() - done));
    std::memcpy(halves, from, part.size() * sizeof(uint16_t));
    if (row.dtype == Dtype::kBF16)
      for (size_t i = 0; i < part.size(); ++i) part[i] = to_float(bf16{halves[i]});
    else
      for (size_t i = 0; i < part.size(); ++i) part[i] = half_to_float(halves[i]);
  }
}

void pack_tile(PackedMatrix& to, int64_t tile, const Rows& rows) {
  if (to.codes()) {
    for (const SourceRow& row : rows)
      CHECK(row.is_zero() || (row.coded && row.coded->scheme() == to.codes()->scheme), "{} into codes",
            dtype_name(row.dtype));
    return pack_codes(rows, to, to.tile(tile));
  }
  for (const SourceRow& row : rows)
    CHECK(!row.scales || row.dtype == (to.type() == WeightType::kInt8 ? Dtype::kI8 : Dtype::kU8),
          "{} into weight type {}", dtype_name(row.dtype), static_cast<int>(to.type()));
  if (is_quantized(to.type())) return pack_integers(rows, to, to.tile(tile));
  for (const PackedMatrix::Leaf& leaf : to.leaves())
    if (to.type() == WeightType::kFloat16)
      pack_halves(rows, leaf, reinterpret_cast<uint16_t*>(to.tile(tile)));
    else
      pack_words(rows, leaf, to.type() == WeightType::kBFloat16, reinterpret_cast<uint32_t*>(to.tile(tile)));
}

void read_row(const SourceRow& row, WeightType type, std::span<const int64_t> leaf_ends,
              std::span<float> to) {
  if (!is_quantized(type)) {
    read_floats(row, 0, to);
    if (type == WeightType::kBFloat16 && row.dtype != Dtype::kBF16)
      for (float& number : to) number = to_float(to_bf16(number));
    return;
  }
  int64_t leaf = 0;
  size_t index = 0;
  for (const int64_t end : leaf_ends) {
    for (PackedMatrix::Group group{.begin = leaf}; group.begin < end; group.begin = group.end, ++index) {
      group.end = std::min(end, group.begin + group_columns(type));
      int8_t integers[kMaxGroupColumns];
      const float scale = to_float(read_group(row, type, group, index, integers));
      for (int64_t i = group.begin; i < group.end; ++i)
        to[static_cast<size_t>(i)] = scale * static_cast<float>(integers[i - group.begin]);
    }
    leaf = end;
  }
}

}  // namespace outrider
