#include "model_files/weight_format.h"

#include <fmt/format.h>

#include <iterator>

namespace outrider {
namespace {

constexpr const char* kNames[]{"auto", "bf16", "int8", "int4", "fp8"};

}  // namespace

Result<WeightFormat> parse_weight_format(const std::string& flag, const std::string& name) {
  for (int i = 0; i < static_cast<int>(std::size(kNames)); ++i)
    if (name == kNames[i]) return static_cast<WeightFormat>(i);
  if (name == "q4_k" || name == "q6_k" || name == "q8_0")
    return invalid_argument(
        fmt::format("{} {}: `outrider quantize` writes such weights; here choose auto, bf16, int8, "
                    "int4 or fp8 (CUDA)",
                    flag, name));
  return invalid_argument(fmt::format("{} {}: choose auto, bf16, int8, int4 or fp8 (CUDA)", flag, name));
}

Result<ActivationFormat> parse_activation_format(const std::string& name) {
  if (name == "auto" || name == "int8") return ActivationFormat::kInt8;
  if (name == "bf16") return ActivationFormat::kBFloat16;
  return invalid_argument(fmt::format("--activation-format {}: choose auto, int8 or bf16", name));
}

const char* weight_format_name(WeightFormat format) { return kNames[static_cast<int>(format)]; }

}  // namespace outrider
