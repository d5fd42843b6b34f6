#include "kernels/cpu/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/log.h"

namespace outrider {
namespace {

constexpr int64_t kCacheLine = 64;

template <class T>
T read(const std::byte* tile, int64_t index) {
  T value;
  std::memcpy(&value, tile + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace

void PackedMatrix::add_leaves(const std::vector<int64_t>& leaf_ends, int64_t alignment) {
  CHECK(!leaf_ends.empty() && leaf_ends.back() == k_, "leaves must end at k={}", k_);
  int64_t begin = 0;
  for (int64_t end : leaf_ends) {
    CHECK(begin <= end && (end == k_ || end % 2 == 0), "a leaf of columns [{}, {}) of {}", begin, end, k_);
    const int64_t size = round_up(end - begin, alignment),
                  group = is_quantized(type_) ? group_columns(type_) : 0;
    leaves_.push_back({begin, end, packed_k_, size, static_cast<int64_t>(groups_.size())});
    for (int64_t i = 0; group > 0 && begin + i < end; i += group)
      groups_.push_back({begin + i, std::min(end, begin + i + group), packed_k_ + i});
    packed_k_ += size;
    begin = end;
  }
}

PackedMatrix::PackedMatrix(WeightType type, int64_t n, int64_t k, const std::vector<int64_t>& leaf_ends)
    : type_(type), n_(n), k_(k) {
  CHECK(type != WeightType::kCodes, "codes need a scheme");
  add_leaves(leaf_ends, column_alignment(type));
  const auto scale_bytes = static_cast<int64_t>(groups_.size() * kTileColumns * sizeof(bf16));
  tile_bytes_ = round_up(bytes_of(packed_k_) + scale_bytes, kCacheLine);
  data_ = Buffer<std::byte>(tiles() * tile_bytes_);
  if (type == WeightType::kInt4) plan_int4_codes();
}

void PackedMatrix::plan_int4_codes() {
  static_assert(group_columns(WeightType::kInt4) == kActivationGroup, "a group is a run");
  int4_codes_ = std::make_unique<CodeLayout>();
  CodeLayout& c = *int4_codes_;
  c.scheme = {.code = CodeType::kUnsigned4,
              .scale = ScaleType::kBFloat16,
              .zero = -1,
              .group = group_columns(WeightType::kInt4)};
  c.activations = ActivationFormat::kInt8;
  c.bits = weight_bits(WeightType::kInt4);
  c.scales = scales_offset();
  for (const Leaf& leaf : leaves_) {
    c.first_run.push_back(leaf.first_group);
    for (int64_t at = 0; at < leaf.packed_size; at += c.scheme.group)
      c.runs.push_back({.packed = static_cast<int32_t>(leaf.packed + at),
                        .columns = static_cast<int32_t>(std::min(c.scheme.group, leaf.packed_size - at)),
                        .group = static_cast<int32_t>(c.runs.size())});
  }
  c.first_run.push_back(static_cast<int64_t>(c.runs.size()));
}

PackedMatrix::PackedMatrix(const CodedColumns& columns, int64_t n, int64_t k,
                           const std::vector<int64_t>& leaf_ends)
    : type_(WeightType::kCodes), n_(n), k_(k), codes_(std::make_unique<CodeLayout>()) {
  codes_->scheme = columns.scheme;
  codes_->activations = columns.activations;
  codes_->bits = columns.bits != 0 && columns.activations == ActivationFormat::kInt8
                     ? columns.bits
                     : code_bits(columns.scheme.code);
  CHECK(columns.activations == ActivationFormat::kBFloat16 || takes_int8_inputs(columns.scheme.code),
        "int8 inputs for codes that are no whole numbers");
  add_leaves(leaf_ends, 1);
  plan_codes(columns);
  tile_bytes_ = round_up(codes_->end, kCacheLine);
  data_ = Buffer<std::byte>(tiles() * tile_bytes_);
}

// Places columns of one group side by side, so that the group's scale and zero are loaded once for the group.
void PackedMatrix::add_runs(Leaf& leaf, const CodedColumns& columns) {
  CodeLayout& c = *codes_;
  const int64_t line = c.line_columns();
  const size_t most = c.activations == ActivationFormat::kInt8 ? size_t{kActivationGroup} : SIZE_MAX;
  const auto group_of = [&](int64_t column) { return columns.group_of(column); };
  std::vector<int32_t> sorted(static_cast<size_t>(leaf.end - leaf.begin));
  std::iota(sorted.begin(), sorted.end(), static_cast<int32_t>(leaf.begin));
  if (!columns.order.empty())
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](int32_t a, int32_t b) { return group_of(a) < group_of(b); });
  leaf.packed = packed_k_;
  c.first_run.push_back(static_cast<int64_t>(c.runs.size()));
  for (size_t i = 0, next; i < sorted.size(); i = next) {
    const int64_t group = group_of(sorted[i]);
    for (next = i + 1; next < sorted.size() && next - i < most && group_of(sorted[next]) == group;) ++next;
    const auto count = static_cast<int64_t>(next - i), padded = round_up(count, line);
    c.runs.push_back({static_cast<int32_t>(packed_k_), static_cast<int32_t>(padded),
                      static_cast<int32_t>(group - c.first_group),
                      static_cast<int32_t>(group / c.scheme.groups_together - c.first_outer)});
    c.columns.insert(c.columns.end(), sorted.begin() + static_cast<ptrdiff_t>(i),
                     sorted.begin() + static_cast<ptrdiff_t>(next));
    c.columns.resize(static_cast<size_t>(packed_k_ + padded), -1);
    packed_k_ += padded;
  }
  leaf.packed_size = packed_k_ - leaf.packed;
}

void PackedMatrix::plan_codes(const CodedColumns& columns) {
  CodeLayout& c = *codes_;
  const QuantScheme& scheme = c.scheme;
  const bool is_ordered = !columns.order.empty();
  c.first_group = is_ordered || k_ == 0 ? 0 : columns.group_of(0);
  c.groups = k_ == 0 ? 0 : is_ordered ? columns.groups : columns.group_of(k_ - 1) - c.first_group + 1;
  c.first_outer = c.first_group / scheme.groups_together;
  c.outers = k_ == 0 ? 0 : (c.first_group + c.groups - 1) / scheme.groups_together - c.first_outer + 1;
  packed_k_ = 0;
  for (Leaf& leaf : leaves_) add_runs(leaf, columns);
  c.first_run.push_back(static_cast<int64_t>(c.runs.size()));
  const auto is_same = [&](size_t i) { return c.columns[i] == static_cast<int64_t>(i); };
  bool all_same = true;
  for (size_t i = 0; all_same && i < static_cast<size_t>(k_); ++i) all_same = is_same(i);
  if (all_same) c.columns = {};
  if (code_bits(scheme.code) == 4)
    for (size_t code = 0; code < c.numbers.size(); ++code)
      c.numbers[code] = to_bf16(scheme.code == CodeType::kE2m1
                                    ? e2m1_to_float(static_cast<uint8_t>(code % 16))
                                    : static_cast<float>(static_cast<int32_t>(code % 16) - c.number_base()))
                            .bits;
  const bool is_nested = scheme.scale == ScaleType::kNested,
             has_minima = scheme.zero_type == ZeroType::kMinimum;
  const int64_t scale_bytes = is_nested || scheme.scale == ScaleType::kPowerOfTwo ? 1
                              : scheme.scale == ScaleType::kFloat32               ? 4
                                                                                  : 2;
  const int64_t outer_bytes = is_nested ? kTileColumns * c.outers * 2 : 0;
  c.scales = bytes_of(packed_k_);
  c.zeros = c.scales + kTileColumns * c.groups * scale_bytes;
  c.minima = c.zeros + (scheme.zero_type == ZeroType::kStored ? kTileColumns * c.groups : 0);
  c.outer_scales = c.minima + (has_minima ? kTileColumns * c.groups * (is_nested ? 1 : 2) : 0);
  c.outer_minima = c.outer_scales + outer_bytes;
  c.end = c.outer_minima + (has_minima ? outer_bytes : 0);
}

void PackedMatrix::stack(PackedMatrix below) {
  CHECK(below.k_ == k_ && below.below_.empty(), "rows of {} columns below rows of {}", below.k_, k_);
  n_below_ += below.n_;
  below_.push_back(std::move(below));
}

size_t PackedMatrix::bytes() const {
  size_t sum = data_.bytes();
  for (const PackedMatrix& matrix : below_) sum += matrix.bytes();
  return sum;
}

namespace {

GroupNumbers group_numbers(const CodeLayout& c, const std::byte* tile, const CodeLayout::Run& run,
                           int64_t lane) {
  const int64_t at = run.group * kTileColumns + lane, outer = run.outer * kTileColumns + lane;
  const auto half = [&](int64_t offset, int64_t index) {
    return half_to_float(read<uint16_t>(tile + offset, index));
  };
  GroupNumbers g{.zero = c.scheme.zero};
  switch (c.scheme.scale) {
    case ScaleType::kFloat32:
      g.scale = read<float>(tile + c.scales, at);
      break;
    case ScaleType::kBFloat16:
      g.scale = to_float(read<bf16>(tile + c.scales, at));
      break;
    case ScaleType::kFloat16:
      g.scale = half(c.scales, at);
      break;
    case ScaleType::kPowerOfTwo:
      g.scale = power_of_code(read<uint8_t>(tile + c.scales, at));
      break;
    case ScaleType::kNested:
      g.scale = half(c.outer_scales, outer);
      g.scale_code = read<int8_t>(tile + c.scales, at);
      break;
  }
  if (c.scheme.zero_type == ZeroType::kStored) g.zero = read<uint8_t>(tile + c.zeros, at);
  if (c.scheme.zero_type == ZeroType::kMinimum) {
    const bool is_nested = c.scheme.scale == ScaleType::kNested;
    g.minimum = is_nested ? half(c.outer_minima, outer) : half(c.minima, at);
    g.minimum_code = is_nested ? read<int8_t>(tile + c.minima, at) : 1;
  }
  return g;
}

uint8_t read_code(const CodeLayout& c, const std::byte* tile, int64_t packed_column, int64_t lane) {
  if (c.activations == ActivationFormat::kInt8) {
    const int64_t in_quad = packed_column % 4;
    if (c.bits == 8) return read<uint8_t>(tile, (packed_column / 4 * kTileColumns + lane) * 4 + in_quad);
    const int64_t together = c.line_columns(), upper_bits = c.bits - 4;
    const std::byte* lines = tile + packed_column / together * together * kTileColumns * c.bits / 8;
    const int64_t in_lines = packed_column % together;
    const uint8_t pair = read<uint8_t>(lines, (in_lines / 8 * kTileColumns + lane) * 4 + in_quad);
    const auto lower = static_cast<uint8_t>(in_lines % 8 < 4 ? pair & 15 : pair >> 4);
    if (upper_bits == 0) return lower;
    const uint8_t upper = read<uint8_t>(lines, (together / 8 * kTileColumns + lane) * 4 + in_quad);
    const int own = upper >> in_lines / 4 * upper_bits & ((1 << upper_bits) - 1);
    return static_cast<uint8_t>(lower | own << 4);
  }
  if (code_bits(c.scheme.code) == 8)
    return read<uint8_t>(tile, (packed_column / 2 * kTileColumns + lane) * 2 + packed_column % 2);
  const uint32_t word = read<uint32_t>(tile, packed_column / 8 * kTileColumns + lane);
  return static_cast<uint8_t>(word >> shift_of_nibble(packed_column) & 15);
}

}  // namespace

void PackedMatrix::copy_codes(int64_t row, std::span<float> to) const {
  const std::byte* data = tile(row / kTileColumns);
  const int64_t lane = row % kTileColumns;
  for (const CodeLayout::Run& run : codes_->runs) {
    const GroupNumbers numbers = group_numbers(*codes_, data, run, lane);
    for (int64_t i = run.packed; i < run.packed + run.columns; ++i) {
      const int64_t column = codes_->columns.empty() ? i : codes_->columns[static_cast<size_t>(i)];
      if (column < 0 || column >= k_) continue;
      to[static_cast<size_t>(column)] =
          weight_of_code(codes_->scheme, read_code(*codes_, data, i, lane), numbers);
    }
  }
}

float PackedMatrix::at(int64_t row, int64_t column) const {
  if (row >= n_) {
    row -= n_;
    for (const PackedMatrix& matrix : below_) {
      if (row < matrix.n_) return matrix.at(row, column);
      row -= matrix.n_;
    }
    CHECK(false, "row {} below {}", row, n());
  }
  if (codes_) {
    std::vector<float> whole(static_cast<size_t>(k_));
    copy_codes(row, whole);
    return whole[static_cast<size_t>(column)];
  }
  const std::byte* data = tile(row / kTileColumns);
  const int64_t lane = row % kTileColumns;
  const auto leaf =
      std::find_if(leaves_.begin(), leaves_.end(), [&](const Leaf& l) { return column < l.end; });
  const int64_t in_leaf = column - leaf->begin, at = leaf->packed + in_leaf;
  if (type_ == WeightType::kFloat32) return read<float>(data, at * kTileColumns + lane);
  if (type_ == WeightType::kFloat16) return half_to_float(read<uint16_t>(data, at * kTileColumns + lane));
  if (type_ == WeightType::kBFloat16)
    return to_float(read<bf16>(data, at / 2 * 2 * kTileColumns + lane * 2 + at % 2));
  const int64_t group = leaf->first_group + in_leaf / group_columns(type_);
  const float scale = to_float(read<bf16>(data + scales_offset(), group * kTileColumns + lane));
  if (type_ == WeightType::kInt8)
    return scale *
           static_cast<float>(read<uint8_t>(data, at / 4 * 4 * kTileColumns + lane * 4 + at % 4) - 128);
  const int pair = read<uint8_t>(data, at / 8 * 4 * kTileColumns + lane * 4 + at % 4);
  return scale * static_cast<float>((at % 8 < 4 ? pair & 15 : pair >> 4) - 8);
}

void PackedMatrix::copy_row(int64_t row, std::span<float> to) const {
  if (codes_ && row < n_) return copy_codes(row, to);
  for (size_t i = 0; i < to.size(); ++i) to[i] = at(row, static_cast<int64_t>(i));
}

}  // namespace outrider
