#include "base/random.h"

#include "base/philox.h"

namespace outrider {

std::array<uint32_t, 4> draw_block(Seed seed, Purpose purpose, Position position, Round round,
                                   uint32_t index) {
  std::array block{index, static_cast<uint32_t>(position.value()), round.value(),
                   static_cast<uint32_t>(purpose) << 24};
  philox(block[0], block[1], block[2], block[3], seed.value);
  return block;
}

double draw_uniform(Seed seed, Purpose purpose, Position position, Round round, uint32_t index) {
  return unit_interval(draw_u64(seed, purpose, position, round, index));
}

uint64_t draw_u64(Seed seed, Purpose purpose, Position position, Round round, uint32_t index) {
  const auto block = draw_block(seed, purpose, position, round, index);
  return static_cast<uint64_t>(block[1]) << 32 | block[0];
}

double draw_gumbel(Seed seed, Position position, TokenId token) {
  const auto v = static_cast<uint32_t>(token.value());
  return gumbel_of_word(draw_block(seed, Purpose::kGumbel, position, Round(0), v >> 2)[v & 3]);
}

}  // namespace outrider
