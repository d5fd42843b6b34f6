#include "base/random.h"

#include <Random123/philox.h>

#include "base/philox.h"

namespace outrider {

std::array<uint32_t, 4> draw_block(Seed seed, Purpose purpose, Position position, Round round,
                                   uint32_t index) {
  using Philox = r123::Philox4x32;  // ten rounds
  const Philox::ctr_type counter{
      {index, static_cast<uint32_t>(position.value()), round.value(), static_cast<uint32_t>(purpose) << 24}};
  const Philox::key_type key{{static_cast<uint32_t>(seed.value), static_cast<uint32_t>(seed.value >> 32)}};
  const Philox::ctr_type block = Philox()(counter, key);
  return {block[0], block[1], block[2], block[3]};
}

double draw_uniform(Seed seed, Purpose purpose, Position position, Round round, uint32_t index) {
  return draw_block(seed, purpose, position, round, index)[0] * 0x1p-32;
}

uint64_t draw_u64(Seed seed, Purpose purpose, Position position, Round round, uint32_t index) {
  const auto block = draw_block(seed, purpose, position, round, index);
  return static_cast<uint64_t>(block[1]) << 32 | block[0];
}

double gumbel_from_word(uint32_t word) { return gumbel_of_word(word); }

double draw_gumbel(Seed seed, Position position, TokenId token) {
  const auto v = static_cast<uint32_t>(token.value());
  return gumbel_from_word(draw_block(seed, Purpose::kGumbel, position, Round(0), v >> 2)[v & 3]);
}

}  // namespace outrider
