// The draft distribution of one token as the hidden state it is computed from: every owner of the draft
// model's output head (model/draft_head.h) computes the same integer weights from it.
#pragma once

#include <cstdint>
#include <vector>

namespace outrider {

constexpr int kMinHiddenBits = 3, kMaxHiddenBits = 7;

// Element i of the hidden state is codes[i] * scale. Codes are odd: levels lie half a step on either side of
// zero.
struct HiddenRow {
  float scale = 0;            // half a step; a bfloat16's value
  float max = 0;              // the largest processed logit: weights are relative to it
  std::vector<int8_t> codes;  // [hidden size]
};

}  // namespace outrider
