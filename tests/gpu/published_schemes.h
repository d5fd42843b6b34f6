// One scheme of each kind that published checkpoints are quantised in, by what people call it.
#pragma once

#include "base/quant_scheme.h"

namespace outrider::gpu {

struct PublishedScheme {
  const char* name;
  QuantScheme scheme;
};
inline constexpr PublishedScheme kPublished[]{
    {"GPTQ and AWQ, 4 bits", {.zero_type = ZeroType::kStored, .scale = ScaleType::kFloat16, .group = 128}},
    {"fp8 in blocks", {.code = CodeType::kE4m3, .group = 128}},
    {"MXFP4", {.code = CodeType::kE2m1, .scale = ScaleType::kPowerOfTwo, .group = 32}},
    {"Q8_0", {.code = CodeType::kUnsigned8, .scale = ScaleType::kFloat16, .zero = 128, .group = 32}},
    {"Q4_K",
     {.zero_type = ZeroType::kMinimum, .scale = ScaleType::kNested, .group = 32, .groups_together = 8}},
    {"Q6_K",
     {.code = CodeType::kUnsigned8,
      .scale = ScaleType::kNested,
      .zero = 32,
      .group = 16,
      .groups_together = 16}}};

}  // namespace outrider::gpu
