#include "text/tokenizer/vocabulary.h"

#include "base/hash.h"

namespace outrider {
namespace {

// FNV-1a (Fowler, Noll, Vo): the fingerprint must not depend on the standard library's hash.
uint64_t hash_text(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

// Without the special ids: files of one model disagree about them, and they change no id's text.
uint64_t extend_vocabulary_hash(uint64_t hash, TokenId id, std::string_view token) {
  return hash_combine(hash_combine(hash, static_cast<uint64_t>(id.value())), hash_text(token));
}

Status Vocabulary::add(int64_t id, const std::string& token) {
  if (id < 0 || id > kMaxId)
    return malformed(fmt::format("token '{}' has id {}, which is not in [0, {}]", token, id, kMaxId));
  const auto [entry, is_new] = ids_.try_emplace(token, static_cast<int32_t>(id));
  if (!is_new) {
    if (entry->second == id) return {};
    return malformed(fmt::format("token '{}' has two ids, {} and {}", token, entry->second, id));
  }
  if (id >= size()) {
    tokens_.resize(static_cast<size_t>(id) + 1, nullptr);
    special_.resize(tokens_.size(), false);
  }
  if (tokens_[id] != nullptr) {
    const Status status =
        malformed(fmt::format("id {} stands for two tokens, '{}' and '{}'", id, *tokens_[id], token));
    ids_.erase(entry);
    return status;
  }
  tokens_[id] = &entry->first;
  return {};
}

Status Vocabulary::mark_special(TokenId id) {
  if (token(id).empty()) return malformed(fmt::format("special id {} has no token", id.value()));
  special_[id.value()] = true;
  return {};
}

Status Vocabulary::check_density() const {
  if (ids_.empty()) return malformed("the vocabulary is empty");
  if (tokens_.size() > 4 * ids_.size() + 65536)
    return malformed(fmt::format("{} tokens are spread over ids up to {}", ids_.size(), tokens_.size() - 1));
  return {};
}

std::optional<TokenId> Vocabulary::find(std::string_view token) const {
  const auto entry = ids_.find(token);
  if (entry == ids_.end()) return std::nullopt;
  return TokenId(entry->second);
}

std::string_view Vocabulary::token(TokenId id) const {
  if (id.value() < 0 || id.value() >= size() || tokens_[id.value()] == nullptr) return {};
  return *tokens_[id.value()];
}

bool Vocabulary::is_special(TokenId id) const {
  return id.value() >= 0 && id.value() < size() && special_[id.value()];
}

uint64_t Vocabulary::fingerprint() const {
  uint64_t hash = 0;
  for (int32_t id = 0; id < size(); ++id)
    if (tokens_[id] != nullptr) hash = extend_vocabulary_hash(hash, TokenId(id), *tokens_[id]);
  return hash;
}

}  // namespace outrider
