// How weights are held in memory, as --weight-format says it.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace outrider {

enum class WeightFormat : uint8_t {
  kAuto,  // as the files hold them: int8 or int4 where quantised, bf16 if every matrix is bf16, else fp32
  kBFloat16,
  kInt8,
  kInt4,  // the matrices of the layers; embedding and head are int8
};

constexpr bool is_integer(WeightFormat format) {
  return format == WeightFormat::kInt8 || format == WeightFormat::kInt4;
}

// An error names the flag.
Result<WeightFormat> parse_weight_format(const std::string& flag, const std::string& name);
const char* weight_format_name(WeightFormat format);

}  // namespace outrider
