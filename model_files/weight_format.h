// How weights are held in memory, as --weight-format says it.
#pragma once

#include <cstdint>
#include <string>

#include "base/quant_scheme.h"
#include "base/status.h"

namespace outrider {

enum class WeightFormat : uint8_t {
  kAuto,  // as the files hold them: codes where quantised, bf16 if every matrix is bf16, else fp32
  kBFloat16,
  kInt8,
  kInt4,    // the matrices of the layers; embedding and head are int8
  kFloat8,  // e4m3; on CUDA devices only
};

constexpr bool is_quantized(WeightFormat format) {
  return format != WeightFormat::kAuto && format != WeightFormat::kBFloat16;
}

// An error names the flag.
Result<WeightFormat> parse_weight_format(const std::string& flag, const std::string& name);
const char* weight_format_name(WeightFormat format);

// --activation-format: auto, int8 or bf16. auto: int8, wherever weights are codes that are whole numbers.
Result<ActivationFormat> parse_activation_format(const std::string& name);

}  // namespace outrider
