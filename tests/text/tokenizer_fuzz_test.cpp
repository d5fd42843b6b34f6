// Damaged tokenizer files of every kind: each is loaded or refused, and what is loaded tokenises any text or
// refuses it, within bounds.
#include "tests/support/mutations.h"
#include "tests/text/tokenizer_fixtures.h"

namespace outrider {
namespace {

using testing::Mutations;

void try_files(std::initializer_list<ModelFiles::File> files) {
  const ModelFiles model(files);
  const auto tokenizer = load_tokenizer(model.path());
  if (!tokenizer.ok()) {
    EXPECT_LT(tokenizer.status().message().size(), 5000u);
    return;
  }
  for (const char* text : {"", " ", "Hi 12 <|im_end|>", "é\xF0\x9F\x99\x82\n\n  a"}) {
    const auto ids = (*tokenizer)->encode(text, SpecialTokens::kAdd);
    if (!ids.ok()) continue;
    for (const TokenId id : *ids) {
      ASSERT_GE(id.value(), 0);
      ASSERT_LT(id.value(), (*tokenizer)->vocab_size());
    }
    (void)(*tokenizer)->decode(*ids);
  }
}

TEST(Fuzz, TokenizerFiles) {
  std::vector<std::string> jsons, models;
  for (const char* name : {"llama3", "qwen", "metaspace", "digits"}) {
    nlohmann::json file = read_json(golden_directory() / name / "tokenizer.json");
    // A small vocabulary is read fast, and what is around it is the greater part of the text.
    nlohmann::json few = nlohmann::json::object();
    for (const auto& [token, id] : file["model"]["vocab"].items())
      if (id < 40) few[token] = id;
    file["model"]["vocab"] = few;
    file["model"]["merges"] = nlohmann::json::array();
    jsons.push_back(file.dump());
  }
  const std::string piece = read_file(golden_directory() / "sentencepiece/tokenizer.model");
  models.push_back(piece.substr(0, 4000));
  std::vector<std::string> words = testing::json_words();
  for (const char* word : {"\"Replace\"", "\"Regex\"", "\"Sequence\"", "\"ByteLevel\"", "\"Metaspace\"",
                           "\"Split\"", "\"content\"", "(?i:", "\\p{L}+", "(a|b)*", "{1,9999}"})
    words.emplace_back(word);
  Mutations of_json(1, jsons, words), of_model(2, models, {"\x08", "\x12\xff\xff\xff\xff\x0f", "\x0a\x04"});
  testing::fuzz(300, [&] {
    try_files({{"tokenizer.json", of_json.next()}});
    try_files({{"tokenizer.model", of_model.next()}});
  });
}

}  // namespace
}  // namespace outrider
