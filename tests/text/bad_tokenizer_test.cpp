// Damaged, hostile and unsupported tokenizer files: each is refused by name, none crashes.
#include <functional>

#include "tests/text/tokenizer_fixtures.h"

namespace outrider {
namespace {

using nlohmann::json;

json small() {
  return {{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", {"a b"}}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"added_tokens", {{{"id", 3}, {"content", "<s>"}, {"special", true}}}}};
}

Status load_text(const std::string& text) {
  const ModelFiles files({{"tokenizer.json", text}});
  return load_tokenizer(files.path()).status();
}

struct BadCase {
  const char* name;
  std::function<void(json&)> damage;
  StatusCode code;
  const char* message;  // a part of it
};

class BadTokenizerJson : public testing::TestWithParam<BadCase> {};

TEST_P(BadTokenizerJson, IsRefusedByName) {
  json value = small();
  ASSERT_TRUE(load_text(value.dump()).ok()) << load_text(value.dump()).message();
  GetParam().damage(value);
  const Status status = load_text(value.dump());
  EXPECT_EQ(status.code(), GetParam().code) << status.message();
  EXPECT_NE(status.message().find("tokenizer.json: "), std::string::npos) << status.message();
  EXPECT_NE(status.message().find(GetParam().message), std::string::npos) << status.message();
}

constexpr auto kMalformed = StatusCode::kMalformed;
constexpr auto kUnsupported = StatusCode::kUnsupported;

const BadCase kCases[] = {
    {"RootIsArray", [](json& j) { j = json::array(); }, kMalformed, "object"},
    {"NoModel", [](json& j) { j.erase("model"); }, kMalformed, "model"},
    {"Unigram", [](json& j) { j["model"]["type"] = "Unigram"; }, kUnsupported,
     "model.type: model type 'Unigram'"},
    {"VocabIsArray", [](json& j) { j["model"]["vocab"] = json::array(); }, kMalformed, "model.vocab"},
    {"VocabIsEmpty", [](json& j) { j["model"]["vocab"] = json::object(); }, kMalformed, "empty"},
    {"IdIsText", [](json& j) { j["model"]["vocab"]["a"] = "0"; }, kMalformed, "model.vocab.a"},
    {"IdIsNegative", [](json& j) { j["model"]["vocab"]["a"] = -1; }, kMalformed, "'a' has id -1"},
    {"IdIsHuge", [](json& j) { j["model"]["vocab"]["a"] = 1 << 24; }, kMalformed, "16777216"},
    {"IdIsFarOff", [](json& j) { j["model"]["vocab"]["a"] = (1 << 24) - 1; }, kMalformed, "spread"},
    {"IdTwice", [](json& j) { j["model"]["vocab"]["b"] = 0; }, kMalformed, "id 0 stands for two tokens"},
    {"AddedIdTwice", [](json& j) { j["added_tokens"][0]["id"] = 2; }, kMalformed,
     "id 2 stands for two tokens"},
    {"AddedTokenTwice", [](json& j) { j["added_tokens"][0]["content"] = "a"; }, kMalformed,
     "'a' has two ids"},
    {"AddedTokenWithoutId", [](json& j) { j["added_tokens"][0].erase("id"); }, kMalformed,
     "added_tokens[0].id"},
    {"AddedTokenTooLong", [](json& j) { j["added_tokens"][0]["content"] = std::string(5000, 'x'); },
     kMalformed, "added_tokens[0].content"},
    {"FlagIsText", [](json& j) { j["added_tokens"][0]["special"] = "yes"; }, kMalformed,
     "added_tokens[0].special"},
    {"MergesMissing", [](json& j) { j["model"].erase("merges"); }, kMalformed, "model.merges"},
    {"MergeOfOne", [](json& j) { j["model"]["merges"][0] = "ab"; }, kMalformed, "model.merges[0]"},
    {"MergeOfThree",
     [](json& j) {
       j["model"]["merges"][0] = {"a", "b", "a"};
     },
     kMalformed, "model.merges[0]"},
    {"MergeOfNumbers",
     [](json& j) {
       j["model"]["merges"][0] = {1, 2};
     },
     kMalformed, "model.merges[0]"},
    {"MergeUnknown", [](json& j) { j["model"]["merges"][0] = "a c"; }, kMalformed, "merges[0] names 'c'"},
    {"MergeIntoUnknown", [](json& j) { j["model"]["merges"][0] = "b a"; }, kMalformed,
     "merges[0] names 'ba'"},
    {"Dropout", [](json& j) { j["model"]["dropout"] = 0.1; }, kUnsupported, "model.dropout"},
    {"WordSuffix", [](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, kUnsupported,
     "end_of_word_suffix"},
    {"UnknownUnk", [](json& j) { j["model"]["unk_token"] = "<unk>"; }, kMalformed, "model.unk_token"},
    {"Normalizer",
     [](json& j) {
       j["normalizer"] = {{"type", "BertNormalizer"}};
     },
     kUnsupported, "normalizer: normalizer type 'BertNormalizer'"},
    {"NestedNormalizer",
     [](json& j) {
       j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "Nmt"}}}}};
     },
     kUnsupported, "normalizer.normalizers[0]"},
    {"PreTokenizer",
     [](json& j) {
       j["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
     },
     kUnsupported, "pre_tokenizer: pre-tokenizer type 'BertPreTokenizer'"},
    {"PreTokenizerWithoutType", [](json& j) { j["pre_tokenizer"] = json::object(); }, kMalformed,
     "pre_tokenizer.type"},
    {"BadRegex",
     [](json& j) {
       j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
     },
     kMalformed, "pre_tokenizer.pattern.Regex"},
    {"SplitBehavior",
     [](json& j) {
       j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Sideways"}};
     },
     kUnsupported, "pre_tokenizer.behavior"},
    {"AfterByteLevel",
     [](json& j) {
       j["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}}};
     },
     kUnsupported, "'Digits' after ByteLevel"},
    {"PostProcessor",
     [](json& j) {
       j["post_processor"] = {{"type", "BertProcessing"}};
     },
     kUnsupported, "post_processor: post-processor type 'BertProcessing'"},
    {"TemplateWithoutToken",
     [](json& j) {
       j["post_processor"] = {
           {"type", "TemplateProcessing"},
           {"single", {{{"SpecialToken", {{"id", "<x>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
           {"special_tokens", json::object()}};
     },
     kMalformed, "post_processor.special_tokens.<x>.ids"},
    {"TemplateTokenOutside",
     [](json& j) {
       j["post_processor"] = {
           {"type", "TemplateProcessing"},
           {"single", {{{"SpecialToken", {{"id", "<x>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
           {"special_tokens", {{"<x>", {{"id", "<x>"}, {"ids", {1000000}}, {"tokens", {"<x>"}}}}}}};
     },
     kMalformed, "outside the vocabulary"},
    {"NoDecoder", [](json& j) { j["decoder"] = nullptr; }, kUnsupported, "decoder"},
    {"Decoder",
     [](json& j) {
       j["decoder"] = {{"type", "WordPiece"}};
     },
     kUnsupported, "'WordPiece'"},
    {"DecoderMismatch",
     [](json& j) {
       j["decoder"] = {{"type", "Fuse"}};
     },
     kUnsupported, "both be ByteLevel"},
};

INSTANTIATE_TEST_SUITE_P(Cases, BadTokenizerJson, testing::ValuesIn(kCases),
                         [](const auto& bad) { return std::string(bad.param.name); });

TEST(BadTokenizerFile, MissingDirectoryNamesTheRemedy) {
  const ModelFiles empty({});
  const Status status = load_tokenizer(empty.path()).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find("tokenizer.json"), std::string::npos);
}

TEST(BadTokenizerFile, GitLfsPointerIsNamed) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 9085657\n";
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    const ModelFiles files({{name, pointer}});
    const Status status = load_tokenizer(files.path()).status();
    EXPECT_NE(status.message().find("git lfs pull"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
  }
}

TEST(BadTokenizerFile, EveryTruncationIsRefused) {
  const std::string text = small().dump();
  for (size_t size = 0; size < text.size(); ++size)
    EXPECT_FALSE(load_text(text.substr(0, size)).ok()) << size;
}

TEST(BadTokenizerFile, DamagedBytesNeverCrash) {
  const std::string text = read_file(golden_directory() / "llama3/tokenizer.json");
  std::string damaged = text;
  for (size_t i = 0; i < text.size(); i += 31) {
    damaged[i] = static_cast<char>(text[i] + 1 + i % 5);
    const ModelFiles files({{"tokenizer.json", damaged}});
    if (const auto tokenizer = load_tokenizer(files.path()); tokenizer.ok())
      encode_plain(**tokenizer, "Hi 12 <|im_end|>");
    damaged[i] = text[i];
  }
}

// Forty steps that double the text would make a terabyte of one letter.
TEST(BadTokenizerFile, StepsThatDoubleTheTextEndSoon) {
  const auto doubling = [](const char* list, const json& step) {
    return json{{"type", "Sequence"}, {list, std::vector<json>(40, step)}};
  };
  const json replace{{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const json by_regex{{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", "aa"}};
  const json spaces{
      {"type", "Metaspace"}, {"replacement", "  "}, {"prepend_scheme", "never"}, {"split", false}};
  const json prefixed{{"type", "Sequence"},
                      {"pretokenizers",
                       {{{"type", "Metaspace"},
                         {"replacement", std::string(1 << 10, 'a')},
                         {"prepend_scheme", "always"},
                         {"split", false}},
                        {{"type", "Split"}, {"pattern", {{"Regex", "."}}}, {"behavior", "Isolated"}}}}};
  const auto error_of = [](const json& file, const std::string& text) {
    const ModelFiles files({{"tokenizer.json", file.dump()}});
    const auto tokenizer = load_tokenizer(files.path());
    if (!tokenizer.ok()) return tokenizer.status().message();
    return (*tokenizer)->encode(text, SpecialTokens::kAdd).status().message();
  };
  for (const json& step : {replace, by_regex}) {
    json file = small();
    file["normalizer"] = doubling("normalizers", step);
    EXPECT_NE(error_of(file, "a").find("over 64 times as long"), std::string::npos);
    file["added_tokens"][0]["normalized"] = true;
    file["added_tokens"][0]["content"] = "<a>";
    EXPECT_NE(error_of(file, "b").find("over 64 times as long"), std::string::npos) << "an added token";
  }
  for (const json& step : {spaces, prefixed}) {
    json file = small();
    file["pre_tokenizer"] = doubling("pretokenizers", step);
    file["decoder"] = {{"type", "Fuse"}};
    EXPECT_NE(error_of(file, "a b").find("over 64 times as long"), std::string::npos) << step;
  }
  json file = small();
  file["pre_tokenizer"] = nullptr;
  file["decoder"] =
      doubling("decoders", {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  EXPECT_NE(error_of(file, "b").find("over 64 times as long"), std::string::npos) << "of a token";
}

TEST(BadTokenizerFile, DeepNestingIsRefused) {
  EXPECT_EQ(load_text(std::string(100'000, '[')).code(), kMalformed);
  EXPECT_EQ(load_text("{\"model\":" + std::string(40, '[') + std::string(40, ']') + "}").code(), kMalformed);
}

TEST(BadTokenizerFile, MergesTextNamesItsLine) {
  const ModelFiles files(
      {{"vocab.json", R"({"a": 0, "b": 1, "ab": 2})"}, {"merges.txt", "#version: 0.2\na b\nab\n"}});
  EXPECT_NE(load_tokenizer(files.path()).status().message().find("merges.txt: line 3"), std::string::npos);
}

}  // namespace
}  // namespace outrider
