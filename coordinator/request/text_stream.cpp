#include "coordinator/request/text_stream.h"

#include <algorithm>

namespace outrider {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

// The length of the longest end of pending_ that is a proper beginning of a stop string.
size_t StopMatcher::held_length() const {
  size_t held = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, pending_.size()); n > held; --n) {
      if (pending_.compare(pending_.size() - n, n, stop, 0, n) == 0) held = n;
    }
  }
  return held;
}

std::string StopMatcher::append(std::string_view piece, bool may_stop) {
  if (stopped_) return {};
  const size_t before = pending_.size();
  pending_ += piece;
  size_t match = std::string::npos;
  for (const std::string& stop : stops_) {
    // An earlier end did not count.
    const size_t at = may_stop ? pending_.find(stop, before - std::min(before, stop.size() - 1)) : match;
    if (at >= match) continue;
    match = at;
    matched_ = stop;
  }
  stopped_ = match != std::string::npos;
  const size_t shown = stopped_ ? match : pending_.size() - held_length();
  std::string text = pending_.substr(0, shown);
  pending_.erase(0, stopped_ ? pending_.size() : shown);
  return text;
}

std::string StopMatcher::flush() { return std::exchange(pending_, {}); }

TextStream::TextStream(const Tokenizer& tokenizer, std::span<const TokenId> prompt,
                       std::vector<std::string> stops, std::vector<TokenId> shown)
    : tokenizer_(tokenizer), decoder_(tokenizer), matcher_(std::move(stops)), shown_(std::move(shown)) {
  for (const TokenId id : prompt) (void)decoder_.append(id);
  (void)decoder_.flush();
}

std::string TextStream::append(TokenId id, bool may_stop) {
  may_stop_ = may_stop;
  if (std::find(shown_.begin(), shown_.end(), id) == shown_.end())
    return matcher_.append(decoder_.append(id), may_stop);
  std::string text = decoder_.flush();
  text += tokenizer_.token(id);
  return matcher_.append(text, may_stop);
}

std::string TextStream::flush() {
  std::string text = matcher_.append(decoder_.flush(), may_stop_);
  return text + matcher_.flush();
}

}  // namespace outrider
