#include "transformer/ops/cpu/packed_matrix.h"

#include <algorithm>
#include <cstring>

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
}

PackedMatrix::PackedMatrix(const CodedColumns& columns, int64_t n, int64_t k,
                           const std::vector<int64_t>& leaf_ends)
    : type_(WeightType::kCodes), n_(n), k_(k), codes_(std::make_unique<CodeLayout>()) {
  codes_->scheme = columns.scheme;
  add_leaves(leaf_ends, codes_->word_columns());
  plan_codes(columns);
  tile_bytes_ = round_up(codes_->end, kCacheLine);
  data_ = Buffer<std::byte>(tiles() * tile_bytes_);
}

void PackedMatrix::plan_codes(const CodedColumns& columns) {
  CodeLayout& c = *codes_;
  const QuantScheme& scheme = c.scheme;
  const auto group_of = [&](int64_t column) {
    return columns.order.empty() ? (columns.first + column) / scheme.group
                                 : int64_t{columns.order[static_cast<size_t>(columns.first + column)]};
  };
  const bool is_ordered = !columns.order.empty();
  c.first_group = is_ordered || k_ == 0 ? 0 : group_of(0);
  c.groups = k_ == 0 ? 0 : is_ordered ? columns.groups : group_of(k_ - 1) - c.first_group + 1;
  c.first_outer = c.first_group / scheme.groups_together;
  c.outers = k_ == 0 ? 0 : (c.first_group + c.groups - 1) / scheme.groups_together - c.first_outer + 1;
  for (const Leaf& leaf : leaves_) {
    c.first_run.push_back(static_cast<int64_t>(c.runs.size()));
    for (int64_t column = leaf.begin, next; column < leaf.end; column = next) {
      const int64_t group = group_of(column);
      for (next = column + 1; next < leaf.end && group_of(next) == group;) ++next;
      c.runs.push_back({static_cast<int32_t>(column - leaf.begin), static_cast<int32_t>(next - column),
                        static_cast<int32_t>(group - c.first_group),
                        static_cast<int32_t>(group / scheme.groups_together - c.first_outer)});
    }
  }
  c.first_run.push_back(static_cast<int64_t>(c.runs.size()));
  const bool is_nested = scheme.scale == ScaleType::kNested,
             has_minima = scheme.zero_type == ZeroType::kMinimum;
  const int64_t scale_bytes = is_nested || scheme.scale == ScaleType::kPowerOfTwo ? 1
                              : scheme.scale == ScaleType::kFloat32               ? 4
                                                                                  : 2;
  const int64_t outer_bytes = is_nested ? kTileColumns * c.outers * 2 : 0;
  c.scales = bytes_of(packed_k_);
  c.zeros = c.scales + kTileColumns * c.groups * scale_bytes;
  c.minima = c.zeros + (scheme.zero_type == ZeroType::kStored ? kTileColumns * c.groups : 0);
  c.outer_scales = c.minima + (has_minima ? kTileColumns * c.groups : 0);
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
    g.minimum = half(c.outer_minima, outer);
    g.minimum_code = read<int8_t>(tile + c.minima, at);
  }
  return g;
}

uint8_t read_code(const CodeLayout& c, const std::byte* tile, int64_t packed_column, int64_t lane) {
  const int64_t per_word = c.word_columns(), bits = code_bits(c.scheme.code);
  const uint32_t word = read<uint32_t>(tile, packed_column / per_word * kTileColumns + lane);
  return static_cast<uint8_t>(word >> (packed_column % per_word * bits) & ((1u << bits) - 1));
}

}  // namespace

void PackedMatrix::copy_codes(int64_t row, std::span<float> to) const {
  const std::byte* data = tile(row / kTileColumns);
  const int64_t lane = row % kTileColumns;
  for (size_t l = 0; l < leaves_.size(); ++l)
    for (int64_t r = codes_->first_run[l]; r < codes_->first_run[l + 1]; ++r) {
      const CodeLayout::Run& run = codes_->runs[static_cast<size_t>(r)];
      const GroupNumbers numbers = group_numbers(*codes_, data, run, lane);
      for (int64_t i = run.begin; i < run.begin + run.count; ++i)
        to[static_cast<size_t>(leaves_[l].begin + i)] =
            weight_of_code(codes_->scheme, read_code(*codes_, data, leaves_[l].packed + i, lane), numbers);
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
