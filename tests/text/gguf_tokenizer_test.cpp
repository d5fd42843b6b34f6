// Tokenizers and chat templates that GGUF files carry, against the same in Hugging Face's files.
#include "tests/support/gguf_builder.h"
#include "tests/text/tokenizer_fixtures.h"
#include "text/chat_template/chat_template.h"
#include "text/tokenizer/gguf_pre_tokenizers.h"
#include "text/tokenizer/sentencepiece_model.h"

namespace outrider {
namespace {

using nlohmann::json;
using testing::Gguf;

// As a converter writes tokenizer.json down.
Gguf bpe_file(const json& tokenizer, const std::string& pre, const std::string& model = "gpt2") {
  std::map<int, std::string> tokens;
  std::map<int, int32_t> types;
  for (const auto& [token, id] : tokenizer["model"]["vocab"].items()) tokens[id] = token;
  for (const json& added : tokenizer["added_tokens"]) {
    tokens[added["id"]] = added["content"];
    types[added["id"]] = added["special"] ? 3 : 4;
  }
  std::vector<std::string> list, merges;
  std::vector<int32_t> kinds;
  for (const auto& [id, token] : tokens) {
    list.push_back(token);
    kinds.push_back(types.contains(id) ? types[id] : 1);
  }
  for (const json& merge : tokenizer["model"]["merges"])
    merges.push_back(merge.is_string() ? merge.get<std::string>()
                                       : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  return Gguf()
      .text("tokenizer.ggml.model", model)
      .text("tokenizer.ggml.pre", pre)
      .texts("tokenizer.ggml.tokens", list)
      .numbers("tokenizer.ggml.token_type", 5, kinds)
      .texts("tokenizer.ggml.merges", merges);
}

Result<std::unique_ptr<Tokenizer>> tokenizer_of(const Gguf& file) {
  const TemporaryDirectory directory;
  return load_tokenizer(directory.write("m.gguf", file.file()));
}

void expect_goldens(const Tokenizer& tokenizer, const std::string& name) {
  const json expected = read_json(golden_directory() / name / "expected.json"),
             strings = read_json(golden_directory() / "strings.json");
  for (size_t i = 0; i < strings.size(); ++i)
    EXPECT_EQ(encode_plain(tokenizer, strings[i]), expected["ids"][i].get<std::vector<int>>())
        << name << " " << i;
  const auto ids = tokenizer.encode("Hello world", SpecialTokens::kAdd);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(values(*ids), expected["with_special"].get<std::vector<int>>()) << name;
}

TEST(GgufTokenizer, ByteLevelBpeEncodesLikeTheReference) {
  for (const auto& [name, pre] : {std::pair{"gpt2", "gpt-2"}, {"qwen", "qwen2"}, {"llama3", "llama-bpe"}}) {
    const json original = read_json(golden_directory() / name / "tokenizer.json");
    Gguf file = bpe_file(original, pre);
    if (std::string_view(name) == "llama3") file.number("tokenizer.ggml.bos_token_id", 640);
    const auto tokenizer = tokenizer_of(file);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    expect_goldens(**tokenizer, name);
  }
}

// The kind of Gemma 4 has merges and no pattern.
TEST(GgufTokenizer, WholeTextBpeEncodesLikeTheReference) {
  const json original = read_json(golden_directory() / "gemma" / "tokenizer.json");
  const auto tokenizer =
      tokenizer_of(bpe_file(original, "", "gemma4").number("tokenizer.ggml.bos_token_id", 1));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  expect_goldens(**tokenizer, "gemma");
  const auto from_json = load_or_die(golden_directory() / "gemma");
  const json strings = read_json(golden_directory() / "strings.json");
  for (size_t i = 0; i < strings.size(); ++i) {
    const auto ids = from_json->encode(strings[i].get<std::string>(), SpecialTokens::kOmit);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ((*tokenizer)->decode(*ids), from_json->decode(*ids)) << i;
  }
}

// Whatever a pattern cuts, nothing is lost.
TEST(GgufTokenizer, EveryPatternThatLlamaCppNamesCutsText) {
  const json original = read_json(golden_directory() / "gpt2" / "tokenizer.json");
  const std::string text =
      "It's 12345 o'clock: \u4f60\u597d, \u00dcBER-caf\u00e9's\r\n\n  x +=\t(y) 3.14 \U0001f600 ";
  for (const GgufPreTokenizer& known : gguf_pre_tokenizers()) {
    Gguf file = bpe_file(original, std::string(known.name));
    file.flag("tokenizer.ggml.add_bos_token", false);
    const auto tokenizer = tokenizer_of(file);
    ASSERT_TRUE(tokenizer.ok()) << known.name << ": " << tokenizer.status().message();
    const auto ids = (*tokenizer)->encode(text, SpecialTokens::kOmit);
    ASSERT_TRUE(ids.ok()) << known.name << ": " << ids.status().message();
    EXPECT_EQ((*tokenizer)->decode(*ids), text) << known.name;
  }
}

// Files of Gemma call their unknown piece a control token. With byte fallback no text needs it.
TEST(GgufTokenizer, SentencePieceEncodesLikeTheOriginalFile) {
  const auto model =
      parse_sentencepiece_model(read_file(golden_directory() / "sentencepiece" / "tokenizer.model"));
  ASSERT_TRUE(model.ok());
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const auto& piece : model->pieces) {
    tokens.push_back(piece.text);
    scores.push_back(piece.score);
    types.push_back(static_cast<int32_t>(piece.type));
  }
  for (const int32_t type_of_unknown : {2, 3}) {
    ASSERT_EQ(tokens[0], "<unk>");
    types[0] = type_of_unknown;
    const auto tokenizer = tokenizer_of(Gguf()
                                            .text("tokenizer.ggml.model", "llama")
                                            .texts("tokenizer.ggml.tokens", tokens)
                                            .numbers("tokenizer.ggml.scores", 6, scores)
                                            .numbers("tokenizer.ggml.token_type", 5, types)
                                            .number("tokenizer.ggml.bos_token_id", 1)
                                            .number("tokenizer.ggml.eos_token_id", 2));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    const auto original = load_or_die(golden_directory() / "sentencepiece");
    const json strings = read_json(golden_directory() / "strings.json");
    for (size_t i = 0; i < strings.size(); ++i)
      for (const auto special : {SpecialTokens::kOmit, SpecialTokens::kAdd}) {
        const auto got = (*tokenizer)->encode(strings[i].get<std::string>(), special),
                   expected = original->encode(strings[i].get<std::string>(), special);
        ASSERT_TRUE(got.ok() && expected.ok());
        EXPECT_EQ(values(*got), values(*expected)) << i;
        EXPECT_EQ((*tokenizer)->decode(*got), original->decode(*expected)) << i;
      }
  }
}

// Converters pad the list of tokens to the rows of the matrix: [PADn] of type "unused" names nothing.
TEST(GgufTokenizer, PaddingAtTheEndMakesNoOtherVocabulary) {
  const auto file = [](int padding) {
    std::vector<std::string> tokens{"a", "b", "ab", "<s>"};
    std::vector<int32_t> types{1, 1, 1, 3};
    for (int i = 0; i < padding; ++i) {
      tokens.push_back("[PAD" + std::to_string(tokens.size()) + "]");
      types.push_back(5);
    }
    return Gguf()
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "gpt-2")
        .texts("tokenizer.ggml.tokens", tokens)
        .numbers("tokenizer.ggml.token_type", 5, types)
        .texts("tokenizer.ggml.merges", {"a b"});
  };
  const auto plain = tokenizer_of(file(0)), padded = tokenizer_of(file(128));
  ASSERT_TRUE(plain.ok() && padded.ok());
  EXPECT_TRUE(check_same_vocabulary(**plain, **padded).ok());
  EXPECT_TRUE(check_same_vocabulary(**padded, **plain).ok());
  EXPECT_EQ((*plain)->fingerprint(), (*padded)->fingerprint());
  const auto ids = (*padded)->encode("[PAD4]ab", SpecialTokens::kOmit);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids->back(), TokenId(2));
}

