// Tensor types of GGUF: one table of what llama.cpp writes, and what becomes of each here. A block holds the
// codes of neighbouring columns of a row and the numbers that they share; the layouts are in gguf_codes.cpp.
// Codes stay in 4 bits where they have 4 bits or fewer and are whole numbers, and are bytes elsewhere; bits()
// says where 5 or 6 bits of the byte suffice. Types
// whose codes name entries of a codebook (IQ1 to IQ4) become the entries' integers while a file is loaded.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "model_files/coded_matrix.h"

namespace outrider {

struct GgufType {
  uint32_t number;  // of enum ggml_type
  Dtype dtype;
  QuantScheme scheme;  // of a matrix of such blocks
  // Codes of a whole block, a byte each.
  void (*codes)(const uint8_t* block, uint8_t* to);
  // The numbers of groups [first, first + to.size()), numbered within the block.
  void (*groups)(const uint8_t* block, int64_t first, std::span<GroupNumbers> to);
};

std::span<const GgufType> gguf_block_types();

constexpr bool is_gguf_block(Dtype dtype) { return dtype >= Dtype::kQ4_0; }

// The tensor is a matrix of such blocks.
std::shared_ptr<const CodedMatrix> gguf_codes(const TensorInfo& tensor);

}  // namespace outrider
