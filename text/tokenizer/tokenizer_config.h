// tokenizer_config.json, special_tokens_map.json and added_tokens.json: what they say about special tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/vocabulary.h"

namespace outrider {

class JsonView;

struct TokenizerConfig {
  std::string tokenizer_class;
  std::optional<bool> add_bos_token, add_eos_token, add_prefix_space;
  std::map<std::string, std::string> special_tokens;  // "bos_token" -> "<s>", also eos, unk, pad
  std::vector<AddedToken> added_tokens;

  std::optional<std::string> special(const std::string& name) const;
  bool is_special(const std::string& token) const;
};

constexpr uint64_t kMaxConfigBytes = 16u << 20;

// Files that are absent say nothing.
Result<TokenizerConfig> read_tokenizer_config(const std::filesystem::path& model_directory);

// {"content": "<s>", "lstrip": false, ...} with its id.
Result<AddedToken> added_token_from_json(const JsonView& json, int64_t id);

// Enters the tokens into the vocabulary.
Status add_to_vocabulary(const std::vector<AddedToken>& tokens, Vocabulary& vocabulary);

}  // namespace outrider
