// Finds the tensors that hold a matrix in the formats of published quantised checkpoints, and reads them:
//   GPTQ                X.qweight I32 [k * bits / 32, n], X.qzeros I32 [groups, n * bits / 32], X.scales
//                       [groups, n], and X.g_idx I32 [k], the group of every column
//   AWQ (gemm)          X.qweight I32 [k, n / 8], X.qzeros I32 [groups, n / 8], X.scales [groups, n]
//   compressed-tensors  X.weight_packed I32 [n, k * bits / 32] or X.weight I8 or F8_E4M3 [n, k],
//   X.weight_scale,
//                       X.weight_zero_point, X.weight_g_idx
//   block fp8           X.weight F8_E4M3 [n, k], X.weight_scale_inv [n / block rows, k / block columns]
// The lowest bits of a word come first, but in AWQ, where they hold columns 0 2 4 6 1 3 5 7.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "model_files/coded_matrix.h"
#include "model_files/quantization_config.h"
#include "model_files/safetensors.h"

namespace outrider {

// The matrix [n, k] of module X ("model.layers.0.self_attn.q_proj"); null where it is not quantised. Errors
// name file and tensor.
Result<std::shared_ptr<const CodedMatrix>> find_published_codes(const TensorFiles& files,
                                                                const QuantizationConfig& config,
                                                                const std::string& module, int64_t n,
                                                                int64_t k);

}  // namespace outrider
