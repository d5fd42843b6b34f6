// tokenizer.model: a SentencePiece BPE model as Llama 2 and Mistral ship it.
#include "base/json_file.h"
#include "text/tokenizer/loaders.h"
#include "text/tokenizer/pipeline_tokenizer.h"
#include "text/tokenizer/sentencepiece_bpe.h"
#include "text/tokenizer/sentencepiece_model.h"
#include "text/tokenizer/tokenizer_config.h"

namespace outrider {
namespace {

constexpr const char* kSpace = "▁";  // U+2581

// SentencePiece's remove_extra_whitespaces: no spaces at the start, one between words. It cuts the end only
// once spaces are "▁", and so takes a "▁" of the text along.
Normalizer::Step squeeze_spaces() {
  return [](std::string text, size_t) -> Result<std::string> {
    std::string out;
    for (const char c : text)
      if (c != ' ' || (!out.empty() && out.back() != ' ')) out += c;
    return out;
  };
}

Normalizer::Step cut_end() {
  return [](std::string text, size_t) -> Result<std::string> {
    while (text.ends_with(kSpace)) text.resize(text.size() - std::string_view(kSpace).size());
    return text;
  };
}

Status add_pieces(const SentencePieceModel& model, TokenizerParts& parts) {
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const auto& piece = model.pieces[i];
    const TokenId id(static_cast<int32_t>(i));
    using Type = SentencePieceModel::Type;
    if (piece.type == Type::kUnused && piece.text.empty()) continue;
    RETURN_IF_ERROR(parts.vocabulary.add(id.value(), piece.text));
    const bool is_special = piece.type == Type::kControl || piece.type == Type::kUnknown;
    if (!is_special && piece.type != Type::kUserDefined) continue;
    if (piece.text.size() > AddedTokenFinder::kMaxTokenBytes)
      return malformed(fmt::format("piece {} is too long", i));
    const bool in_text =
        is_special || (model.user_defined_in_text && piece.text.find(kSpace) == std::string::npos);
    parts.added_tokens.push_back(
        {.id = id, .sought = piece.text, .special = is_special, .normalized = !in_text});
  }
  return {};
}

// Tokens that a fine-tuned model has beyond its pieces.
Status add_tokens_of_config(const TokenizerConfig& config, TokenizerParts& parts) {
  const int32_t pieces = parts.vocabulary.size();
  for (const AddedToken& token : config.added_tokens) {
    if (token.id.value() < pieces) continue;
    parts.added_tokens.push_back(token);
    parts.added_tokens.back().normalized = false;
  }
  return add_to_vocabulary(parts.added_tokens, parts.vocabulary);
}

Status add_end_token(const Vocabulary& vocabulary, const TokenizerConfig& config, const char* key,
                     const char* if_absent, std::vector<TokenId>& ids) {
  const std::string token = config.special(key).value_or(if_absent);
  const auto id = vocabulary.find(token);
  if (!id)
    return malformed(
        fmt::format("{} '{}' is not a piece; set add_{} in tokenizer_config.json to false", key, token, key));
  ids.push_back(*id);
  return {};
}

Status fill(const SentencePieceModel& model, const TokenizerConfig& config, TokenizerParts& parts) {
  RETURN_IF_ERROR(add_pieces(model, parts));
  RETURN_IF_ERROR(add_tokens_of_config(config, parts));
  ASSIGN_OR_RETURN(parts.model, SentencePieceBpe::make(model));
  if (model.remove_extra_whitespaces) parts.normalizer.add(squeeze_spaces());
  const bool adds_space = model.add_dummy_prefix && config.add_prefix_space.value_or(true);
  if (adds_space) parts.normalizer.add(prepend(" "));
  parts.normalizer.add(replace_text(" ", kSpace));
  if (model.remove_extra_whitespaces) parts.normalizer.add(cut_end());
  parts.decoder = Decoder::sentencepiece(/*strip_leading_space=*/adds_space);
  if (config.add_bos_token.value_or(true))
    RETURN_IF_ERROR(add_end_token(parts.vocabulary, config, "bos_token", "<s>", parts.prefix));
  if (config.add_eos_token.value_or(false))
    RETURN_IF_ERROR(add_end_token(parts.vocabulary, config, "eos_token", "</s>", parts.suffix));
  return {};
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> load_sentencepiece(const std::filesystem::path& file) {
  ASSIGN_OR_RETURN(const std::string bytes, read_text_file(file, kMaxTokenizerBytes));
  ASSIGN_OR_RETURN(const TokenizerConfig config, read_tokenizer_config(file.parent_path()));
  auto model = parse_sentencepiece_model(bytes);
  if (!model.ok()) return model.status().in(file.string());
  return sentencepiece_tokenizer(*model, config, file.string());
}

Result<std::unique_ptr<Tokenizer>> sentencepiece_tokenizer(const SentencePieceModel& model,
                                                           const TokenizerConfig& config,
                                                           const std::string& name) {
  TokenizerParts parts;
  RETURN_IF_ERROR(fill(model, config, parts).in(name));
  return make_pipeline_tokenizer(std::move(parts));
}

}  // namespace outrider
