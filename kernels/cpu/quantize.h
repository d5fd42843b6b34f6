// Symmetric quantisation of weights: the one definition behind loading, `outrider quantize` and tests.
// Devices quantise by weight_codes.h, with the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/packed_matrix.h"

namespace outrider {

// Integers of up to kMaxGroupColumns weights that share one scale, which is returned: weight ~ integer *
// scale.
//   int8: [-127, 127], scale = the largest magnitude / 127, rounded up to bf16
//   int4: [-8, 7], scale = the weight of largest magnitude / -8, rounded to bf16: that weight uses the whole
//   range
//   fp8:  e4m3 codes, scale = the largest magnitude / 448, rounded up to bf16
// Every instruction set gives the same integers.
bf16 quantize_group(WeightType type, std::span<const float> weights, int8_t* integers);

}  // namespace outrider
