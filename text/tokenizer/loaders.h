// The file formats load_tokenizer() knows.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/status.h"
#include "text/tokenizer/sentencepiece_model.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_config.h"

namespace outrider {

constexpr uint64_t kMaxTokenizerBytes = 64u << 20;

Result<std::unique_ptr<Tokenizer>> load_tokenizer_json(const std::filesystem::path& file);
// The same, read already; `name` of the file stands in front of messages.
Result<std::unique_ptr<Tokenizer>> tokenizer_from_json(const nlohmann::json& root, const std::string& name);
// A SentencePiece model, with tokenizer_config.json beside it if there is one.
Result<std::unique_ptr<Tokenizer>> load_sentencepiece(const std::filesystem::path& file);
// The same, read already.
Result<std::unique_ptr<Tokenizer>> sentencepiece_tokenizer(const SentencePieceModel& model,
                                                           const TokenizerConfig& config,
                                                           const std::string& name);
// GPT-2's vocab.json and merges.txt, with Qwen's word pattern where tokenizer_config.json names its class.
Result<std::unique_ptr<Tokenizer>> load_vocab_and_merges(const std::filesystem::path& model_directory);

// The tokenizer in a GGUF file. GgufChat: its chat template, and the tokens that begin and end a text.
Result<std::unique_ptr<Tokenizer>> load_gguf_tokenizer(const std::filesystem::path& file);
struct GgufChat {
  std::optional<std::string> source;
  TokenizerConfig config;
};
Result<GgufChat> read_gguf_chat(const std::filesystem::path& file);

}  // namespace outrider
