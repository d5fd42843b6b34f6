// Matrices of GGUF blocks as codes. Of a block, little endian, with fp16 numbers d and m:
//   Q8_0  32  d, 32 x int8                             d * q
//   Q4_0  32  d, 16 bytes: low halves 0..15, then high  d * (q - 8)
//   Q4_K 256  d, m, 12 bytes of 6-bit scales and minima of eight groups of 32, 128 bytes: of every 32 the low
//             halves are one group, the high ones the next      d * scale * q - m * minimum
//   Q6_K 256  128 bytes of low halves, 64 of upper two bits, int8 scales of sixteen groups of 16, d
//                                                       d * scale * (q - 32)
#pragma once

#include <memory>

#include "transformer/files/coded_matrix.h"

namespace outrider {

constexpr bool is_gguf_block(Dtype dtype) { return dtype >= Dtype::kQ8_0; }

// The tensor is a matrix of such blocks.
std::shared_ptr<const CodedMatrix> gguf_codes(const TensorInfo& tensor);

}  // namespace outrider
