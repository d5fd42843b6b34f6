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

PackedMatrix::PackedMatrix(WeightType type, int64_t n, int64_t k, const std::vector<int64_t>& leaf_ends)
    : type_(type), n_(n), k_(k) {
  CHECK(!leaf_ends.empty() && leaf_ends.back() == k, "leaves must end at k={}", k);
  const int64_t group = group_columns(type);
  int64_t begin = 0;
  for (int64_t end : leaf_ends) {
    CHECK(begin <= end && (end == k || end % 2 == 0), "a leaf of columns [{}, {}) of {}", begin, end, k);
    const int64_t size = round_up(end - begin, column_alignment(type));
    leaves_.push_back({begin, end, packed_k_, size, static_cast<int64_t>(groups_.size())});
    for (int64_t i = 0; group > 0 && begin + i < end; i += group)
      groups_.push_back({begin + i, std::min(end, begin + i + group), packed_k_ + i});
    packed_k_ += size;
    begin = end;
  }
  const auto scale_bytes = static_cast<int64_t>(groups_.size() * kTileColumns * sizeof(bf16));
  tile_bytes_ = round_up(bytes_of(packed_k_) + scale_bytes, kCacheLine);
  data_ = Buffer<std::byte>(tiles() * tile_bytes_);
}

float PackedMatrix::at(int64_t row, int64_t column) const {
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
  for (size_t i = 0; i < to.size(); ++i) to[i] = at(row, static_cast<int64_t>(i));
}

}  // namespace outrider
