// Tokenizers that GGUF files carry: byte-level BPE ("gpt2"), SentencePiece BPE ("llama"), and merges of whole
// texts ("gemma4").
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "model_files/gguf_keys.h"
#include "model_files/gguf_parts.h"
#include "text/tokenizer/gguf_pre_tokenizers.h"
#include "text/tokenizer/loaders.h"
#include "text/tokenizer/sentencepiece_model.h"
#include "text/tokenizer/tokenizer_config.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr int64_t kNormalToken = 1, kControlToken = 3, kUserToken = 4, kUnusedToken = 5;

// True for the placeholder that converters write for an id without a token, where a matrix was padded to a
// round number of rows. Such entries do not make the vocabulary a different one.
bool is_padding(std::string_view token, uint64_t id, int64_t type) {
  return type == kUnusedToken && token == fmt::format("[PAD{}]", id);
}

struct GgufVocabulary {
  const GgufArray* tokens = nullptr;
  const GgufArray* types = nullptr;   // may be missing
  const GgufArray* scores = nullptr;  // may be missing

  int64_t type(uint64_t id) const {
    return types && id < types->count ? types->whole(id).value_or(0) : kNormalToken;
  }
};

Result<GgufVocabulary> vocabulary_of(const GgufContent& content, const std::string& name) {
  const GgufVocabulary out{gguf_array(content, "tokenizer.ggml.tokens"),
                           gguf_array(content, "tokenizer.ggml.token_type"),
                           gguf_array(content, "tokenizer.ggml.scores")};
  if (!out.tokens || out.tokens->texts.empty()) return malformed(name + ": has no tokenizer.ggml.tokens");
  return out;
}

