// The protobuf reader, on messages made by hand.
#include "text/tokenizer/sentencepiece_model.h"

#include <bit>

#include "tests/text/tokenizer_fixtures.h"

namespace outrider {
namespace {

std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}
std::string number(int field, uint64_t value) {
  return varint(static_cast<uint64_t>(field) << 3) + varint(value);
}
std::string bytes(int field, const std::string& content) {
  return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(content.size()) + content;
}
std::string fixed32(int field, float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  std::string out = varint(static_cast<uint64_t>(field) << 3 | 5);
  for (int i = 0; i < 4; ++i) out += static_cast<char>(bits >> (8 * i));
  return out;
}
std::string piece(const std::string& text, float score, int type) {
  return bytes(1, bytes(1, text) + fixed32(2, score) + number(3, static_cast<uint64_t>(type)));
}
std::string trainer(int model_type) { return bytes(2, number(3, static_cast<uint64_t>(model_type))); }

const std::string kPieces = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("▁", -1, 1) + piece("a", -2, 1);

std::string error_of(const std::string& model) {
  const auto parsed = parse_sentencepiece_model(model);
  return parsed.ok() ? "" : parsed.status().message();
}

TEST(SentencePieceModel, ReadsPiecesAndSpecs) {
  const auto model =
      parse_sentencepiece_model(kPieces + bytes(2, number(3, 2) + number(35, 1)) +
                                bytes(3, number(3, 0) + number(4, 0)) + bytes(99, "new field"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  ASSERT_EQ(model->pieces.size(), 4u);
  EXPECT_EQ(model->pieces[3].text, "a");
  EXPECT_EQ(model->pieces[3].score, -2);
  EXPECT_EQ(model->pieces[1].type, SentencePieceModel::Type::kControl);
  EXPECT_TRUE(model->byte_fallback);
  EXPECT_FALSE(model->add_dummy_prefix);
  EXPECT_FALSE(model->remove_extra_whitespaces);
}

TEST(SentencePieceModel, RefusesOtherModelsByName) {
  EXPECT_NE(error_of(kPieces + trainer(1)).find("unigram"), std::string::npos);
  EXPECT_NE(error_of(kPieces + trainer(3)).find("word"), std::string::npos);
  EXPECT_NE(error_of(kPieces + trainer(4)).find("char"), std::string::npos);
  EXPECT_NE(error_of(kPieces + bytes(2, "")).find("unigram"), std::string::npos);  // the format's default
  EXPECT_NE(error_of(kPieces + trainer(2) + bytes(3, bytes(2, "map"))).find("precompiled_charsmap"),
            std::string::npos);
}

TEST(SentencePieceModel, RefusesDamagedMessages) {
  const std::string good = kPieces + trainer(2);
  EXPECT_EQ(error_of(good), "");
  EXPECT_NE(error_of(""), "");
  EXPECT_NE(error_of(good + piece("b", -1, 9)).find("type 9"), std::string::npos);
  EXPECT_NE(error_of(good + piece("\xFF", -1, 1)).find("piece 4"), std::string::npos);
  EXPECT_NE(error_of(good + piece("b", std::numeric_limits<float>::quiet_NaN(), 1)), "");
  EXPECT_NE(error_of(good + varint(1 << 3 | 2) + varint(~uint64_t{0})).find("longer"), std::string::npos);
  EXPECT_NE(error_of(good + std::string(11, '\x80')), "");
  EXPECT_NE(error_of(good + std::string(1, '\x0B')).find("wire type"), std::string::npos);
}

TEST(SentencePieceModel, NeverReadsPastTheEnd) {
  const std::string model = read_file(golden_directory() / "sentencepiece/tokenizer.model");
  size_t refused = 0;
  for (size_t size = 0; size < 600; ++size) refused += error_of(model.substr(0, size)).empty() ? 0 : 1;
  EXPECT_EQ(refused, 600u);  // the trainer_spec comes after the pieces
  std::string damaged = model;
  for (size_t i = 0; i < damaged.size(); i += 7) {
    damaged[i] = static_cast<char>(damaged[i] ^ 0x55);
    ModelFiles files({{"tokenizer.model", damaged}});
    if (const auto tokenizer = load_tokenizer(files.path()); tokenizer.ok())
      encode_plain(**tokenizer, "Hello");
    damaged[i] = model[i];
  }
}

TEST(SentencePieceModel, LoaderNamesFileAndCause) {
  const ModelFiles unigram({{"tokenizer.model", kPieces + trainer(1)}});
  const auto tokenizer = load_tokenizer(unigram.path());
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(tokenizer.status().message().find("tokenizer.model"), std::string::npos);
  const ModelFiles no_bos({{"tokenizer.model", piece("<unk>", 0, 2) + piece("a", 0, 1) + trainer(2)}});
  EXPECT_NE(load_tokenizer(no_bos.path()).status().message().find("bos_token"), std::string::npos);
}

}  // namespace
}  // namespace outrider
