// Experts in MXFP4, as gpt-oss publishes them (OCP Microscaling Formats 1.0): of a tensor NAME of matrices
// [rows, k], one for each expert,
//   NAME_blocks  U8 [experts, rows, k / 32, 16]  column 2j of a block in the low half of byte j, column 2j +
//   1 in
//                                                the high half
//   NAME_scales  U8 [experts, rows, k / 32]      of each block, a power of two
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "model_files/coded_matrix.h"
#include "model_files/quantization_config.h"
#include "model_files/safetensors.h"

namespace outrider {

inline constexpr const char* kMxfp4Blocks = "_blocks";

// Rows first, first + step, ... of one expert.
struct RowsOfExpert {
  int64_t experts = 0, rows = 0;  // of the tensor
  int64_t expert = 0, first = 0, step = 1;
};

// Errors name file and tensor.
Result<std::shared_ptr<const CodedMatrix>> find_mxfp4(const TensorFiles& files,
                                                      const QuantizationConfig& config,
                                                      const std::string& name, const RowsOfExpert& of,
                                                      int64_t k);

}  // namespace outrider
