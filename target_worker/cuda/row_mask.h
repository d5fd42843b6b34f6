// The tokens that a grammar allows at a row, for kernels: this rank's part of a TokenSet, with ids counted
// from the slice's first.
#pragma once

#include <cstdint>

#include "base/shared_code.h"

namespace outrider::cuda {

struct RowMask {
  enum class Form : int32_t { kOnly, kAllBut, kBits };
  int32_t row = 0;  // of the pass
  Form form = Form::kAllBut;
  int32_t words = 0;       // how many ids, ascending, or words of bits
  int32_t skipped = 0;     // kBits: bits of the first word that belong to ids in front of the slice
  int64_t first_word = 0;  // in VerifyBatch::mask_words
};

// Where `i` stands among ascending `ids`, or would stand.
OUTRIDER_SHARED_CODE inline int32_t first_not_below(const uint32_t* ids, int32_t count, uint32_t i) {
  int32_t low = 0, high = count;
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    if (ids[middle] < i)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Whether token `i` of the slice may come next. `words`: of this mask.
OUTRIDER_SHARED_CODE inline bool is_allowed(const RowMask& mask, const uint32_t* words, int32_t i) {
  if (mask.form == RowMask::Form::kBits) {
    const int32_t bit = i + mask.skipped;
    return (words[bit / 32] >> (bit % 32) & 1) != 0;
  }
  const int32_t at = first_not_below(words, mask.words, static_cast<uint32_t>(i));
  const bool is_listed = at < mask.words && words[at] == static_cast<uint32_t>(i);
  return is_listed == (mask.form == RowMask::Form::kOnly);
}

}  // namespace outrider::cuda
