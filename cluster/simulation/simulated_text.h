// The text of a simulation consists of guess ranks: token k is the drafter's k-th guess for that position, 0
// its best. So a draft is all zeros, and its accepted length follows from the acceptance process alone.
#pragma once

#include "base/types.h"

namespace outrider {

constexpr TokenId kBestGuess{0};
constexpr int32_t kGuesses = 16;  // the vocabulary; the last one stands for all other tokens

}  // namespace outrider
