// Tokenizers of byte pairs by the names that llama.cpp gives them (tokenizer.ggml.pre).
#pragma once

#include <span>
#include <string_view>

namespace outrider {

struct GgufPreTokenizer {
  std::string_view name;
  // Regular expressions, one after the other: each cuts what those before it left into matches and what lies
  // between them.
  std::span<const char* const> patterns;
  bool ignore_merges = false;  // a word that is a token is that token
  bool begins = false;         // with the token that begins a text, unless the file says otherwise
  bool composes = false;       // letters and their marks, first (NFC)
};

// Null: not known.
const GgufPreTokenizer* find_gguf_pre_tokenizer(std::string_view name);
std::span<const GgufPreTokenizer> gguf_pre_tokenizers();

}  // namespace outrider
