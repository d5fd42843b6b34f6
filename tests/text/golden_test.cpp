// Every kind of tokenizer against what the reference libraries made of the same strings
// (tests/goldens/make_tokenizer_goldens.py).
#include "tests/support/source_dir.h"
#include "tests/text/tokenizer_fixtures.h"

namespace outrider {
namespace {

class TokenizerJsonGolden : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    tokenizer_ = load_or_die(golden_directory() / GetParam());
    expected_ = read_json(golden_directory() / GetParam() / "expected.json");
    strings_ = read_json(golden_directory() / "strings.json");
    ASSERT_GT(strings_.size(), 200u);
    ASSERT_EQ(strings_.size(), expected_["ids"].size());
  }
  std::unique_ptr<Tokenizer> tokenizer_;
  nlohmann::json expected_, strings_;
};

TEST_P(TokenizerJsonGolden, EncodesLikeTheReference) {
  for (size_t i = 0; i < strings_.size(); ++i) {
    const std::string text = strings_[i];
    EXPECT_EQ(encode_plain(*tokenizer_, text), expected_["ids"][i].get<std::vector<int>>())
        << i << ": " << text;
  }
}

TEST_P(TokenizerJsonGolden, DecodesLikeTheReference) {
  for (size_t i = 0; i < strings_.size(); ++i) {
    const auto changed = expected_["decoded"].find(std::to_string(i));
    const std::string want = changed == expected_["decoded"].end() ? strings_[i] : *changed;
    EXPECT_EQ(tokenizer_->decode(token_ids(expected_["ids"][i])), want) << i;
  }
}

// The others repair a run of bytes as a whole, which no stream can.
class ByteLevelGolden : public TokenizerJsonGolden {};

TEST_P(ByteLevelGolden, RepairsRandomIdsLikeTheReference) {
  ASSERT_EQ(expected_["random"].size(), 60u);
  for (const auto& sample : expected_["random"])
    EXPECT_EQ(tokenizer_->decode(token_ids(sample[0])), sample[1].get<std::string>()) << sample[0];
}

TEST_P(TokenizerJsonGolden, AddsSpecialTokensLikeTheReference) {
  const auto ids = tokenizer_->encode("Hello world", SpecialTokens::kAdd);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(values(*ids), expected_["with_special"].get<std::vector<int>>());
  const std::vector<int> plain = encode_plain(*tokenizer_, "Hello world");
  EXPECT_EQ(tokenizer_->bos().has_value(), values(*ids).front() != plain.front());
}

