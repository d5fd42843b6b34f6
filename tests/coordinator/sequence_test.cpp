#include "coordinator/request/sequence.h"

#include <gtest/gtest.h>

#include "coordinator/request/request.h"

namespace outrider {
namespace {

std::vector<TokenId> prompt() { return {TokenId(5), TokenId(6), TokenId(7)}; }

TEST(Sequence, HashFollowsTheIds) {
  Sequence sequence(SequenceId(1), prompt());
  EXPECT_EQ(sequence.hash(), prefix_hash(prompt()));
  sequence.append(TokenId(8));
  auto ids = prompt();
  ids.emplace_back(8);
  EXPECT_EQ(sequence.hash(), prefix_hash(ids));
  EXPECT_EQ(sequence.hash_of_first(3), prefix_hash(prompt()));
  EXPECT_EQ(sequence.emitted(), 1);
  EXPECT_EQ(sequence.prompt_length(), 3);
}

TEST(Sequence, RoundNumbersNeverRepeat) {
  Sequence sequence(SequenceId(1), prompt());
  EXPECT_EQ(sequence.begin_round(), Round(0));
  EXPECT_EQ(sequence.begin_round(), Round(1));
}

TEST(Sequence, MirrorsTheTarget) {
  Sequence sequence(SequenceId(4), prompt());
  EXPECT_EQ(sequence.target_hash_term(), 0u);  // not open there
  sequence.target_opened();
  EXPECT_EQ(sequence.target_hash_term(), state_hash_term(SequenceId(4), 3, 0, Epoch(0)));
  sequence.target_prefilled(2);
  EXPECT_EQ(sequence.target.kv_length, 2);
  sequence.target_verified(0, 0);
  EXPECT_EQ(sequence.target_hash_term(), state_hash_term(SequenceId(4), 4, 3, Epoch(0)));
  sequence.target_verified(4, 4);
  EXPECT_EQ(sequence.target_hash_term(), state_hash_term(SequenceId(4), 9, 8, Epoch(0)));
  sequence.target_verified(4, 1);
  EXPECT_EQ(sequence.target_hash_term(), state_hash_term(SequenceId(4), 11, 10, Epoch(1)));
}

TEST(RequestState, FinishedIsReachableFromEverywhereAndFinal) {
  for (uint8_t state = 0; state < static_cast<uint8_t>(RequestState::kFinished); ++state) {
    EXPECT_TRUE(may_become(static_cast<RequestState>(state), RequestState::kFinished));
    EXPECT_FALSE(may_become(RequestState::kFinished, static_cast<RequestState>(state)));
  }
  EXPECT_FALSE(may_become(RequestState::kQueued, RequestState::kVerifying));
  EXPECT_FALSE(may_become(RequestState::kDrafting, RequestState::kVerifying));
}

}  // namespace
}  // namespace outrider
