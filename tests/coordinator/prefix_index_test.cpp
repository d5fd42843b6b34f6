// The prefix cache's index: prefixes that are found, the order of eviction, and the separation of texts with
// different salts.
#include "coordinator/scheduler/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/hash.h"

namespace outrider {
namespace {

constexpr int kBlock = static_cast<int>(kBlockTokens);
constexpr SequenceId kSequence(1);

std::vector<TokenId> text(int length, int32_t first = 1) {
  std::vector<TokenId> ids;
  for (int i = 0; i < length; ++i) ids.emplace_back(first + i);
  return ids;
}

std::vector<TokenId> joined(std::vector<TokenId> ids, const std::vector<TokenId>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

class PrefixIndexTest : public ::testing::Test {
 protected:
  // As a sequence that is opened, computes the text, and is closed.
  bool keep(const std::vector<TokenId>& ids, const std::string& salt = "") {
    auto node = index_.hold(index_.find(ids, salt), salt);
    const bool added = index_.extend(node, kSequence, ids);
    index_.let_go(node);
    check();
    return added;
  }
  int32_t found(const std::vector<TokenId>& ids, const std::string& salt = "") const {
    return index_.find(ids, salt).length;
  }
  void check() {
    const Status status = index_.check_invariants();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  std::string changes() {
    std::string out;
    for (const PrefixChange& c : index_.take_changes())
      out += fmt::format("{}{}:{} ", c.kind == PrefixChange::Kind::kKeep ? "keep " : "cut ", c.prefix.value(),
                         c.length);
    return out;
  }

  PrefixIndex index_;
};

TEST_F(PrefixIndexTest, FindsTheLongestBeginningToTheToken) {
  EXPECT_EQ(found(text(10)), 0);
  EXPECT_TRUE(keep(text(2 * kBlock + 5)));
  EXPECT_EQ(changes(), "keep 1:37 ");
  EXPECT_EQ(index_.blocks(), 3);
  EXPECT_EQ(found(text(100)), 37);
  for (const int length : {1, 15, 16, 17, 31, 32, 33, 36, 37}) EXPECT_EQ(found(text(length)), length);
  auto other = text(100);
  other[20] = TokenId(999);
  EXPECT_EQ(found(other), 20);
  other[0] = TokenId(999);
  EXPECT_EQ(found(other), 0);
}

TEST_F(PrefixIndexTest, TextsThatBranchShareTheirBeginning) {
  keep(text(2 * kBlock));
  keep(joined(text(2 * kBlock), text(kBlock, 500)));
  EXPECT_EQ(changes(), "keep 1:32 keep 1:48 ");  // it only grew
  keep(joined(text(kBlock), text(kBlock, 700)));
  EXPECT_EQ(changes(), "keep 2:32 ");
  EXPECT_EQ(index_.blocks(), 4);
  EXPECT_EQ(found(joined(text(kBlock), text(5, 700))), kBlock + 5);
  EXPECT_EQ(found(joined(text(2 * kBlock), text(20, 500))), 3 * kBlock);
  EXPECT_FALSE(keep(text(2 * kBlock)));  // was there
  EXPECT_EQ(changes(), "");
}

TEST_F(PrefixIndexTest, AnyPrefixThatRunsThroughAMatchServes) {
  keep(joined(text(kBlock), text(kBlock, 500)));
  keep(joined(text(kBlock), text(kBlock, 700)));
  const auto name = [&](const std::vector<TokenId>& ids) {
    return index_.prefix_of(index_.find(ids, "")).value();
  };
  EXPECT_EQ(name(joined(text(kBlock), text(3, 500))), 1u);
  EXPECT_EQ(name(joined(text(kBlock), text(3, 700))), 2u);
  EXPECT_LE(name(text(kBlock)), 2u);
}

TEST_F(PrefixIndexTest, SaltsShareNothing) {
  keep(text(40), "a");
  EXPECT_EQ(found(text(40), "a"), 40);
  EXPECT_EQ(found(text(40), "b"), 0);
  EXPECT_EQ(found(text(40)), 0);
  EXPECT_TRUE(keep(text(40), "b"));
  EXPECT_EQ(index_.blocks(), 6);
  while (index_.forget_one()) check();
  EXPECT_EQ(index_.blocks(), 0);
  EXPECT_EQ(found(text(40), "a"), 0);
}

TEST_F(PrefixIndexTest, ForgetsWhatWasUsedLongestAgoFromItsEnd) {
  keep(text(2 * kBlock));
  keep(joined(text(kBlock), text(kBlock, 500)));
  keep(text(2 * kBlock, 800));
  index_.let_go(index_.hold(index_.find(text(2 * kBlock), ""), ""));  // used again
  (void)index_.take_changes();
  ASSERT_TRUE(index_.forget_one());
  EXPECT_EQ(changes(), "cut 2:0 ");  // its beginning is another's, too
  EXPECT_EQ(found(joined(text(kBlock), text(kBlock, 500))), kBlock);
  ASSERT_TRUE(index_.forget_one());
  ASSERT_TRUE(index_.forget_one());
  EXPECT_EQ(changes(), "cut 3:0 ");  // 3:16 in between is not reported: the later cut covers it
  EXPECT_EQ(found(text(2 * kBlock)), 2 * kBlock);
  ASSERT_TRUE(index_.forget_one());
  EXPECT_EQ(changes(), "cut 1:16 ");
  ASSERT_TRUE(index_.forget_one());
  EXPECT_FALSE(index_.forget_one());
  EXPECT_EQ(index_.state_hash(), 0u);
  check();
}

TEST_F(PrefixIndexTest, WhatASequenceHoldsStays) {
  keep(text(3 * kBlock));
  const auto node = index_.hold(index_.find(text(2 * kBlock), ""), "");
  while (index_.forget_one()) check();
  EXPECT_EQ(found(text(3 * kBlock)), 2 * kBlock);
  index_.let_go(node);
  EXPECT_TRUE(index_.forget_one());
}

// A plan opens a sequence with a part of a block that the same plan must not forget for another.
TEST_F(PrefixIndexTest, APartStaysUntilThePlanIsMade) {
  keep(text(kBlock + 5));
  (void)index_.take_changes();
  const auto node = index_.hold(index_.find(text(kBlock + 3), ""), "");
  EXPECT_FALSE(index_.forget_one());
  EXPECT_EQ(changes(), "");
  EXPECT_TRUE(index_.forget_one());
  EXPECT_EQ(changes(), "cut 1:16 ");
  index_.let_go(node);
  check();
}

// Two sequences read one text at the same time: the later one's blocks are its own, and are not kept.
TEST_F(PrefixIndexTest, WhatWasComputedTwiceIsKeptOnce) {
  auto first = index_.hold(index_.find({}, ""), ""), second = index_.hold(index_.find({}, ""), "");
  EXPECT_TRUE(index_.extend(first, kSequence, text(2 * kBlock)));
  EXPECT_FALSE(index_.extend(second, SequenceId(2), text(2 * kBlock)));
  EXPECT_EQ(index_.depth(first), 2);
  EXPECT_EQ(index_.depth(second), 0);
  index_.let_go(first);
  index_.let_go(second);
  EXPECT_EQ(index_.blocks(), 2);
  check();
}

TEST_F(PrefixIndexTest, GrowsWhileItsSequenceIsOpen) {
  auto node = index_.hold(index_.find({}, ""), "");
  EXPECT_TRUE(index_.extend(node, kSequence, text(kBlock)));
  EXPECT_TRUE(index_.extend(node, kSequence, text(3 * kBlock)));
  EXPECT_FALSE(index_.extend(node, kSequence, text(3 * kBlock)));
  EXPECT_FALSE(index_.forget_one());
  EXPECT_TRUE(index_.extend(node, kSequence, text(3 * kBlock + 1)));
  EXPECT_EQ(changes(), "keep 1:16 keep 1:48 keep 1:49 ");
  EXPECT_EQ(index_.depth(node), 3);
  index_.let_go(node);
  check();
  index_.clear();
  EXPECT_EQ(found(text(9)), 0);
  EXPECT_TRUE(keep(text(9)));
  EXPECT_EQ(changes(), "keep 2:9 ");  // a name is never given twice
}

// Against what the changes themselves say is there, the only truth that a target has: names and their texts.
TEST_F(PrefixIndexTest, ManyRandomTextsAreFoundExactlyWhereATargetHasThem) {
  std::mt19937 random(5);
  const auto pick = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
  std::map<uint64_t, std::pair<std::string, std::vector<TokenId>>> target;  // salt and text by name
  struct Open {
    PrefixIndex::Node node;
    std::string salt;
    std::vector<TokenId> ids;
  };
  std::map<uint64_t, Open> open;  // by sequence
  uint64_t next_sequence = 1;
  int64_t hits = 0, cuts = 0;
  const auto apply = [&] {
    for (const PrefixChange& c : index_.take_changes()) {
      auto& [salt, ids] = target[c.prefix.value()];
      if (c.kind == PrefixChange::Kind::kKeep) {
        const Open& from = open.at(c.sequence.value());
        salt = from.salt;
        ids.assign(from.ids.begin(), from.ids.begin() + c.length);
      } else {
        ASSERT_LT(static_cast<size_t>(c.length), ids.size());
        ids.resize(static_cast<size_t>(c.length));
        ++cuts;
      }
      if (ids.empty()) target.erase(c.prefix.value());
    }
    uint64_t hash = 0;
    for (const auto& [name, kept] : target)
      hash += prefix_hash_term(name, static_cast<int64_t>(kept.second.size()));
    ASSERT_EQ(hash, index_.state_hash());
  };
  for (int step = 0; step < 20000; ++step) {
    const int what = pick(0, 9);
    if (what < 4) {
      Open made{.node = {}, .salt = pick(0, 3) == 0 ? "salt" : "", .ids = {}};
      for (int piece = pick(1, 3); piece > 0; --piece)
        made.ids = joined(made.ids, text(pick(1, 20), 100 * pick(0, 2)));
      const auto match = index_.find(made.ids, made.salt);
      size_t expected = 0;
      for (const auto& [name, kept] : target) {
        if (kept.first != made.salt) continue;
        const size_t most = std::min(kept.second.size(), made.ids.size());
        const auto end = made.ids.begin() + static_cast<ptrdiff_t>(most);
        expected = std::max<size_t>(
            expected, static_cast<size_t>(std::mismatch(made.ids.begin(), end, kept.second.begin()).first -
                                          made.ids.begin()));
      }
      ASSERT_EQ(match.length, static_cast<int32_t>(expected));
      if (match.length > 0) {
        ++hits;
        const auto& kept = target.at(index_.prefix_of(match).value());
        ASSERT_EQ(kept.first, made.salt);
        ASSERT_TRUE(std::equal(made.ids.begin(), made.ids.begin() + match.length, kept.second.begin()));
      }
      made.node = index_.hold(match, made.salt);
      open.emplace(next_sequence++, std::move(made));
    } else if (what < 8 && !open.empty()) {
      const auto at = std::next(open.begin(), pick(0, static_cast<int>(open.size()) - 1));
      index_.extend(at->second.node, SequenceId(at->first), at->second.ids);
      if (pick(0, 2) > 0) {
        index_.let_go(at->second.node);
        apply();
        open.erase(at);
      }
    } else {
      for (int i = pick(0, 5); i > 0; --i) index_.forget_one();
    }
    apply();
    if (HasFatalFailure()) return;
    if (step % 100 == 0) check();
  }
  EXPECT_GT(hits, 2000);
  EXPECT_GT(cuts, 2000);
}

}  // namespace
}  // namespace outrider
