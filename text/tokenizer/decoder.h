// The text of a token: the "decoder" of a tokenizer.json as a function of single tokens.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace outrider {

class JsonView;

struct Decoder {
  bool byte_level = false;     // tokens are written in the GPT-2 alphabet
  bool byte_fallback = false;  // <0xHH> is that byte
  bool strip_leading_space = false;
  std::vector<std::pair<std::string, std::string>> replacements;  // "▁" -> " "

  // Decoders that are no function of single tokens, and unknown ones, are refused by name.
  static Result<Decoder> from_json(const JsonView& json);
  static Decoder sentencepiece(bool strip_leading_space);

  // An error: `replacements` make the token over 64 times as long.
  Result<std::string> bytes(std::string_view token) const;

 private:
  Status add_from_json(const JsonView& json, bool& fused);
};

}  // namespace outrider
