// Text <-> tokens of Hugging Face tokenizers (tokenizer.json: byte-level BPE, SentencePiece-style BPE with
// byte fallback) and SentencePiece models (tokenizer.model). Immutable after load; safe to share between
// threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace outrider {

enum class SpecialTokens { kAdd, kOmit };
enum class SpecialText { kOmit, kShow };  // kShow: a special token is written as it stands in the vocabulary

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Text must be valid UTF-8. kAdd applies the tokenizer's post-processor (BOS where it has one). Special
  // tokens written out in the text ("<|im_end|>") are recognised as such.
  virtual Result<std::vector<TokenId>> encode(std::string_view text, SpecialTokens special) const = 0;
  // All text of the ids; special tokens are left out. May contain U+FFFD where ids form no valid UTF-8.
  virtual std::string decode(std::span<const TokenId> ids) const = 0;

  virtual int32_t vocab_size() const = 0;  // ids are [0, vocab_size); holes are possible
  // The token as written in the vocabulary ("Ġhello", "<0x0A>"), or empty for a hole.
  virtual std::string_view token(TokenId id) const = 0;
  // The bytes this token adds to a text ("\n" for <0x0A>); empty for special tokens.
  virtual std::string token_bytes(TokenId id) const = 0;
  virtual bool is_special(TokenId id) const = 0;
  virtual std::optional<TokenId> find(std::string_view token) const = 0;
  virtual std::optional<TokenId> bos() const = 0;  // the id that kAdd puts first, if any
  // Hashes the id -> string table: equal fingerprints mean interchangeable ids. Holes do not count, and a
  // table's hash follows from that of any beginning of it (begins_with_vocabulary()).
  virtual uint64_t fingerprint() const = 0;
  // Whether the decoder drops one leading space of a text (SentencePiece).
  virtual bool strips_leading_space() const = 0;
};

// Reads tokenizer.json, else tokenizer.model, else vocab.json and merges.txt, from a model directory. Errors
// name file and key.
Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& model_directory);

// As Tokenizer::decode(), with special tokens written out: what encode() of the text would find again.
std::string decode_with_special_tokens(const Tokenizer& tokenizer, std::span<const TokenId> ids);

// OK, or an error that names the first id whose strings differ. A longer tail of holes or padding is
// accepted.
Status check_same_vocabulary(const Tokenizer& target, const Tokenizer& draft);

// Whether the first ids of the tokenizer's table, up to some id, have this fingerprint. A model with the
// shorter vocabulary then uses the same ids for the same tokens, and lacks the later ids.
bool begins_with_vocabulary(const Tokenizer& tokenizer, uint64_t fingerprint);
// The fingerprints of the table without its last token, without its last two, and so on: at most so many.
std::vector<uint64_t> vocabulary_beginnings(const Tokenizer& tokenizer, size_t most);

// Turns ids into text as they come: emits only whole UTF-8 sequences and equals decode() of all ids at the
// end.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, SpecialText special = SpecialText::kOmit)
      : tokenizer_(&tokenizer), special_(special) {}
  std::string append(TokenId id);
  std::string flush();  // what is left, invalid bytes as U+FFFD

 private:
  const Tokenizer* tokenizer_;
  SpecialText special_;
  std::string pending_;  // the first bytes of a UTF-8 sequence
  bool at_start_ = true;
};

}  // namespace outrider
