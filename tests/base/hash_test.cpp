#include "base/hash.h"

#include <gtest/gtest.h>

#include <vector>

namespace outrider {
namespace {

TEST(PrefixHash, ExtendsTokenByToken) {
  const std::vector<TokenId> ids{TokenId(3), TokenId(1), TokenId(4), TokenId(1), TokenId(5)};
  uint64_t hash = kEmptyPrefixHash;
  for (size_t n = 0; n < ids.size(); ++n) {
    EXPECT_EQ(hash, prefix_hash(std::span(ids).first(n)));
    hash = extend_prefix_hash(hash, ids[n]);
  }
  EXPECT_NE(prefix_hash(std::span(ids).first(2)), prefix_hash(std::span(ids).subspan(1, 2)));
}

TEST(StateHash, EveryFieldCounts) {
  const uint64_t reference = state_hash_term(SequenceId(1), 10, 9, Epoch(2));
  EXPECT_NE(reference, state_hash_term(SequenceId(2), 10, 9, Epoch(2)));
  EXPECT_NE(reference, state_hash_term(SequenceId(1), 11, 9, Epoch(2)));
  EXPECT_NE(reference, state_hash_term(SequenceId(1), 10, 10, Epoch(2)));
  EXPECT_NE(reference, state_hash_term(SequenceId(1), 10, 9, Epoch(3)));
}

}  // namespace
}  // namespace outrider