TEST_P(TokenizerJsonGolden, StreamEqualsDecode) {
  for (size_t i = 0; i < strings_.size(); ++i) {
    const std::vector<TokenId> ids = token_ids(expected_["ids"][i]);
    StreamDecoder stream(*tokenizer_);
    std::string text;
    for (const TokenId id : ids) text += stream.append(id);
    text += stream.flush();
    EXPECT_EQ(text, tokenizer_->decode(ids)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerJsonGolden,
                         testing::Values("gpt2", "llama3", "qwen", "digits", "llama2_legacy", "llama2_first",
                                         "gemma", "metaspace"),
                         [](const auto& kind) { return std::string(kind.param); });
INSTANTIATE_TEST_SUITE_P(Kinds, ByteLevelGolden, testing::Values("gpt2", "llama3", "qwen", "digits"),
                         [](const auto& kind) { return std::string(kind.param); });

class SentencePieceGolden : public testing::TestWithParam<const char*> {};

TEST_P(SentencePieceGolden, EncodesLikeTheReference) {
  const auto tokenizer = load_or_die(golden_directory() / GetParam());
  const auto expected = read_json(golden_directory() / GetParam() / "expected.json");
  ASSERT_GT(expected["texts"].size(), 150u);
  for (size_t i = 0; i < expected["texts"].size(); ++i) {
    const std::string text = expected["texts"][i];
    EXPECT_EQ(encode_plain(*tokenizer, text), expected["ids"][i].get<std::vector<int>>())
        << i << ": " << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, SentencePieceGolden,
                         testing::Values("sentencepiece", "sentencepiece_squeezed"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST(SentencePieceSpecials, FollowTokenizerConfig) {
  const std::string model = read_file(golden_directory() / "sentencepiece/tokenizer.model");
  const auto encode = [](const ModelFiles& files) {
    return values(*load_or_die(files.path())->encode("Hello", SpecialTokens::kAdd));
  };
  const std::vector<int> plain = encode(
      ModelFiles({{"tokenizer.model", model}, {"tokenizer_config.json", R"({"add_bos_token": false})"}}));
  std::vector<int> with_bos = plain;
  with_bos.insert(with_bos.begin(), 1);
  std::vector<int> with_both = with_bos;
  with_both.push_back(2);
  EXPECT_EQ(encode(ModelFiles({{"tokenizer.model", model}})), with_bos);
  EXPECT_EQ(
      encode(ModelFiles({{"tokenizer.model", model},
                         {"tokenizer_config.json", R"({"add_eos_token": true, "eos_token": "</s>"})"}})),
      with_both);
}

// As LlamaTokenizer of transformers 4.57 and 5.23 does.
TEST(SentencePieceSpecials, ASpaceInFrontCanBeTurnedOff) {
  const std::string model = read_file(golden_directory() / "sentencepiece/tokenizer.model");
  const ModelFiles files(
      {{"tokenizer.model", model}, {"tokenizer_config.json", R"({"add_prefix_space": false})"}});
  const auto tokenizer = load_or_die(files.path());
  EXPECT_EQ(values(*tokenizer->encode("the cat", SpecialTokens::kAdd)),
            (std::vector<int>{1, 517, 260, 278, 300}));
  EXPECT_EQ(
      values(*load_or_die(golden_directory() / "sentencepiece")->encode("the cat", SpecialTokens::kAdd)),
      (std::vector<int>{1, 265, 278, 300}));
  for (const char* text : {"the cat", " the cat", "  x"})
    EXPECT_EQ(tokenizer->decode(*tokenizer->encode(text, SpecialTokens::kAdd)), text);
}

// As Qwen2Tokenizer of transformers 5.23 does.
TEST(VocabAndMergesSpecials, FollowTokenizerConfig) {
  const std::string vocab = R"({"a": 0, "b": 1, "<|endoftext|>": 2})";
  const auto encode = [&](const std::string& config) {
    const ModelFiles files({{"vocab.json", vocab}, {"merges.txt", ""}, {"tokenizer_config.json", config}});
    return values(*load_or_die(files.path())->encode("ab", SpecialTokens::kAdd));
  };
  EXPECT_EQ(encode("{}"), (std::vector<int>{0, 1}));
  EXPECT_EQ(encode(R"({"add_bos_token": true, "bos_token": "<|endoftext|>"})"), (std::vector<int>{2, 0, 1}));
  EXPECT_EQ(encode(R"({"add_eos_token": true, "eos_token": "<|endoftext|>"})"), (std::vector<int>{0, 1, 2}));
}

TEST(SentencePieceSpecials, AreFoundInTextAndLeftOutOfIt) {
  const auto tokenizer = load_or_die(golden_directory() / "sentencepiece");
  const auto ids = tokenizer->encode("<s>Hello</s>", SpecialTokens::kOmit);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids->front(), TokenId(1));
  EXPECT_EQ(ids->back(), TokenId(2));
  EXPECT_EQ(tokenizer->decode(*ids), "Hello");
  EXPECT_TRUE(tokenizer->is_special(TokenId(0)));
  EXPECT_TRUE(tokenizer->token_bytes(TokenId(1)).empty());
}

// Expected texts come from decode(ids, skip_special_tokens=False) of tokenizers 0.23.
TEST(SpecialTokensInText, AreWrittenOutLikeTheReference) {
  const auto shown = [](const char* kind, const std::vector<int>& ids) {
    return decode_with_special_tokens(*load_or_die(golden_directory() / kind), token_ids(ids));
  };
  EXPECT_EQ(shown("gpt2", {414, 276, 78, 419, 311, 640, 262, 277, 295, 640}),
            "Hello world<|endoftext|> the cat<|endoftext|>");
  EXPECT_EQ(shown("llama3", {640, 414, 276, 78, 419, 311, 641, 262, 277, 295, 641}),
            "<|begin_of_text|>Hello world<|im_start|> the cat<|im_start|>");
  EXPECT_EQ(shown("llama2_legacy", {1, 583, 430, 306, 590, 471, 1, 362, 415, 428, 451, 1}),
            "<s> Hello world<s>  the cat<s>");
  for (const char* kind : {"llama2_first", "metaspace"})
    EXPECT_EQ(shown(kind, {1, 583, 430, 306, 590, 471, 1, 415, 428, 451, 1}),
              "<s> Hello world<s> the cat<s>");
}

// As transformers 5 does for add_bos_token and add_eos_token, and tokenizers for all three.
TEST(TokenizerConfigBesideTokenizerJson, ChangesNoIds) {
  for (const char* kind : {"llama2_legacy", "metaspace", "llama3", "qwen"}) {
    const std::string tokenizer = read_file(golden_directory() / kind / "tokenizer.json");
    const auto ids_with = [&](const std::string& config) {
      const ModelFiles files({{"tokenizer.json", tokenizer}, {"tokenizer_config.json", config}});
      return values(*load_or_die(files.path())->encode("the cat", SpecialTokens::kAdd));
    };
    const std::vector<int> plain = ids_with("{}");
    for (const char* key : {"add_bos_token", "add_eos_token", "add_prefix_space"})
      for (const char* value : {"true", "false"})
        EXPECT_EQ(
            ids_with(fmt::format(R"({{"tokenizer_class": "LlamaTokenizerFast", "{}": {}}})", key, value)),
            plain)
            << kind << ' ' << key << ' ' << value;
  }
}

TEST(DemoPair, RoundTrips) {
  const auto directory = outrider::source_dir() / "launch/demo_pair/target";
  const auto tokenizer = load_or_die(directory);
  EXPECT_EQ(tokenizer->bos(), TokenId(0));
  for (const std::string text : read_json(golden_directory() / "strings.json")) {
    if (text.find("<s>") != std::string::npos || text.find("</s>") != std::string::npos) continue;
    const auto ids = tokenizer->encode(text, SpecialTokens::kAdd);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(ids->front(), TokenId(0));
    EXPECT_EQ(tokenizer->decode(*ids), text);
  }
}

TEST(TokenTable, AnswersForHolesAndIdsOutOfRange) {
  const auto tokenizer = load_or_die(golden_directory() / "gpt2");
  for (const int id : {-1, tokenizer->vocab_size(), 1 << 30}) {
    EXPECT_EQ(tokenizer->token(TokenId(id)), "");
    EXPECT_EQ(tokenizer->token_bytes(TokenId(id)), "");
    EXPECT_FALSE(tokenizer->is_special(TokenId(id)));
    EXPECT_EQ(tokenizer->decode(token_ids({id})), "");
  }
  EXPECT_EQ(tokenizer->find("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer->token(*tokenizer->find("Ġthe")), "Ġthe");
  EXPECT_EQ(tokenizer->token_bytes(*tokenizer->find("Ġthe")), " the");
}

TEST(Encode, NamesTheFirstByteThatIsNotUtf8) {
  const auto tokenizer = load_or_die(golden_directory() / "gpt2");
  const auto ids = tokenizer->encode("abc\xC3(", SpecialTokens::kAdd);
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(ids.status().message().find("byte 3"), std::string::npos) << ids.status().message();
}

}  // namespace
}  // namespace outrider
