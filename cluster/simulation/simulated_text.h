// The text of a simulation is written in guesses: token k is the drafter's k-th for that position, 0 its
// best. So a draft is all zeros, and how far it is right follows from the acceptance process alone.
#pragma once

#include "base/types.h"

namespace outrider {

constexpr TokenId kBestGuess{0};
constexpr int32_t kGuesses = 16;  // the vocabulary; the last one stands for whatever was not guessed

}  // namespace outrider
