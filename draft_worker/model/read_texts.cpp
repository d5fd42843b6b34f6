#include "draft_worker/model/read_texts.h"

#include <algorithm>
#include <utility>

namespace outrider {

int64_t common_length(std::span<const TokenId> a, std::span<const TokenId> b) {
  const auto end = a.begin() + static_cast<ptrdiff_t>(std::min(a.size(), b.size()));
  return std::mismatch(a.begin(), end, b.begin()).first - a.begin();
}

ReadTexts::~ReadTexts() {
  while (forget_one()) continue;
}

void ReadTexts::keep(std::span<const TokenId> ids, uint64_t salt, KvHandle sequence) {
  const auto length = static_cast<int64_t>(ids.size());
  const auto covers = [&](const Text& text) {
    return text.salt == salt && common_length(text.ids, ids) == static_cast<int64_t>(text.ids.size());
  };
  for (auto text = texts_.begin(); text != texts_.end();) {
    const auto at = text++;
    if (covers(*at)) {  // the new text contains all of it
      forget(at);
      text = texts_.begin();
    }
  }
  if (most_ == 0 || length == 0) return kv_.release(sequence);
  while (texts_.size() >= most_) forget_one();
  texts_.push_back({{ids.begin(), ids.end()}, salt, sequence});
}

ReadTexts::Found ReadTexts::find(std::span<const TokenId> ids, uint64_t salt) {
  Found found;
  auto best = texts_.end();
  for (auto text = texts_.begin(); text != texts_.end(); ++text) {
    const int64_t length = text->salt == salt ? common_length(text->ids, ids) : 0;
    if (length <= found.length) continue;
    found = {text->sequence, length};
    best = text;
  }
  if (best != texts_.end()) std::rotate(best, best + 1, texts_.end());  // marks it as used
  return found;
}

void ReadTexts::forget(std::deque<Text>::iterator text) {
  kv_.release(text->sequence);
  texts_.erase(text);
}

bool ReadTexts::forget_one() {
  if (texts_.empty()) return false;
  forget(texts_.begin());
  return true;
}

}  // namespace outrider
