// The file formats load_tokenizer() knows.
#pragma once

#include <filesystem>
#include <memory>

#include "base/status.h"
#include "transformer/tokenizer/tokenizer.h"

namespace outrider {

constexpr uint64_t kMaxTokenizerBytes = 64u << 20;

Result<std::unique_ptr<Tokenizer>> load_tokenizer_json(const std::filesystem::path& file);
// A SentencePiece model, with tokenizer_config.json beside it if there is one.
Result<std::unique_ptr<Tokenizer>> load_sentencepiece(const std::filesystem::path& file);
// GPT-2's vocab.json and merges.txt, with Qwen's word pattern where tokenizer_config.json names its class.
Result<std::unique_ptr<Tokenizer>> load_vocab_and_merges(const std::filesystem::path& model_directory);

}  // namespace outrider
