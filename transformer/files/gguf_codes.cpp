#include "transformer/files/gguf_codes.h"

#include <algorithm>
#include <cstring>

#include "base/bfloat16.h"
#include "base/log.h"

namespace outrider {
namespace {

QuantScheme scheme_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kQ8_0:
      return {.code = CodeType::kUnsigned8, .scale = ScaleType::kFloat16, .zero = 128, .group = 32};
    case Dtype::kQ4_0:
      return {.code = CodeType::kUnsigned4, .scale = ScaleType::kFloat16, .zero = 8, .group = 32};
    case Dtype::kQ4K:
      return {.code = CodeType::kUnsigned4,
              .zero_type = ZeroType::kMinimum,
              .scale = ScaleType::kNested,
              .group = 32,
              .groups_together = 8};
    case Dtype::kQ6K:
      return {.code = CodeType::kUnsigned8,
              .scale = ScaleType::kNested,
              .zero = 32,
              .group = 16,
              .groups_together = 16};
    default:
      CHECK(false, "{} is no block", dtype_name(dtype));
      return {};
  }
}

class BlockCodes final : public CodedMatrix {
 public:
  explicit BlockCodes(const TensorInfo& tensor)
      : CodedMatrix("GGUF " + std::string(dtype_name(tensor.dtype)), scheme_of(tensor.dtype), tensor.shape[0],
                    tensor.shape[1], {&tensor}),
        tensor_(tensor),
        block_(dtype_block(tensor.dtype)) {}

  void read_codes(int64_t row, int64_t begin, std::span<uint8_t> to) const override {
    for (size_t i = 0; i < to.size();) {
      const int64_t column = begin + static_cast<int64_t>(i);
      const uint8_t* block = block_at(row, column);
      const int64_t first = column % block_.elements;
      const size_t count = std::min(to.size() - i, static_cast<size_t>(block_.elements - first));
      for (size_t j = 0; j < count; ++j) to[i + j] = code_of(block, first + static_cast<int64_t>(j));
      i += count;
    }
  }

  GroupNumbers group(int64_t row, int64_t group) const override {
    const uint8_t* block = block_at(row, group * scheme_.group);
    const int64_t g = group % scheme_.groups_together;
    switch (tensor_.dtype) {
      case Dtype::kQ4K: {
        const auto [scale, minimum] = scale_and_minimum(block + 4, g);
        return {.scale = half_at(block),
                .scale_code = scale,
                .minimum = half_at(block + 2),
                .minimum_code = minimum};
      }
      case Dtype::kQ6K:
        return {.scale = half_at(block + 208),
                .scale_code = static_cast<int8_t>(block[192 + g]),
                .zero = scheme_.zero};
      default:
        return {.scale = half_at(block), .zero = scheme_.zero};
    }
  }

 private:
  static float half_at(const uint8_t* bytes) {
    return half_to_float(static_cast<uint16_t>(bytes[0] | bytes[1] << 8));
  }
  // Of eight groups: 6 bits each; those of the last four are in two pieces.
  static std::pair<int32_t, int32_t> scale_and_minimum(const uint8_t* s, int64_t g) {
    if (g < 4) return {s[g] & 63, s[g + 4] & 63};
    return {(s[g + 4] & 15) | s[g - 4] >> 6 << 4, s[g + 4] >> 4 | s[g] >> 6 << 4};
  }
  uint8_t code_of(const uint8_t* block, int64_t i) const {
    switch (tensor_.dtype) {
      case Dtype::kQ8_0:
        return block[2 + i] ^ 0x80;
      case Dtype::kQ4_0:
        return i < 16 ? block[2 + i] & 15 : block[2 + i - 16] >> 4;
      case Dtype::kQ4K: {
        const uint8_t pair = block[16 + i / 64 * 32 + i % 32];
        return i % 64 < 32 ? pair & 15 : pair >> 4;
      }
      default: {  // Q6_K: each half of 128 has 64 bytes of low halves and 32 of upper bits
        const int64_t half = i / 128, in_half = i % 128, quarter = in_half / 32, l = in_half % 32;
        const uint8_t low = block[half * 64 + quarter % 2 * 32 + l], upper = block[128 + half * 32 + l];
        return static_cast<uint8_t>((quarter < 2 ? low & 15 : low >> 4) | (upper >> 2 * quarter & 3) << 4);
      }
    }
  }
  const uint8_t* block_at(int64_t row, int64_t column) const {
    return reinterpret_cast<const uint8_t*>(tensor_.data.data()) +
           (stored_row(tensor_, row) * (k_ / block_.elements) + column / block_.elements) * block_.bytes;
  }

  const TensorInfo& tensor_;
  DtypeBlock block_;
};

}  // namespace

std::shared_ptr<const CodedMatrix> gguf_codes(const TensorInfo& tensor) {
  return std::make_shared<BlockCodes>(tensor);
}

}  // namespace outrider
