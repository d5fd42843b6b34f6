// Numbers to blocks of GGUF (gguf_codes.h reads them). But for Q8_0, scales are searched for: of several
// candidates the one with the least squared error, weighted by the numbers' size, wins, as K types are made
// elsewhere. The same numbers give the same bytes on every machine.
//   Q4_K  groups of 32 of 4-bit codes, with a 6-bit scale and a 6-bit minimum each; 4.5 bits a number
//   Q5_K  the same of 5-bit codes; 5.5 bits
//   Q6_K  groups of 16 of 6-bit codes, with an 8-bit scale each; 6.56 bits
//   Q5_0  groups of 32 of 5-bit codes, with an fp16 scale each; 5.5 bits
//   Q8_0  groups of 32 of 8-bit codes, with an fp16 scale each; 8.5 bits
#pragma once

#include <cstddef>
#include <span>

#include "model_files/dtype.h"

namespace outrider {

// Whether quantize_blocks() writes them.
constexpr bool can_quantize_to(Dtype type) {
  return type == Dtype::kQ4K || type == Dtype::kQ5K || type == Dtype::kQ6K || type == Dtype::kQ5_0 ||
         type == Dtype::kQ8_0;
}

// `numbers` are finite and whole blocks of the type; `to` has room for them. importance: how much the square
// of each number's error counts, never negative; empty: all alike. Q8_0 ignores it.
void quantize_blocks(Dtype type, std::span<const float> numbers, std::byte* to,
                     std::span<const float> importance = {});

}  // namespace outrider
