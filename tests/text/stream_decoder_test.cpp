#include <random>

#include "base/utf8.h"
#include "tests/text/tokenizer_fixtures.h"

namespace outrider {
namespace {

// Every id is one byte, so that any byte string is a token sequence; id 256 is special.
std::unique_ptr<Tokenizer> byte_tokenizer(bool strips_leading_space) {
  nlohmann::json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = byte;
  nlohmann::json decoders = {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (strips_leading_space)
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  const nlohmann::json json = {
      {"model",
       {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}, {"byte_fallback", true}}},
      {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
      {"added_tokens", {{{"id", 256}, {"content", "<eos>"}, {"special", true}}}}};
  return load_or_die(ModelFiles({{"tokenizer.json", json.dump()}}).path());
}

std::vector<TokenId> bytes_as_ids(const std::string& bytes) {
  std::vector<TokenId> ids;
  for (const char c : bytes) ids.push_back(TokenId(static_cast<uint8_t>(c)));
  return ids;
}

TEST(StreamDecoder, EmitsOnlyWholeCharacters) {
  const auto tokenizer = byte_tokenizer(false);
  StreamDecoder stream(*tokenizer);
  EXPECT_EQ(stream.append(TokenId(0xF0)), "");
  EXPECT_EQ(stream.append(TokenId(0x9F)), "");
  EXPECT_EQ(stream.append(TokenId(256)), "");  // a special token does not break a character
  EXPECT_EQ(stream.append(TokenId(0x99)), "");
  EXPECT_EQ(stream.append(TokenId(0x82)), "🙂");
  EXPECT_EQ(stream.flush(), "");
}

// Unicode 15, table 3-8: one U+FFFD per maximal subpart.
TEST(StreamDecoder, ReplacesMaximalSubparts) {
  const auto tokenizer = byte_tokenizer(false);
  const std::string r = "\uFFFD";
  EXPECT_EQ(tokenizer->decode(bytes_as_ids("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64")),
            "a" + r + r + r + "b" + r + "c" + r + r + "d");
  EXPECT_EQ(tokenizer->decode(bytes_as_ids("\xC0\xAF")), r + r);                  // overlong
  EXPECT_EQ(tokenizer->decode(bytes_as_ids("\xED\xA0\x80")), r + r + r);          // surrogate
  EXPECT_EQ(tokenizer->decode(bytes_as_ids("\xF4\x90\x80\x80")), r + r + r + r);  // above U+10FFFF
  EXPECT_EQ(tokenizer->decode(bytes_as_ids("x\xF0\x9F\x99")), "x" + r);           // cut short
}

TEST(StreamDecoder, EqualsDecodeForAnyBytes) {
  std::mt19937 rng(5);
  const std::string pool = "a \xC3\xA9\xE2\x82\xAC\xF0\x9F\x99\x82\x80\xED\xA0\xF4\x90\xC0\xFF";
  for (const bool strips : {false, true}) {
    const auto tokenizer = byte_tokenizer(strips);
    for (int round = 0; round < 3000; ++round) {
      std::string bytes;
      for (size_t n = rng() % 12; n > 0; --n) bytes += pool[rng() % pool.size()];
      const std::vector<TokenId> ids = bytes_as_ids(bytes);
      StreamDecoder stream(*tokenizer);
      std::string streamed;
      for (const TokenId id : ids) {
        const std::string part = stream.append(id);
        EXPECT_FALSE(find_invalid_utf8(part));
        streamed += part;
      }
      streamed += stream.flush();
      EXPECT_EQ(streamed, tokenizer->decode(ids));
      const size_t skip = strips && bytes.starts_with(' ') ? 1 : 0;
      EXPECT_EQ(streamed, repair_utf8(bytes.substr(skip)));
    }
  }
}

TEST(StreamDecoder, StripsOneSpaceOfTheStartOnly) {
  const auto tokenizer = byte_tokenizer(true);
  EXPECT_TRUE(tokenizer->strips_leading_space());
  EXPECT_EQ(tokenizer->decode(bytes_as_ids("  a b")), " a b");
  std::vector<TokenId> ids = bytes_as_ids(" a");
  ids.insert(ids.begin(), TokenId(256));
  EXPECT_EQ(tokenizer->decode(ids), "a");
}

}  // namespace
}  // namespace outrider
