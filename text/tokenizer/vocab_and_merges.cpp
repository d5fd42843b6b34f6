// The files of GPT-2 (Radford et al. 2019): vocab.json maps tokens to ids, merges.txt has one merge per line.
#include <nlohmann/json.hpp>

#include "base/json_file.h"
#include "text/tokenizer/bpe_model.h"
#include "text/tokenizer/json_view.h"
#include "text/tokenizer/loaders.h"
#include "text/tokenizer/pipeline_tokenizer.h"
#include "text/tokenizer/tokenizer_config.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGpt2EndOfText = "<|endoftext|>";  // in vocab.json like any other token

Status read_vocab(const fs::path& path, Vocabulary& vocabulary) {
  ASSIGN_OR_RETURN(const nlohmann::json root, read_json_file(path, {.max_bytes = kMaxTokenizerBytes}));
  const JsonView json(root, path.string());
  RETURN_IF_ERROR(json.require_object());
  for (const auto& [token, value] : root.items()) {
    ASSIGN_OR_RETURN(const int64_t id, json[token].integer());
    RETURN_IF_ERROR(vocabulary.add(id, token).in(path.string()));
  }
  return vocabulary.check_density().in(path.string());
}

Result<BpeModel::MergePairs> read_merges(const fs::path& path) {
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxTokenizerBytes));
  BpeModel::MergePairs merges;
  size_t line_number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    const size_t space = line.find(' ');
    if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
      return malformed(fmt::format("{}: line {}: a merge is two tokens with one space between", path.string(),
                                   line_number));
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return merges;
}

Status add_end_token(const Vocabulary& vocabulary, const TokenizerConfig& config, const char* key,
                     std::vector<TokenId>& ids) {
  const std::string token = config.special(key).value_or("");
  const auto id = vocabulary.find(token);
  if (!id)
    return malformed(
        fmt::format("tokenizer_config.json: add_{} is set, but {} '{}' is unknown", key, key, token));
  ids.push_back(*id);
  return {};
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> load_vocab_and_merges(const fs::path& model_directory) {
  ASSIGN_OR_RETURN(TokenizerConfig config, read_tokenizer_config(model_directory));
  const bool is_qwen = config.tokenizer_class.starts_with("Qwen2Tokenizer");
  TokenizerParts parts;
  RETURN_IF_ERROR(read_vocab(model_directory / "vocab.json", parts.vocabulary));
  parts.added_tokens = std::move(config.added_tokens);
  if (const auto id = parts.vocabulary.find(kGpt2EndOfText); id && parts.added_tokens.empty())
    parts.added_tokens.push_back({.id = *id, .sought = kGpt2EndOfText, .special = true});
  RETURN_IF_ERROR(add_to_vocabulary(parts.added_tokens, parts.vocabulary).in(model_directory.string()));
  if (is_qwen) parts.normalizer.add(normalize_nfc());
  parts.pre_tokenizer = PreTokenizer::byte_level(is_qwen ? kQwen2Pattern : kGpt2Pattern);
  parts.decoder.byte_level = true;
  if (config.add_bos_token.value_or(false))
    RETURN_IF_ERROR(
        add_end_token(parts.vocabulary, config, "bos_token", parts.prefix).in(model_directory.string()));
  if (config.add_eos_token.value_or(false))
    RETURN_IF_ERROR(
        add_end_token(parts.vocabulary, config, "eos_token", parts.suffix).in(model_directory.string()));
  ASSIGN_OR_RETURN(const BpeModel::MergePairs merges, read_merges(model_directory / "merges.txt"));
  auto model = BpeModel::make(parts.vocabulary, merges, {.byte_level = true});
  if (!model.ok()) return model.status().in((model_directory / "merges.txt").string());
  parts.model = std::move(*model);
  return make_pipeline_tokenizer(std::move(parts));
}

}  // namespace outrider
