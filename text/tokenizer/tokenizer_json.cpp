// tokenizer.json of the Hugging Face tokenizers library, model type BPE.
#include <nlohmann/json.hpp>

#include "base/json_file.h"
#include "text/tokenizer/bpe_model.h"
#include "text/tokenizer/json_view.h"
#include "text/tokenizer/loaders.h"
#include "text/tokenizer/pipeline_tokenizer.h"
#include "text/tokenizer/tokenizer_config.h"

namespace outrider {
namespace {

Status read_vocabulary(const JsonView& json, Vocabulary& vocabulary) {
  RETURN_IF_ERROR(json.require_object());
  for (const auto& [token, id] : json.raw().items()) {
    if (!id.is_number_integer()) return json[token].malformed("an integer is needed here");
    if (const Status status = vocabulary.add(json[token].integer().ok() ? *json[token].integer() : -1, token);
        !status.ok())
      return json.malformed(status.message());
  }
  if (const Status status = vocabulary.check_density(); !status.ok()) return json.malformed(status.message());
  return {};
}

// "a b" or, from tokenizers 0.20 on, ["a", "b"].
Result<std::pair<std::string, std::string>> read_merge(const JsonView& json) {
  if (json.is_array() && json.size() == 2) {
    ASSIGN_OR_RETURN(std::string left, json.at(0).string());
    ASSIGN_OR_RETURN(std::string right, json.at(1).string());
    return std::pair(std::move(left), std::move(right));
  }
  ASSIGN_OR_RETURN(const std::string both, json.string());
  const size_t space = both.find(' ');
  if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos)
    return json.malformed("a merge is two tokens with one space between");
  return std::pair(both.substr(0, space), both.substr(space + 1));
}

Result<BpeModel::MergePairs> read_merges(const JsonView& json) {
  RETURN_IF_ERROR(json.require_array());
  if (json.size() > BpeModel::kMaxMerges)
    return json.malformed(
        fmt::format("{} merges, more than the limit of {}", json.size(), BpeModel::kMaxMerges));
  BpeModel::MergePairs merges;
  merges.reserve(json.size());
  for (size_t i = 0; i < json.size(); ++i) {
    ASSIGN_OR_RETURN(auto merge, read_merge(json.at(i)));
    merges.push_back(std::move(merge));
  }
  return merges;
}

Status refuse_nonempty(const JsonView& json) {
  if (!json.present() || (json.is_string() && json.string()->empty())) return {};
  return json.unsupported("only null is supported here");
}

Result<BpeOptions> read_bpe_options(const JsonView& model, const Vocabulary& vocabulary) {
  BpeOptions options;
  RETURN_IF_ERROR(refuse_nonempty(model["continuing_subword_prefix"]));
  RETURN_IF_ERROR(refuse_nonempty(model["end_of_word_suffix"]));
  if (model["dropout"].present() && model["dropout"].raw() != 0)
    return model["dropout"].unsupported("merges dropped at random are for training");
  ASSIGN_OR_RETURN(options.byte_fallback, model["byte_fallback"].boolean(false));
  ASSIGN_OR_RETURN(options.ignore_merges, model["ignore_merges"].boolean(false));
  ASSIGN_OR_RETURN(options.fuse_unknown, model["fuse_unk"].boolean(false));
  if (model["unk_token"].present()) {
    ASSIGN_OR_RETURN(const std::string unknown, model["unk_token"].string());
    options.unknown = vocabulary.find(unknown);
    if (!options.unknown)
      return model["unk_token"].malformed(fmt::format("'{}' is not in the vocabulary", unknown));
  }
  return options;
}

Status check_model_type(const JsonView& model) {
  RETURN_IF_ERROR(model.require_object());
  if (!model["type"].present() && model["merges"].present()) return {};  // files of before the key existed
  ASSIGN_OR_RETURN(const std::string type, model["type"].string());
  if (type != "BPE")
    return model["type"].unsupported(fmt::format("model type '{}' is not supported, only BPE", type));
  return {};
}

Status read_added_tokens(const JsonView& json, TokenizerParts& parts) {
  if (!json.present()) return {};
  RETURN_IF_ERROR(json.require_array());
  for (size_t i = 0; i < json.size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t id, json.at(i)["id"].integer());
    ASSIGN_OR_RETURN(AddedToken token, added_token_from_json(json.at(i), id));
    parts.added_tokens.push_back(std::move(token));
  }
  const Status status = add_to_vocabulary(parts.added_tokens, parts.vocabulary);
  return status.ok() ? status : json.malformed(status.message());
}

