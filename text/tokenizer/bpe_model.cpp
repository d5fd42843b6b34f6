#include "text/tokenizer/bpe_model.h"

#include <bit>

#include "base/hash.h"
#include "base/utf8.h"
#include "text/tokenizer/byte_alphabet.h"

namespace outrider {
namespace {

constexpr uint64_t kEmptySlot = ~uint64_t{0};

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

Result<int32_t> id_for_merge(const Vocabulary& vocabulary, const std::string& token, size_t rank) {
  if (const auto id = vocabulary.find(token)) return id->value();
  return malformed(fmt::format("merges[{}] names '{}', which is not in the vocabulary", rank, token));
}

}  // namespace

PairTable::PairTable(size_t max_entries)
    : entries_(std::bit_ceil(2 * max_entries + 2), Entry{kEmptySlot, {0, 0}}) {}

size_t PairTable::slot(uint64_t key) const {
  const size_t mask = entries_.size() - 1;
  size_t i = mix64(key) & mask;
  while (entries_[i].key != key && entries_[i].key != kEmptySlot) i = (i + 1) & mask;
  return i;
}

void PairTable::set(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = pair_key(left, right);
  entries_[slot(key)] = {key, merge};
}

std::optional<Merge> PairTable::find(int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return std::nullopt;
  const Entry& entry = entries_[slot(pair_key(left, right))];
  if (entry.key == kEmptySlot) return std::nullopt;
  return entry.merge;
}

BpeModel::BpeModel(const Vocabulary& vocabulary, size_t merge_count, const BpeOptions& options)
    : options_(options), merges_(merge_count) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto b = static_cast<uint8_t>(byte);
    const auto id = vocabulary.find(options.byte_level ? byte_character(b) : fallback_token(b));
    byte_ids_[byte] = id ? id->value() : -1;
  }
  // Byte-level words are looked up whole only with ignore_merges.
  if (options.byte_level && !options.ignore_merges) return;
  words_.reserve(static_cast<size_t>(vocabulary.count()));
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view token = vocabulary.token(TokenId(id));
    if (token.empty()) continue;
    if (!options.byte_level)
      words_.emplace(token, id);
    else if (auto bytes = bytes_of_characters(token))
      words_.emplace(std::move(*bytes), id);
  }
}

Result<std::unique_ptr<WordModel>> BpeModel::make(const Vocabulary& vocabulary, const MergePairs& merges,
                                                  const BpeOptions& options) {
  if (merges.size() > kMaxMerges)
    return malformed(fmt::format("{} merges, more than the limit of {}", merges.size(), kMaxMerges));
  std::unique_ptr<BpeModel> model(new BpeModel(vocabulary, merges.size(), options));
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    ASSIGN_OR_RETURN(const int32_t left_id, id_for_merge(vocabulary, left, rank));
    ASSIGN_OR_RETURN(const int32_t right_id, id_for_merge(vocabulary, right, rank));
    ASSIGN_OR_RETURN(const int32_t merged_id, id_for_merge(vocabulary, left + right, rank));
    model->merges_.set(left_id, right_id, {static_cast<uint32_t>(rank), merged_id});
  }
  return std::unique_ptr<WordModel>(std::move(model));
}

void BpeModel::encode(std::string_view word, MergeList& scratch, std::vector<TokenId>& ids) const {
  if (word.empty()) return;
  if (options_.ignore_merges) {
    if (const auto entry = words_.find(std::string(word)); entry != words_.end()) {
      ids.push_back(TokenId(entry->second));
      return;
    }
  }
  scratch.clear();
  append_symbols(word, scratch);
  scratch.merge_all(
      [this](const Symbol& left, const Symbol& right) { return merges_.find(left.id, right.id); });
  for (const Symbol& symbol : scratch.symbols())
    if (symbol.length > 0) ids.push_back(TokenId(symbol.id));
}

void BpeModel::append_symbols(std::string_view word, MergeList& list) const {
  uint32_t unknown_length = 0;
  const auto end_unknown = [&] {
    if (unknown_length > 0) list.append(options_.unknown->value(), unknown_length);
    unknown_length = 0;
  };
  for (size_t at = 0; at < word.size();) {
    const size_t begin = at;
    if (options_.byte_level)
      ++at;
    else
      next_codepoint(word, at);
    const std::string_view character = word.substr(begin, at - begin);
    int32_t id = -1;
    if (options_.byte_level)
      id = byte_ids_[static_cast<uint8_t>(character[0])];
    else if (const auto entry = words_.find(std::string(character)); entry != words_.end())
      id = entry->second;
    const auto length = static_cast<uint32_t>(character.size());
    if (id >= 0) {
      end_unknown();
      list.append(id, length);
    } else if (append_fallback(character, list)) {
      continue;
    } else if (options_.unknown) {
      if (!options_.fuse_unknown) end_unknown();
      unknown_length += length;
    }
  }
  end_unknown();
}

bool BpeModel::append_fallback(std::string_view character, MergeList& list) const {
  if (options_.byte_level || !options_.byte_fallback) return false;
  for (const char c : character)
    if (byte_ids_[static_cast<uint8_t>(c)] < 0) return false;
  for (const char c : character) list.append(byte_ids_[static_cast<uint8_t>(c)], 1);
  return true;
}

}  // namespace outrider
