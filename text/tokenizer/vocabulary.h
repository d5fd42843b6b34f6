// The id <-> string table of a tokenizer. Filled while loading, then constant.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace outrider {

// The fingerprint of a table of which all tokens below `id` have the fingerprint `hash`.
uint64_t extend_vocabulary_hash(uint64_t hash, TokenId id, std::string_view token);

class Vocabulary {
 public:
  static constexpr int64_t kMaxId = (1 << 24) - 1;

  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  // A pair may be added twice; one id for two strings or one string for two ids is refused.
  Status add(int64_t id, const std::string& token);
  Status mark_special(TokenId id);
  // Refuses tables that are mostly holes: a single id of 16 million would cost half a gigabyte.
  Status check_density() const;

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t count() const { return static_cast<int32_t>(ids_.size()); }  // without holes
  std::optional<TokenId> find(std::string_view token) const;
  std::string_view token(TokenId id) const;  // empty for holes and ids out of range
  bool is_special(TokenId id) const;
  uint64_t fingerprint() const;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::vector<const std::string*> tokens_;  // keys of ids_, whose addresses are stable; null for holes
  std::vector<bool> special_;
};

}  // namespace outrider
