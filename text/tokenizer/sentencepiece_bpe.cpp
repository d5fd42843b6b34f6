#include "text/tokenizer/sentencepiece_bpe.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/tokenizer/byte_alphabet.h"

namespace outrider {
namespace {

using Type = SentencePieceModel::Type;

// Rank 0 for the best score; equal scores share a rank, so that ties go left to right.
std::vector<uint32_t> ranks_of(const std::vector<SentencePieceModel::Piece>& pieces) {
  std::vector<float> scores;
  for (const auto& piece : pieces) scores.push_back(piece.score);
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  std::vector<uint32_t> ranks;
  for (const auto& piece : pieces) {
    const auto at = std::lower_bound(scores.begin(), scores.end(), piece.score, std::greater<>());
    ranks.push_back(static_cast<uint32_t>(at - scores.begin()));
  }
  return ranks;
}

}  // namespace

Result<std::unique_ptr<WordModel>> SentencePieceBpe::make(const SentencePieceModel& model) {
  auto bpe = std::make_unique<SentencePieceBpe>();
  bpe->byte_fallback_ = model.byte_fallback;
  bpe->byte_ids_.fill(-1);
  const std::vector<uint32_t> ranks = ranks_of(model.pieces);
  bool has_unknown = false;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const auto& piece = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    if (piece.type == Type::kNormal) {
      bpe->pieces_.emplace(piece.text, Merge{ranks[i], id});
      bpe->longest_piece_ = std::max(bpe->longest_piece_, piece.text.size());
    } else if (piece.type == Type::kByte) {
      const auto byte = fallback_byte(piece.text);
      if (!byte)
        return malformed(fmt::format("piece {} '{}' is of type BYTE, but not <0xHH>", i, piece.text));
      bpe->byte_ids_[*byte] = id;
    } else if (piece.type == Type::kUnknown) {
      bpe->unknown_ = TokenId(id);
      has_unknown = true;
    }
  }
  // With byte fallback no text is unknown; the files of Gemma have no such piece.
  if (!has_unknown && !model.byte_fallback) return malformed("no piece is of type UNKNOWN");
  if (model.byte_fallback &&
      std::find(bpe->byte_ids_.begin(), bpe->byte_ids_.end(), -1) != bpe->byte_ids_.end())
    return malformed("trainer_spec.byte_fallback is set, but not all of <0x00> to <0xFF> are pieces");
  return std::unique_ptr<WordModel>(std::move(bpe));
}

std::optional<Merge> SentencePieceBpe::find(std::string_view text) const {
  if (text.size() > longest_piece_) return std::nullopt;
  const auto entry = pieces_.find(text);
  if (entry == pieces_.end()) return std::nullopt;
  return entry->second;
}

void SentencePieceBpe::encode(std::string_view word, MergeList& scratch, std::vector<TokenId>& ids) const {
  scratch.clear();
  for (size_t at = 0; at < word.size();) {
    const size_t begin = at;
    next_codepoint(word, at);
    const auto piece = find(word.substr(begin, at - begin));
    scratch.append(piece ? piece->id : -1, static_cast<uint32_t>(at - begin));
  }
  scratch.merge_all([&](const Symbol& left, const Symbol& right) {
    return find(word.substr(left.begin, left.length + right.length));
  });
  bool after_unknown = false;
  for (const Symbol& symbol : scratch.symbols()) {
    if (symbol.length == 0) continue;
    const bool is_unknown = symbol.id < 0;
    if (!is_unknown)
      ids.push_back(TokenId(symbol.id));
    else if (byte_fallback_ || !after_unknown)  // a run of unknown characters is one unknown token
      append_unknown(word.substr(symbol.begin, symbol.length), ids);
    after_unknown = is_unknown;
  }
}

void SentencePieceBpe::append_unknown(std::string_view text, std::vector<TokenId>& ids) const {
  if (!byte_fallback_) {
    ids.push_back(unknown_);
    return;
  }
  for (const char c : text) ids.push_back(TokenId(byte_ids_[static_cast<uint8_t>(c)]));
}

}  // namespace outrider