// As a tokenizer.json has it.
json pre_tokenizer_of(const GgufPreTokenizer& pre) {
  json steps = json::array();
  for (const char* pattern : pre.patterns)
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  steps.push_back(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  return json{{"type", "Sequence"}, {"pretokenizers", steps}};
}

Result<const GgufPreTokenizer*> pre_tokenizer_named(const std::string& pre, const std::string& name) {
  if (const GgufPreTokenizer* known = find_gguf_pre_tokenizer(pre)) return known;
  std::string names;
  for (const GgufPreTokenizer& known : gguf_pre_tokenizers())
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  return unsupported(
      fmt::format("{}: tokenizer.ggml.pre is {}; supported are {}", name, printable(pre), names));
}

// The post-processor that adds the token in front of every text, if the file asks for one.
Result<json> post_processor_of(const GgufContent& content, const GgufVocabulary& words, bool if_absent,
                               const std::string& name) {
  const GgufValue* adds = content.find("tokenizer.ggml.add_bos_token");
  const bool* told = adds ? std::get_if<bool>(adds) : nullptr;
  if (!(told ? *told : if_absent)) return json();
  ASSIGN_OR_RETURN(const std::optional<int64_t> bos,
                   gguf_integer(content, "tokenizer.ggml.bos_token_id", name));
  if (!bos || *bos < 0 || static_cast<uint64_t>(*bos) >= words.tokens->count)
    return malformed(name + ": tokenizer.ggml.bos_token_id names no token");
  const std::string token(words.tokens->texts[static_cast<size_t>(*bos)]);
  return json{
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", token}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"special_tokens", {{token, {{"id", token}, {"ids", {*bos}}, {"tokens", {token}}}}}}};
}

// Parts of a tokenizer.json: the vocabulary, the tokens that are found in texts, and the merges.
struct BpeParts {
  json vocabulary = json::object(), added = json::array(), merges = json::array();
};

Result<BpeParts> bpe_parts(const GgufContent& content, const GgufVocabulary& words, const std::string& name) {
  const GgufArray* merges = gguf_array(content, "tokenizer.ggml.merges");
  if (!merges) return malformed(name + ": has no tokenizer.ggml.merges");
  BpeParts parts;
  json& vocabulary = parts.vocabulary;
  json& added = parts.added;
  for (uint64_t id = 0; id < words.tokens->count; ++id) {
    const std::string token(words.tokens->texts[id]);
    const int64_t type = words.type(id);
    if (is_padding(token, id, type)) continue;
    if (type == kControlToken || type == kUserToken)
      added.push_back({{"id", id},
                       {"content", token},
                       {"special", type == kControlToken},
                       {"normalized", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"single_word", false}});
    if (!vocabulary.emplace(token, id).second)
      return malformed(fmt::format("{}: token {} is there twice: {}", name, id, printable(token)));
  }
  for (const std::string_view merge : merges->texts) parts.merges.push_back(std::string(merge));
  return parts;
}

// The same as tokenizer.json has it.
Result<json> bpe_json(const GgufContent& content, const std::string& name) {
  ASSIGN_OR_RETURN(const GgufVocabulary words, vocabulary_of(content, name));
  ASSIGN_OR_RETURN(const BpeParts parts, bpe_parts(content, words, name));
  ASSIGN_OR_RETURN(const std::optional<std::string> pre, gguf_text(content, "tokenizer.ggml.pre", name));
  if (!pre) return unsupported(name + ": has no tokenizer.ggml.pre; convert the model again");
  ASSIGN_OR_RETURN(const GgufPreTokenizer* known, pre_tokenizer_named(*pre, name));
  ASSIGN_OR_RETURN(const json post_processor, post_processor_of(content, words, known->begins, name));
  return json{
      {"added_tokens", parts.added},
      {"normalizer", known->composes ? json{{"type", "NFC"}} : json()},
      {"pre_tokenizer", pre_tokenizer_of(*known)},
      {"post_processor", post_processor},
      {"decoder",
       {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
      {"model",
       {{"type", "BPE"},
        {"ignore_merges", known->ignore_merges},
        {"vocab", parts.vocabulary},
        {"merges", parts.merges}}}};
}

// Gemma 4's: spaces become U+2581, merges run over the whole text, and bytes stand for other characters.
Result<json> whole_text_bpe_json(const GgufContent& content, const std::string& name) {
  ASSIGN_OR_RETURN(const GgufVocabulary words, vocabulary_of(content, name));
  ASSIGN_OR_RETURN(const BpeParts parts, bpe_parts(content, words, name));
  ASSIGN_OR_RETURN(const json post_processor, post_processor_of(content, words, true, name));
  constexpr const char* kSpace = "\u2581";
  json model{{"type", "BPE"},
             {"byte_fallback", true},
             {"fuse_unk", true},
             {"vocab", parts.vocabulary},
             {"merges", parts.merges}};
  if (parts.vocabulary.contains("<unk>")) model["unk_token"] = "<unk>";
  return json{{"added_tokens", parts.added},
              {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}}},
              {"post_processor", post_processor},
              {"decoder",
               {{"type", "Sequence"},
                {"decoders",
                 {{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                  {{"type", "ByteFallback"}},
                  {{"type", "Fuse"}}}}}},
              {"model", model}};
}

Result<SentencePieceModel> sentencepiece_of(const GgufContent& content, const std::string& name) {
  ASSIGN_OR_RETURN(const GgufVocabulary words, vocabulary_of(content, name));
  if (!words.scores || words.scores->count != words.tokens->count)
    return malformed(name + ": tokenizer.ggml.scores is not a number for every token");
  SentencePieceModel model;
  model.remove_extra_whitespaces = false;
  model.user_defined_in_text = true;
  for (uint64_t id = 0; id < words.tokens->count; ++id) {
    const int64_t type = words.type(id);
    if (type < 1 || type > 6) return malformed(fmt::format("{}: token {} has type {}", name, id, type));
    model.byte_fallback |= type == static_cast<int64_t>(SentencePieceModel::Type::kByte);
    const std::string_view text = words.tokens->texts[id];
    model.pieces.push_back({is_padding(text, id, type) ? std::string() : std::string(text),
                            static_cast<float>(words.scores->number(id)),
                            static_cast<SentencePieceModel::Type>(type)});
  }
  const GgufValue* prefix = content.find("tokenizer.ggml.add_space_prefix");
  if (const bool* told = prefix ? std::get_if<bool>(prefix) : nullptr) model.add_dummy_prefix = *told;
  return model;
}

// Which tokens begin and end a text, and whether they are put there.
TokenizerConfig ends_of(const GgufContent& content, const GgufVocabulary& words, const std::string& name) {
  TokenizerConfig config;
  for (const char* end : {"bos", "eos"}) {
    const auto id = gguf_integer(content, fmt::format("tokenizer.ggml.{}_token_id", end), name);
    if (id.ok() && *id && **id >= 0 && static_cast<uint64_t>(**id) < words.tokens->count)
      config.special_tokens[fmt::format("{}_token", end)] = words.tokens->texts[static_cast<size_t>(**id)];
  }
  const auto told = [&](const char* key) -> std::optional<bool> {
    const GgufValue* value = content.find(key);
    const bool* adds = value ? std::get_if<bool>(value) : nullptr;
    return adds ? std::optional(*adds) : std::nullopt;
  };
  config.add_bos_token = told("tokenizer.ggml.add_bos_token");
  config.add_eos_token = told("tokenizer.ggml.add_eos_token");
  return config;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> load_gguf_tokenizer(const std::filesystem::path& file) {
  ASSIGN_OR_RETURN(const GgufParts parts, open_gguf(file));
  const GgufContent& content = parts.content;
  const std::string name = file.string();
  ASSIGN_OR_RETURN(const std::optional<std::string> kind, gguf_text(content, "tokenizer.ggml.model", name));
  if (!kind) return not_found(name + ": carries no tokenizer (tokenizer.ggml.model)");
  if (*kind == "gpt2") {
    ASSIGN_OR_RETURN(const json root, bpe_json(content, name));
    return tokenizer_from_json(root, name);
  }
  if (*kind == "gemma4") {
    ASSIGN_OR_RETURN(const json root, whole_text_bpe_json(content, name));
    return tokenizer_from_json(root, name);
  }
  if (*kind != "llama")
    return unsupported(fmt::format("{}: tokenizer.ggml.model is {}; supported are gpt2, llama and gemma4",
                                   name, printable(*kind)));
  ASSIGN_OR_RETURN(const SentencePieceModel model, sentencepiece_of(content, name));
  ASSIGN_OR_RETURN(const GgufVocabulary words, vocabulary_of(content, name));
  return sentencepiece_tokenizer(model, ends_of(content, words, name), name);
}

Result<GgufChat> read_gguf_chat(const std::filesystem::path& file) {
  ASSIGN_OR_RETURN(const GgufParts parts, open_gguf(file));
  const GgufContent& content = parts.content;
  const std::string name = file.string();
  ASSIGN_OR_RETURN(const GgufVocabulary words, vocabulary_of(content, name));
  ASSIGN_OR_RETURN(const std::optional<std::string> source,
                   gguf_text(content, "tokenizer.chat_template", name));
  return GgufChat{source, ends_of(content, words, name)};
}

}  // namespace outrider
