#include "text/tokenizer/decoder.h"

#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/json_view.h"
#include "text/tokenizer/normalizer.h"

namespace outrider {

Decoder Decoder::sentencepiece(bool strip_leading_space) {
  return {.byte_fallback = true, .strip_leading_space = strip_leading_space, .replacements = {{"▁", " "}}};
}

Result<std::string> Decoder::bytes(std::string_view token) const {
  if (byte_level) return bytes_of_characters(token).value_or(std::string(token));
  std::string out(token);
  const size_t most_bytes = most_bytes_of(token.size());
  for (const auto& [from, to] : replacements) {
    ASSIGN_OR_RETURN(out, replace_all(out, from, to, most_bytes));
  }
  if (byte_fallback)
    if (const auto byte = fallback_byte(out)) return std::string(1, static_cast<char>(*byte));
  return out;
}

Result<Decoder> Decoder::from_json(const JsonView& json) {
  Decoder decoder;
  if (!json.present()) return json.unsupported("a tokenizer without a decoder is not supported");
  bool fused = false;
  RETURN_IF_ERROR(decoder.add_from_json(json, fused));
  return decoder;
}

// `fused`: the tokens are one text by now, so that Strip concerns its ends.
Status Decoder::add_from_json(const JsonView& json, bool& fused) {
  ASSIGN_OR_RETURN(const std::string type, json["type"].string());
  if (type == "Sequence") {
    RETURN_IF_ERROR(json["decoders"].require_array());
    for (size_t i = 0; i < json["decoders"].size(); ++i)
      RETURN_IF_ERROR(add_from_json(json["decoders"].at(i), fused));
  } else if (type == "ByteLevel") {
    byte_level = true;
  } else if (type == "ByteFallback") {
    byte_fallback = true;
  } else if (type == "Fuse") {
    fused = true;
  } else if (type == "Replace") {
    ASSIGN_OR_RETURN(std::string from, json["pattern"]["String"].string());
    ASSIGN_OR_RETURN(std::string to, json["content"].string());
    if (from.empty()) return json["pattern"]["String"].malformed("must not be empty");
    if (fused) return json.unsupported("decoder Replace after Fuse");
    replacements.emplace_back(std::move(from), std::move(to));
  } else if (type == "Strip") {
    ASSIGN_OR_RETURN(const std::string content, json["content"].string());
    ASSIGN_OR_RETURN(const int64_t start, json["start"].integer());
    ASSIGN_OR_RETURN(const int64_t stop, json["stop"].integer());
    if (!fused || content != " " || start != 1 || stop != 0)
      return json.unsupported("decoder Strip other than of one leading space after Fuse");
    strip_leading_space = true;
  } else if (type == "Metaspace") {
    ASSIGN_OR_RETURN(std::string replacement, json["replacement"].string());
    if (replacement.empty()) return json["replacement"].malformed("must not be empty");
    ASSIGN_OR_RETURN(const bool add_prefix_space, json["add_prefix_space"].boolean(true));
    const JsonView scheme = json["prepend_scheme"];
    strip_leading_space = scheme.is_string() ? *scheme.string() != "never" : add_prefix_space;
    replacements.emplace_back(std::move(replacement), " ");
  } else {
    return json.unsupported(fmt::format("decoder type '{}' is not supported", type));
  }
  return {};
}

}  // namespace outrider
