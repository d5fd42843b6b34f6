#include "base/regex.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  auto regex = Regex::compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status().message();
  std::vector<std::string> found;
  const auto ranges = regex->find_all(text);
  for (const TextRange range : *ranges) found.push_back(text.substr(range.begin, range.end - range.begin));
  return found;
}

using Found = std::vector<std::string>;

TEST(Regex, FindsAllMatches) {
  EXPECT_EQ(matches(R"(\p{L}+|\p{N})", "ab 12é"), (Found{"ab", "1", "2", "é"}));
  EXPECT_EQ(matches(R"(x*)", "axxé"), (Found{"xx"}));  // empty matches are dropped
  EXPECT_EQ(matches(R"(\s+(?!\S)|\s+)", "a   b "), (Found{"  ", " ", " "}));
}

TEST(Regex, FollowsUnicodeLikeOniguruma) {
  EXPECT_EQ(matches(R"(\s+)", "a\u180e\u3000b"), (Found{"\u3000"}));
  EXPECT_EQ(matches(R"([^\s]+)", "\u180e\u0085x"), (Found{"\u180e", "x"}));
  EXPECT_EQ(matches(R"(\w+)", "e\u0301_1-\u00b2"), (Found{"e\u0301_1"}));
  EXPECT_EQ(matches("^b$", "a\nb\nc"), (Found{"b"}));
}

// The expression of o200k, as gpt-oss' tokenizer.json has it; the parts are those of Python's regex.
TEST(Regex, SplitsAsO200k) {
  const std::string pattern =
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
      R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  EXPECT_EQ(matches(pattern, "HelloWorld's DON'T naïve e\u0301t\u00e9 12345 //x\n\n  y\u4f60\u597d ABCdef"),
            (Found{"Hello", "World's", " DON'T", " naïve", " e\u0301t\u00e9", " ", "123", "45", " //", "x",
                   "\n\n", " ", " y\u4f60\u597d", " ABCdef"}));
}

TEST(Regex, RefusesWhatTheDialectsReadDifferently) {
  for (const char* pattern : {R"(\p{N}{1,3}+)", R"([a[bc]])", R"([a&&b])", R"([\S])", R"(\h)", "(*UTF)a"}) {
    const auto regex = Regex::compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_EQ(regex.status().code(), StatusCode::kUnsupported) << pattern;
  }
  EXPECT_TRUE(Regex::compile(R"(\p{N}+)").ok());
}

TEST(Regex, NamesWhatIsWrong) {
  for (const std::string& pattern : {std::string("(a"), std::string("[a"), std::string("a\\"),
                                     std::string("\\p{L"), std::string(200, '(')}) {
    const auto regex = Regex::compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_EQ(regex.status().code(), StatusCode::kMalformed) << pattern;
  }
  EXPECT_FALSE(Regex::compile(std::string(20'000, 'a')).ok());
}

TEST(Regex, MatchesTheStartsOfNames) {
  const auto starts = [](const char* pattern, std::string_view text) {
    return Regex::compile(pattern)->matches_start(text).value();
  };
  EXPECT_TRUE(starts(R"(model\.layers\.\d+\.mlp)", "model.layers.11.mlp.up_proj"));
  EXPECT_TRUE(starts(".*up_proj$", "model.layers.11.mlp.up_proj"));
  EXPECT_FALSE(starts("layers", "model.layers.11"));
  EXPECT_TRUE(starts("", "x"));
  const auto slow = Regex::compile("(a|aa)+[cd]")->matches_start(std::string(60, 'a') + "b");
  EXPECT_EQ(slow.status().code(), StatusCode::kResourceExhausted);
}

TEST(Regex, StopsExponentialMatching) {
  auto regex = Regex::compile("(a|aa)+[cd]");
  ASSERT_TRUE(regex.ok());
  const auto found = regex->find_all(std::string(60, 'a') + "b");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace outrider
