#include <algorithm>

#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocabulary.h"

namespace outrider {
namespace {

// One past the last id that has a token.
int32_t used_size(const Tokenizer& tokenizer) {
  int32_t size = tokenizer.vocab_size();
  while (size > 0 && tokenizer.token(TokenId(size - 1)).empty()) --size;
  return size;
}

std::string describe(std::string_view token) {
  return token.empty() ? "no token" : fmt::format("'{}'", token);
}

}  // namespace

Status check_same_vocabulary(const Tokenizer& target, const Tokenizer& draft) {
  const int32_t common = std::min(used_size(target), used_size(draft));
  for (int32_t id = 0; id < common; ++id) {
    const std::string_view ours = target.token(TokenId(id)), theirs = draft.token(TokenId(id));
    if (ours == theirs) continue;
    return invalid_argument(fmt::format(
        "target and draft have different vocabularies: id {} is {} in the target and {} in the draft; "
        "use a draft model with the target's tokenizer",
        id, describe(ours), describe(theirs)));
  }
  return {};
}

bool begins_with_vocabulary(const Tokenizer& tokenizer, uint64_t fingerprint) {
  uint64_t hash = 0;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view token = tokenizer.token(TokenId(id));
    if (token.empty()) continue;
    hash = extend_vocabulary_hash(hash, TokenId(id), token);
    if (hash == fingerprint) return true;
  }
  return false;
}

std::vector<uint64_t> vocabulary_beginnings(const Tokenizer& tokenizer, size_t most) {
  std::vector<uint64_t> all{0};
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (const std::string_view token = tokenizer.token(TokenId(id)); !token.empty())
      all.push_back(extend_vocabulary_hash(all.back(), TokenId(id), token));
  all.pop_back();  // of the whole table
  std::vector<uint64_t> last;
  for (size_t i = all.size(); i > 1 && last.size() < most; --i) last.push_back(all[i - 1]);
  return last;
}

}  // namespace outrider
