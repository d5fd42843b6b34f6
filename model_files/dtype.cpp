#include "model_files/dtype.h"

#include <array>

namespace outrider {
namespace {

struct Row {
  Dtype dtype;
  std::string_view name;  // of the safetensors format
  int bits;
  DtypeBlock block = {};  // of GGUF
};

// In the order of the enum. Names and sizes: safetensors/src/tensor.rs, release 0.7; blocks of GGUF: enum
// ggml_type and gguf/constants.py, release 0.19.
constexpr std::array kRows = {
    Row{Dtype::kF32, "F32", 32},
    Row{Dtype::kBF16, "BF16", 16},
    Row{Dtype::kF16, "F16", 16},
    Row{Dtype::kF64, "F64", 64},
    Row{Dtype::kI64, "I64", 64},
    Row{Dtype::kI32, "I32", 32},
    Row{Dtype::kI16, "I16", 16},
    Row{Dtype::kI8, "I8", 8},
    Row{Dtype::kU64, "U64", 64},
    Row{Dtype::kU32, "U32", 32},
    Row{Dtype::kU16, "U16", 16},
    Row{Dtype::kU8, "U8", 8},
    Row{Dtype::kBool, "BOOL", 8},
    Row{Dtype::kC64, "C64", 64},
    Row{Dtype::kF8E4M3, "F8_E4M3", 8},
    Row{Dtype::kF8E5M2, "F8_E5M2", 8},
    Row{Dtype::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    Row{Dtype::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    Row{Dtype::kF8E8M0, "F8_E8M0", 8},
    Row{Dtype::kF6E2M3, "F6_E2M3", 6},
    Row{Dtype::kF6E3M2, "F6_E3M2", 6},
    Row{Dtype::kF4, "F4", 4},
    Row{Dtype::kQ4_0, "Q4_0", 0, {32, 18}},
    Row{Dtype::kQ4_1, "Q4_1", 0, {32, 20}},
    Row{Dtype::kQ5_0, "Q5_0", 0, {32, 22}},
    Row{Dtype::kQ5_1, "Q5_1", 0, {32, 24}},
    Row{Dtype::kQ8_0, "Q8_0", 0, {32, 34}},
    Row{Dtype::kQ2K, "Q2_K", 0, {256, 84}},
    Row{Dtype::kQ3K, "Q3_K", 0, {256, 110}},
    Row{Dtype::kQ4K, "Q4_K", 0, {256, 144}},
    Row{Dtype::kQ5K, "Q5_K", 0, {256, 176}},
    Row{Dtype::kQ6K, "Q6_K", 0, {256, 210}},
    Row{Dtype::kIQ2XXS, "IQ2_XXS", 0, {256, 66}},
    Row{Dtype::kIQ2XS, "IQ2_XS", 0, {256, 74}},
    Row{Dtype::kIQ3XXS, "IQ3_XXS", 0, {256, 98}},
    Row{Dtype::kIQ1S, "IQ1_S", 0, {256, 50}},
    Row{Dtype::kIQ4NL, "IQ4_NL", 0, {32, 18}},
    Row{Dtype::kIQ3S, "IQ3_S", 0, {256, 110}},
    Row{Dtype::kIQ2S, "IQ2_S", 0, {256, 82}},
    Row{Dtype::kIQ4XS, "IQ4_XS", 0, {256, 136}},
    Row{Dtype::kIQ1M, "IQ1_M", 0, {256, 56}},
    Row{Dtype::kTQ1_0, "TQ1_0", 0, {256, 54}},
    Row{Dtype::kTQ2_0, "TQ2_0", 0, {256, 66}},
    Row{Dtype::kMXFP4, "MXFP4", 0, {32, 17}},
    Row{Dtype::kNVFP4, "NVFP4", 0, {64, 36}},
};
static_assert(kRows.size() == static_cast<size_t>(Dtype::kNVFP4) + 1);
static_assert([] {
  for (size_t i = 0; i < kRows.size(); ++i)
    if (kRows[i].dtype != static_cast<Dtype>(i)) return false;
  return true;
}());

}  // namespace

int dtype_bits(Dtype dtype) { return kRows[static_cast<size_t>(dtype)].bits; }
std::string_view dtype_name(Dtype dtype) { return kRows[static_cast<size_t>(dtype)].name; }

std::optional<Dtype> dtype_from_safetensors(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name && row.bits > 0) return row.dtype;
  return std::nullopt;
}

// Layouts: files/gguf_codes.cpp.
DtypeBlock dtype_block(Dtype dtype) {
  const Row& row = kRows[static_cast<size_t>(dtype)];
  return row.bits == 0 ? row.block : DtypeBlock{1, row.bits / 8};
}

std::optional<Dtype> dtype_from_torch(std::string_view name) {
  constexpr std::string_view kPrefix = "torch.";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  if (name == "float32" || name == "float") return Dtype::kF32;
  if (name == "bfloat16") return Dtype::kBF16;
  if (name == "float16" || name == "half") return Dtype::kF16;
  if (name == "float64" || name == "double") return Dtype::kF64;
  return std::nullopt;
}

}  // namespace outrider