// As llama.cpp: a token that the user defined ends the text before it like a special one, and each text
// between has the space in front.
TEST(GgufTokenizer, UserDefinedTokensOfSentencePieceEndWords) {
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types{2, 3, 3};
  std::vector<float> scores{0, 0, 0};
  for (const char* piece : {"▁us", "us", "er", "user", "▁user", "▁", "u", "s", "e", "r"}) {
    tokens.emplace_back(piece);
    types.push_back(1);
    scores.push_back(-static_cast<float>(tokens.size()));
  }
  const auto mark = static_cast<int>(tokens.size());
  for (const char* token : {"<|im_start|>", "[PAD14]"}) {
    tokens.emplace_back(token);
    types.push_back(token[0] == '[' ? 5 : 4);
    scores.push_back(-1000);
  }
  const auto tokenizer = tokenizer_of(Gguf()
                                          .text("tokenizer.ggml.model", "llama")
                                          .texts("tokenizer.ggml.tokens", tokens)
                                          .numbers("tokenizer.ggml.scores", 6, scores)
                                          .numbers("tokenizer.ggml.token_type", 5, types)
                                          .number("tokenizer.ggml.bos_token_id", 1)
                                          .number("tokenizer.ggml.eos_token_id", 2));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const int user = 7;
  const auto ids = [&](const char* text) { return values(*(*tokenizer)->encode(text, SpecialTokens::kAdd)); };
  EXPECT_EQ(ids("<|im_start|>user"), (std::vector<int>{1, mark, user}));
  EXPECT_EQ(ids("user<|im_start|>user"), (std::vector<int>{1, user, mark, user}));
  EXPECT_EQ((*tokenizer)->vocab_size(), mark + 1);
}

