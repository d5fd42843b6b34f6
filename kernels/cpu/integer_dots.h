// Exact products of int8 weights with quantised states: integers, so no order of the sums and no instruction
// set changes a bit. Internal to draft_head.cpp and tests.
#pragma once

#include <cstdint>

namespace outrider {

constexpr int64_t kDotLanes = 16;    // outputs of a tile
constexpr int64_t kQuadColumns = 4;  // columns that lie together
constexpr int kMaxDotStates = 4;     // at a time

// 255 * 127 for each column, and 128 * 127 to start from, stay below 2^31.
constexpr int64_t kMaxDotColumns = 32768;

// `tile` is [quad][16][4] of weight + 128, `states` [quad][2][n] words, columns 0 and 2 of state s in the
// halves of word [.][0][s], 1 and 3 in those of [.][1][s]; dots are [n][16].
using DotKernel = void (*)(const uint8_t* tile, int64_t quads, const uint32_t* states, int32_t* dots);
// For n = 1, 2 or 4 states. The dots begin as -128 * the sum of each state's codes.
DotKernel dot_kernel(int states);

}  // namespace outrider
