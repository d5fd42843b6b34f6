#include "text/tokenizer/tokenizer_config.h"
#include "base/json_file.h"
#include "base/model_download.h"
#include "base/parse_number.h"

#include <nlohmann/json.hpp>

#include "text/tokenizer/json_view.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSpecialNames[] = {"bos_token", "eos_token", "unk_token", "pad_token"};

// Special tokens are written as "<s>" or as {"content": "<s>", ...}.
Status read_special_tokens(const JsonView& json, TokenizerConfig& config) {
  for (const char* name : kSpecialNames) {
    const JsonView value = json[name];
    if (!value.present()) continue;
    ASSIGN_OR_RETURN(config.special_tokens[name], (value.is_object() ? value["content"] : value).string());
  }
  return {};
}

Result<std::optional<bool>> optional_boolean(const JsonView& json) {
  if (!json.present()) return std::optional<bool>();
  ASSIGN_OR_RETURN(const bool value, json.boolean(false));
  return std::optional<bool>(value);
}

Status read_added_tokens_decoder(const JsonView& json, TokenizerConfig& config) {
  if (!json.present()) return {};
  RETURN_IF_ERROR(json.require_object());
  for (const auto& [key, value] : json.raw().items()) {
    const auto id = parse_number<int64_t>(key);
    if (!id) return json[key].malformed("the key is not an id");
    ASSIGN_OR_RETURN(AddedToken token, added_token_from_json(json[key], *id));
    config.added_tokens.push_back(std::move(token));
  }
  return {};
}

Status read_config(const fs::path& path, TokenizerConfig& config) {
  if (!is_entry(path)) return {};
  ASSIGN_OR_RETURN(const nlohmann::json root, read_json_file(path, {.max_bytes = kMaxConfigBytes}));
  const JsonView json(root, path.string());
  RETURN_IF_ERROR(json.require_object());
  if (json["tokenizer_class"].present()) {
    ASSIGN_OR_RETURN(config.tokenizer_class, json["tokenizer_class"].string());
  }
  ASSIGN_OR_RETURN(config.add_bos_token, optional_boolean(json["add_bos_token"]));
  ASSIGN_OR_RETURN(config.add_eos_token, optional_boolean(json["add_eos_token"]));
  ASSIGN_OR_RETURN(config.add_prefix_space, optional_boolean(json["add_prefix_space"]));
  RETURN_IF_ERROR(read_special_tokens(json, config));
  return read_added_tokens_decoder(json["added_tokens_decoder"], config);
}

// The older file: {"<|im_end|>": 151645}, without flags.
Status read_added_tokens(const fs::path& path, TokenizerConfig& config) {
  if (!is_entry(path) || !config.added_tokens.empty()) return {};
  ASSIGN_OR_RETURN(const nlohmann::json root, read_json_file(path, {.max_bytes = kMaxConfigBytes}));
  const JsonView json(root, path.string());
  RETURN_IF_ERROR(json.require_object());
  for (const auto& [content, value] : root.items()) {
    ASSIGN_OR_RETURN(const int64_t id, json[content].integer());
    if (id < 0 || id > Vocabulary::kMaxId)
      return json[content].malformed(fmt::format("id {} is out of range", id));
    if (content.size() > AddedTokenFinder::kMaxTokenBytes)
      return json.malformed("a key is too long for a token");
    config.added_tokens.push_back(
        {.id = TokenId(static_cast<int32_t>(id)), .sought = content, .special = config.is_special(content)});
  }
  return {};
}

}  // namespace

std::optional<std::string> TokenizerConfig::special(const std::string& name) const {
  const auto entry = special_tokens.find(name);
  if (entry == special_tokens.end()) return std::nullopt;
  return entry->second;
}

bool TokenizerConfig::is_special(const std::string& token) const {
  for (const auto& [name, content] : special_tokens)
    if (content == token) return true;
  return false;
}

Result<TokenizerConfig> read_tokenizer_config(const fs::path& model_directory) {
  TokenizerConfig config;
  const fs::path map_path = model_directory / "special_tokens_map.json";
  if (is_entry(map_path)) {
    ASSIGN_OR_RETURN(const nlohmann::json root, read_json_file(map_path, {.max_bytes = kMaxConfigBytes}));
    RETURN_IF_ERROR(read_special_tokens(JsonView(root, map_path.string()), config));
  }
  RETURN_IF_ERROR(read_config(model_directory / "tokenizer_config.json", config));
  RETURN_IF_ERROR(read_added_tokens(model_directory / "added_tokens.json", config));
  return config;
}

Result<AddedToken> added_token_from_json(const JsonView& json, int64_t id) {
  if (id < 0 || id > Vocabulary::kMaxId) return json.malformed(fmt::format("id {} is out of range", id));
  AddedToken token{.id = TokenId(static_cast<int32_t>(id))};
  ASSIGN_OR_RETURN(token.sought, json["content"].string());
  if (token.sought.size() > AddedTokenFinder::kMaxTokenBytes)
    return json["content"].malformed(
        fmt::format("longer than the limit of {} bytes", AddedTokenFinder::kMaxTokenBytes));
  ASSIGN_OR_RETURN(token.special, json["special"].boolean(false));
  ASSIGN_OR_RETURN(token.normalized, json["normalized"].boolean(!token.special));
  ASSIGN_OR_RETURN(token.single_word, json["single_word"].boolean(false));
  ASSIGN_OR_RETURN(token.strip_left, json["lstrip"].boolean(false));
  ASSIGN_OR_RETURN(token.strip_right, json["rstrip"].boolean(false));
  return token;
}

Status add_to_vocabulary(const std::vector<AddedToken>& tokens, Vocabulary& vocabulary) {
  for (const AddedToken& token : tokens) {
    RETURN_IF_ERROR(vocabulary.add(token.id.value(), token.sought).in("added token"));
    if (token.special) RETURN_IF_ERROR(vocabulary.mark_special(token.id));
  }
  return {};
}

}  // namespace outrider
