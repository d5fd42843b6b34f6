// Element types that a model file may declare. Only fp32, fp16 and bf16 are accepted as plain weights.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace outrider {

// Every type of the safetensors format, then blocks of GGUF; the order is ours and is never stored.
enum class Dtype : uint8_t {
  kF32,
  kBF16,
  kF16,
  kF64,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
  kC64,
  kF8E4M3,
  kF8E5M2,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kF8E8M0,
  kF6E2M3,
  kF6E3M2,
  kF4,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  kIQ2XXS,
  kIQ2XS,
  kIQ3XXS,
  kIQ1S,
  kIQ4NL,
  kIQ3S,
  kIQ2S,
  kIQ4XS,
  kIQ1M,
  kTQ1_0,
  kTQ2_0,
  kMXFP4,
  kNVFP4,
};

constexpr bool is_weight_dtype(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kBF16 || dtype == Dtype::kF16;
}

int dtype_bits(Dtype dtype);  // of one element; 4 and 6 exist, and 0 where elements come in blocks
// Neighbouring elements of a row that are stored together: one, or a block of GGUF.
struct DtypeBlock {
  int64_t elements = 1, bytes = 0;
};
DtypeBlock dtype_block(Dtype dtype);                                 // not of types with fewer than 8 bits
std::string_view dtype_name(Dtype dtype);                            // as safetensors writes it: "BF16"
std::optional<Dtype> dtype_from_safetensors(std::string_view name);  // "BF16"
std::optional<Dtype> dtype_from_torch(std::string_view name);        // "bfloat16", "torch.bfloat16"

}  // namespace outrider
