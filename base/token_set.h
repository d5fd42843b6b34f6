// A set of token ids, in the shortest of three forms: a grammar may allow two tokens, or all but two.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace outrider {

struct TokenSet {
  enum class Form : uint8_t {
    kOnly = 0,    // `ids`
    kAllBut = 1,  // every other id
    kBits = 2,    // those whose bit is set in `bits`
  };
  Form form = Form::kAllBut;   // default: all ids
  std::vector<TokenId> ids;    // ascending
  std::vector<uint32_t> bits;  // id i is bit i % 32 of word i / 32; as many words as the vocabulary needs

  bool is_all() const { return form == Form::kAllBut && ids.empty(); }
  bool contains(TokenId id) const;
  size_t bytes() const { return 16 + ids.size() * sizeof(TokenId) + bits.size() * sizeof(uint32_t); }
  bool operator==(const TokenSet&) const = default;
};

constexpr size_t words_of_bits(int64_t vocab_size) { return static_cast<size_t>((vocab_size + 31) / 32); }
// The largest TokenSet::bytes() of a set made by token_set_of().
constexpr size_t most_set_bytes(int64_t vocab_size) {
  return 16 + words_of_bits(vocab_size) * sizeof(uint32_t);
}

// `bits`: as in TokenSet, words_of_bits(vocab_size) words; bits beyond the vocabulary are ignored.
TokenSet token_set_of(std::span<const uint32_t> bits, int32_t vocab_size);

// kMalformed: ids that do not ascend or are outside the vocabulary, another number of words, or two forms at
// once.
Status check_token_set(const TokenSet& set, int64_t vocab_size);

}  // namespace outrider
