// Byte pair encoding with a table of ranked merges (Sennrich et al. 2016), over bytes or over characters.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "text/tokenizer/vocabulary.h"
#include "text/tokenizer/word_model.h"

namespace outrider {

// (left id, right id) -> merge; open addressing, as every pair of neighbours of every text is looked up here.
class PairTable {
 public:
  explicit PairTable(size_t max_entries);
  void set(int32_t left, int32_t right, Merge merge);  // the last of equal pairs wins
  std::optional<Merge> find(int32_t left, int32_t right) const;

 private:
  struct Entry {
    uint64_t key;
    Merge merge;
  };
  size_t slot(uint64_t key) const;
  std::vector<Entry> entries_;
};

struct BpeOptions {
  bool byte_level = false;     // symbols are bytes, written in the GPT-2 alphabet; else characters
  bool byte_fallback = false;  // unknown characters become <0xHH> tokens
  bool ignore_merges = false;  // a word that is a token is that token, whatever the merges say
  bool fuse_unknown = false;   // neighbouring unknown characters become one unknown token
  std::optional<TokenId> unknown = std::nullopt;  // without it unknown characters are dropped
};

class BpeModel : public WordModel {
 public:
  static constexpr size_t kMaxMerges = 2'000'000;
  using MergePairs = std::vector<std::pair<std::string, std::string>>;  // in rank order

  // Errors name the merge whose tokens are not in the vocabulary.
  static Result<std::unique_ptr<WordModel>> make(const Vocabulary& vocabulary, const MergePairs& merges,
                                                 const BpeOptions& options);
  void encode(std::string_view word, MergeList& scratch, std::vector<TokenId>& ids) const override;

 private:
  BpeModel(const Vocabulary& vocabulary, size_t merge_count, const BpeOptions& options);
  void append_symbols(std::string_view word, MergeList& list) const;
  bool append_fallback(std::string_view character, MergeList& list) const;

  BpeOptions options_;
  PairTable merges_;
  // Keys are what is found in words: raw bytes if byte_level, else the token itself.
  std::unordered_map<std::string, int32_t> words_;
  std::array<int32_t, 256> byte_ids_;  // of single bytes, or of <0xHH>; -1 where there is none
};

}  // namespace outrider
