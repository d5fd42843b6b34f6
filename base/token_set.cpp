#include "base/token_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace outrider {
namespace {

bool bit_of(std::span<const uint32_t> bits, int64_t id) {
  return (bits[static_cast<size_t>(id / 32)] >> (id % 32) & 1) != 0;
}

}  // namespace

bool TokenSet::contains(TokenId id) const {
  if (form == Form::kBits) return bit_of(bits, id.value());
  return std::binary_search(ids.begin(), ids.end(), id) == (form == Form::kOnly);
}

TokenSet token_set_of(std::span<const uint32_t> bits, int32_t vocab_size) {
  int64_t count = 0;
  for (int64_t i = 0; i < vocab_size / 32; ++i) count += std::popcount(bits[static_cast<size_t>(i)]);
  for (int64_t id = vocab_size / 32 * 32; id < vocab_size; ++id) count += bit_of(bits, id);
  const int64_t others = vocab_size - count;
  const auto words = static_cast<int64_t>(words_of_bits(vocab_size));
  TokenSet set;
  if (std::min(count, others) > words) {
    set.form = TokenSet::Form::kBits;
    set.bits.assign(bits.begin(), bits.begin() + words);
    if (vocab_size % 32 != 0) set.bits.back() &= (uint32_t{1} << vocab_size % 32) - 1;
    return set;
  }
  set.form = count <= others ? TokenSet::Form::kOnly : TokenSet::Form::kAllBut;
  for (int32_t id = 0; id < vocab_size; ++id)
    if (bit_of(bits, id) == (set.form == TokenSet::Form::kOnly)) set.ids.emplace_back(id);
  return set;
}

Status check_token_set(const TokenSet& set, int64_t vocab_size) {
  const size_t words = set.form == TokenSet::Form::kBits ? words_of_bits(vocab_size) : 0;
  if (set.bits.size() != words)
    return malformed(fmt::format("has {} words of bits instead of {}", set.bits.size(), words));
  if (words > 0 && !set.ids.empty()) return malformed("has ids beside its bits");
  int64_t last = -1;
  for (const TokenId id : set.ids) {
    if (id.value() <= last || id.value() >= vocab_size)
      return malformed(
          fmt::format("has id {} behind {}, in a vocabulary of {}", id.value(), last, vocab_size));
    last = id.value();
  }
  return {};
}

}  // namespace outrider
