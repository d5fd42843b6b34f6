// BPE as SentencePiece does it (Kudo and Richardson 2018): any two neighbours whose joint text is a piece may
// merge, the best score first.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "text/tokenizer/sentencepiece_model.h"
#include "text/tokenizer/word_model.h"

namespace outrider {

class SentencePieceBpe : public WordModel {
 public:
  static Result<std::unique_ptr<WordModel>> make(const SentencePieceModel& model);
  // One run of text is one word; spaces are "▁" already.
  void encode(std::string_view word, MergeList& scratch, std::vector<TokenId>& ids) const override;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };

  std::optional<Merge> find(std::string_view text) const;
  void append_unknown(std::string_view text, std::vector<TokenId>& ids) const;

  std::unordered_map<std::string, Merge, Hash, std::equal_to<>> pieces_;  // that text may become
  size_t longest_piece_ = 0;                                              // bytes
  std::array<int32_t, 256> byte_ids_{};
  bool byte_fallback_ = false;
  TokenId unknown_;
};

}  // namespace outrider