// {"SpecialToken": {"id": "<s>"}} names an entry of "special_tokens", which holds the ids.
Status read_template_token(const JsonView& piece, const JsonView& special_tokens,
                           const Vocabulary& vocabulary, std::vector<TokenId>& ids) {
  ASSIGN_OR_RETURN(const std::string name, piece["SpecialToken"]["id"].string());
  const JsonView listed = special_tokens[name]["ids"];
  RETURN_IF_ERROR(listed.require_array());
  for (size_t i = 0; i < listed.size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t id, listed.at(i).integer());
    if (id < 0 || id >= vocabulary.size())
      return listed.malformed(
          fmt::format("id {} is outside the vocabulary of {} tokens", id, vocabulary.size()));
    ids.push_back(TokenId(static_cast<int32_t>(id)));
  }
  return {};
}

Status read_template(const JsonView& json, TokenizerParts& parts) {
  const JsonView pieces = json["single"];
  RETURN_IF_ERROR(pieces.require_array());
  std::vector<TokenId> before, after;
  bool seen_text = false;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces.at(i)["Sequence"].present()) {
      if (seen_text) return pieces.unsupported("a template that repeats the text");
      seen_text = true;
    } else {
      RETURN_IF_ERROR(read_template_token(pieces.at(i), json["special_tokens"], parts.vocabulary,
                                          seen_text ? after : before));
    }
  }
  if (!seen_text) return pieces.unsupported("a template without the text");
  // In a sequence, later processors wrap what earlier ones made.
  parts.prefix.insert(parts.prefix.begin(), before.begin(), before.end());
  parts.suffix.insert(parts.suffix.end(), after.begin(), after.end());
  return {};
}

Status read_post_processor(const JsonView& json, TokenizerParts& parts) {
  if (!json.present()) return {};
  ASSIGN_OR_RETURN(const std::string type, json["type"].string());
  if (type == "ByteLevel") return {};  // concerns offsets only
  if (type == "TemplateProcessing") return read_template(json, parts);
  if (type != "Sequence")
    return json.unsupported(fmt::format("post-processor type '{}' is not supported", type));
  RETURN_IF_ERROR(json["processors"].require_array());
  for (size_t i = 0; i < json["processors"].size(); ++i)
    RETURN_IF_ERROR(read_post_processor(json["processors"].at(i), parts));
  return {};
}

// Tokens sought in normalised text are normalised themselves.
Status normalize_added_tokens(TokenizerParts& parts) {
  for (AddedToken& token : parts.added_tokens) {
    if (!token.normalized) continue;
    ASSIGN_OR_RETURN(token.sought, parts.normalizer.apply(std::move(token.sought)));
    if (token.sought.size() > AddedTokenFinder::kMaxTokenBytes)
      return unsupported(
          fmt::format("added token {} becomes too long when it is normalised", token.id.value()));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> load_tokenizer_json(const std::filesystem::path& file) {
  ASSIGN_OR_RETURN(const nlohmann::json root, read_json_file(file, {.max_bytes = kMaxTokenizerBytes}));
  return tokenizer_from_json(root, file.string());
}

Result<std::unique_ptr<Tokenizer>> tokenizer_from_json(const nlohmann::json& root, const std::string& name) {
  const JsonView json(root, name);
  RETURN_IF_ERROR(json.require_object());
  const JsonView model = json["model"];
  RETURN_IF_ERROR(check_model_type(model));

  TokenizerParts parts;
  RETURN_IF_ERROR(read_vocabulary(model["vocab"], parts.vocabulary));
  RETURN_IF_ERROR(read_added_tokens(json["added_tokens"], parts));
  ASSIGN_OR_RETURN(parts.normalizer, Normalizer::from_json(json["normalizer"]));
  ASSIGN_OR_RETURN(parts.pre_tokenizer, PreTokenizer::from_json(json["pre_tokenizer"]));
  ASSIGN_OR_RETURN(parts.decoder, Decoder::from_json(json["decoder"]));
  if (parts.decoder.byte_level != parts.pre_tokenizer.is_byte_level())
    return json["decoder"].unsupported(
        "the pre-tokenizer and the decoder must both be ByteLevel, or neither");
  RETURN_IF_ERROR(read_post_processor(json["post_processor"], parts));
  RETURN_IF_ERROR(normalize_added_tokens(parts).in(name));

  ASSIGN_OR_RETURN(BpeOptions options, read_bpe_options(model, parts.vocabulary));
  options.byte_level = parts.pre_tokenizer.is_byte_level();
  ASSIGN_OR_RETURN(const BpeModel::MergePairs merges, read_merges(model["merges"]));
  auto bpe = BpeModel::make(parts.vocabulary, merges, options);
  if (!bpe.ok()) return model.malformed(bpe.status().message());
  parts.model = std::move(*bpe);
  return make_pipeline_tokenizer(std::move(parts));
}

}  // namespace outrider
