#include "tests/text/tokenizer_fixtures.h"

namespace outrider {
namespace {

// A byte-level tokenizer with the given added tokens after "a" = 0, "b" = 1, "ab" = 2.
std::unique_ptr<Tokenizer> make(const std::vector<std::pair<int, std::string>>& added, bool special = true) {
  nlohmann::json json = {
      {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", {"a b"}}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"added_tokens", nlohmann::json::array()}};
  for (const auto& [id, content] : added)
    json["added_tokens"].push_back({{"id", id}, {"content", content}, {"special", special}});
  return load_or_die(ModelFiles({{"tokenizer.json", json.dump()}}).path());
}

TEST(SameVocabulary, AcceptsItself) {
  const auto a = make({{3, "<s>"}}), b = make({{3, "<s>"}});
  EXPECT_TRUE(check_same_vocabulary(*a, *b).ok());
  EXPECT_EQ(a->fingerprint(), b->fingerprint());
}

TEST(SameVocabulary, NamesTheFirstDifferentId) {
  const auto a = make({{3, "<s>"}, {4, "<x>"}, {5, "<y>"}}), b = make({{3, "<s>"}, {4, "<z>"}, {5, "<w>"}});
  const Status status = check_same_vocabulary(*a, *b);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("id 4 is '<x>' in the target and '<z>' in the draft"), std::string::npos)
      << status.message();
  EXPECT_NE(a->fingerprint(), b->fingerprint());
}

TEST(SameVocabulary, AcceptsALongerTailEitherWay) {
  const auto shorter = make({{3, "<s>"}}), longer = make({{3, "<s>"}, {9, "<pad9>"}});
  EXPECT_TRUE(check_same_vocabulary(*shorter, *longer).ok());
  EXPECT_TRUE(check_same_vocabulary(*longer, *shorter).ok());
  EXPECT_NE(shorter->fingerprint(), longer->fingerprint());
  EXPECT_TRUE(begins_with_vocabulary(*longer, shorter->fingerprint()));
  EXPECT_TRUE(begins_with_vocabulary(*longer, longer->fingerprint()));
  EXPECT_FALSE(begins_with_vocabulary(*shorter, longer->fingerprint()));
  EXPECT_FALSE(begins_with_vocabulary(*make({{3, "<s>"}, {4, "<x>"}}), make({{3, "<t>"}})->fingerprint()));
}

TEST(SameVocabulary, KnowsTheFingerprintsOfItsBeginnings) {
  const auto longer = make({{3, "<s>"}, {7, "<x>"}, {9, "<y>"}});
  const auto three = make({{3, "<s>"}}), four = make({{3, "<s>"}, {7, "<x>"}}), none = make({});
  EXPECT_EQ(vocabulary_beginnings(*longer, 2),
            (std::vector<uint64_t>{four->fingerprint(), three->fingerprint()}));
  const auto all = vocabulary_beginnings(*longer, 100);
  ASSERT_EQ(all.size(), 5u);  // the empty table is no beginning: it would fit every target
  EXPECT_EQ(all[2], none->fingerprint());
}

TEST(SameVocabulary, RefusesAHoleBelowTheTail) {
  const auto full = make({{3, "<s>"}, {4, "<x>"}}), holed = make({{4, "<x>"}});
  const Status status = check_same_vocabulary(*full, *holed);
  EXPECT_NE(status.message().find("id 3 is '<s>' in the target and no token in the draft"), std::string::npos)
      << status.message();
}

// Files of one model disagree about which tokens are special, and the ids mean the same.
TEST(SameVocabulary, SpecialFlagsMakeNoOtherVocabulary) {
  EXPECT_EQ(make({{3, "<s>"}}, true)->fingerprint(), make({{3, "<s>"}}, false)->fingerprint());
}

TEST(SameVocabulary, RefusesAnotherKind) {
  const auto a = load_or_die(golden_directory() / "gpt2"), b = load_or_die(golden_directory() / "metaspace");
  EXPECT_FALSE(check_same_vocabulary(*a, *b).ok());
}

}  // namespace
}  // namespace outrider
