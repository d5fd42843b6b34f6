#include "base/utf8.h"

#include <gtest/gtest.h>

#include "text/tokenizer/byte_alphabet.h"

namespace outrider {
namespace {

TEST(Utf8, EveryCodepointRoundTrips) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    ASSERT_FALSE(find_invalid_utf8(text)) << static_cast<uint32_t>(c);
    size_t at = 0;
    ASSERT_TRUE(next_codepoint(text, at) == c) << static_cast<uint32_t>(c);
    ASSERT_EQ(at, text.size());
    ASSERT_EQ(previous_boundary(text, at), 0u);
  }
}

TEST(Utf8, FindsTheFirstBadByte) {
  EXPECT_EQ(find_invalid_utf8("abc"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("a\x80"), 1u);
  EXPECT_EQ(find_invalid_utf8("é\xE2\x82"), 2u);
  EXPECT_EQ(find_invalid_utf8("\xED\xA0\x80"), 0u);
}

TEST(Utf8, NormalisesToEachForm) {
  EXPECT_EQ(normalize("e\u0301", NormalForm::kNfc), "é");
  EXPECT_EQ(normalize("é", NormalForm::kNfd), "e\u0301");
  EXPECT_EQ(normalize("ﬁ①", NormalForm::kNfkc), "fi1");
  EXPECT_EQ(normalize("ﬁé", NormalForm::kNfkd), "fie\u0301");
  EXPECT_EQ(normalize("ﬁ", NormalForm::kNfc), "ﬁ");
  EXPECT_EQ(normalize("\u1100\u1161\u11a8", NormalForm::kNfc), "각");
  EXPECT_EQ(normalize("o\u0302\u0323", NormalForm::kNfc), "\u1ed9");  // marks in the wrong order
}

TEST(Utf8, KnowsClasses) {
  EXPECT_TRUE(is_whitespace(U'\u3000') && is_whitespace(U'\u0085') && !is_whitespace(U'\u180e'));
  EXPECT_TRUE(is_numeric(U'½') && is_numeric(U'Ⅳ') && !is_numeric(U'a'));
  EXPECT_TRUE(is_word_character(U'é') && is_word_character(U'_') && !is_word_character(U'-'));
}

TEST(ByteAlphabet, IsABijection) {
  std::string all, text;
  for (int byte = 0; byte < 256; ++byte) {
    all += static_cast<char>(byte);
    text += byte_character(static_cast<uint8_t>(byte));
  }
  EXPECT_EQ(bytes_of_characters(text), all);
  EXPECT_EQ(byte_character(' '), "Ġ");
  EXPECT_EQ(byte_character('\n'), "Ċ");
  EXPECT_EQ(bytes_of_characters("a b"), std::nullopt);
}

TEST(ByteAlphabet, ReadsFallbackTokens) {
  EXPECT_EQ(fallback_byte("<0x0A>"), 0x0A);
  EXPECT_EQ(fallback_byte(fallback_token(0xFF)), 0xFF);
  for (const char* other : {"<0x0>", "<0xGG>", "<0x0A", "0x0A", "<0x+1>", ""})
    EXPECT_EQ(fallback_byte(other), std::nullopt);
}

}  // namespace
}  // namespace outrider