TEST(GgufTokenizer, WhatIsMissingOrUnknownIsNamed) {
  const auto expect_error = [](const Gguf& file, const std::string& words) {
    const auto tokenizer = tokenizer_of(file);
    ASSERT_FALSE(tokenizer.ok()) << words;
    EXPECT_NE(tokenizer.status().message().find(words), std::string::npos) << tokenizer.status().message();
    EXPECT_NE(tokenizer.status().message().find("m.gguf"), std::string::npos) << tokenizer.status().message();
  };
  expect_error(Gguf(), "tokenizer.ggml.model");
  expect_error(Gguf().text("tokenizer.ggml.model", "t5"), "t5");
  expect_error(Gguf().text("tokenizer.ggml.model", "gpt2"), "tokenizer.ggml.tokens");
  expect_error(Gguf().text("tokenizer.ggml.model", "gpt2").texts("tokenizer.ggml.tokens", {"a"}),
               "tokenizer.ggml.merges");
  const json qwen = read_json(golden_directory() / "qwen" / "tokenizer.json");
  expect_error(bpe_file(qwen, "kimi-k2"), "kimi-k2; supported");
  expect_error(Gguf().text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", {"a"}),
               "tokenizer.ggml.scores");
}

TEST(GgufTokenizer, TheChatTemplateIsRead) {
  const TemporaryDirectory directory;
  const auto path = directory.write(
      "m.gguf", Gguf()
                    .text("tokenizer.ggml.model", "gpt2")
                    .texts("tokenizer.ggml.tokens", {"a", "<s>", "</s>"})
                    .number("tokenizer.ggml.bos_token_id", 1)
                    .text("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}")
                    .file());
  const auto chat = load_chat_template(path);
  ASSERT_TRUE(chat.ok()) << chat.status().message();
  const auto none =
      load_chat_template(directory.write("n.gguf", Gguf().texts("tokenizer.ggml.tokens", {"a"}).file()));
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.status().message().find("tokenizer.chat_template"), std::string::npos);
}

}  // namespace
}  // namespace outrider
