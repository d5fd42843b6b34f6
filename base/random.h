// Counter-based random draws: Philox4x32-10 (philox.h). There is no generator state:
// a draw is a pure function of (request seed, position, round, purpose, index), so batching, rank count,
// retries and restarts cannot change it. Layout of key and counter: see draw_block.
#pragma once

#include <array>
#include <cstdint>

#include "base/types.h"

namespace outrider {

// The use of a draw. Streams of different purposes are disjoint; the numbers are part of the format.
enum class Purpose : uint32_t {
  kGumbel = 0,  // noise shared by draft and target; round is 0
  kDraft = 1,
  kAccept = 2,
  kResidual = 3,  // recovery and bonus tokens
  kPlain = 4,     // plain decoding and the naive rule; round is 0
  kPolicy = 6,
  kTest = 7,
  kSynth = 8,  // weights of `outrider synth`
};

// The request's 64-bit seed. Never an internal sequence id.
struct Seed {
  uint64_t value = 0;
  bool operator==(const Seed&) const = default;
};

// key = seed; counter = (index, position, round, purpose << 24).
std::array<uint32_t, 4> draw_block(Seed seed, Purpose purpose, Position position, Round round,
                                   uint32_t index = 0);

// 64 uniform bits: word 1 in the upper half, word 0 in the lower.
uint64_t draw_u64(Seed seed, Purpose purpose, Position position, Round round, uint32_t index = 0);

// Uniform in [0, 1), from the upper 53 bits: P(draw < p) = p, up to 2^-53.
double draw_uniform(Seed seed, Purpose purpose, Position position, Round round, uint32_t index = 0);

// Noise of token v at a position: word v & 3 of block v >> 2. It has 2^32 values, from -3.13 to 22.87, so one
// draw resolves probabilities to 2^-32.
double draw_gumbel(Seed seed, Position position, TokenId token);

}  // namespace outrider
