// Where the tests of tokenizers and templates find their files, and shorthand for ids.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/model_files/test_data.h"
#include "tests/support/source_dir.h"
#include "tests/support/temporary_directory.h"
#include "text/tokenizer/tokenizer.h"

namespace outrider {

inline std::filesystem::path golden_directory() {
  return outrider::source_dir() / "tests/goldens/tokenizers";
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline nlohmann::json read_json(const std::filesystem::path& path) {
  return nlohmann::json::parse(read_file(path));
}

inline std::unique_ptr<Tokenizer> load_or_die(const std::filesystem::path& directory) {
  auto tokenizer = load_tokenizer(directory);
  CHECK(tokenizer.ok(), "{}", tokenizer.status().message());
  return std::move(*tokenizer);
}

inline std::vector<int> values(const std::vector<TokenId>& ids) {
  std::vector<int> out;
  for (const TokenId id : ids) out.push_back(id.value());
  return out;
}

inline std::vector<TokenId> token_ids(const std::vector<int>& ids) {
  std::vector<TokenId> out;
  for (const int id : ids) out.push_back(TokenId(id));
  return out;
}

// The ids of a text without special tokens around it; a failed expectation if there are none.
inline std::vector<int> encode_plain(const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.encode(text, SpecialTokens::kOmit);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? values(*ids) : std::vector<int>();
}

// A model directory with the given files, gone at the end of the test.
class ModelFiles {
 public:
  struct File {
    std::string name, content;
  };
  ModelFiles(std::initializer_list<File> files) {
    for (const File& file : files) directory_.write(file.name, file.content);
  }
  const std::filesystem::path& path() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
};

}  // namespace outrider
