#include "serve/api/thought_parser.h"

#include <algorithm>
#include <utility>

#include "serve/api/tagged_calls.h"

namespace outrider {
namespace {

constexpr std::string_view kThoughtBlanks = " \t\r\n";
constexpr ThoughtMarks kKnownMarks[] = {
    {},
    {.open = "<seed:think>", .close = "</seed:think>"},           // Seed-OSS
    {.open = "<mm:think>", .close = "</mm:think>"},               // MiniMax-M3
    {.open = "[THINK]", .close = "[/THINK]"},                     // Magistral, Ministral 3
    {.open = "<|START_THINKING|>", .close = "<|END_THINKING|>"},  // Command R7B, A
    {.open = "<|channel>thought", .close = "<channel|>"},         // Gemma 4
};

void tell(bool is_thought, std::string text, std::vector<TextPart>& parts) {
  if (!text.empty()) parts.push_back({is_thought, std::move(text)});
}

}  // namespace

void ThoughtParser::append(std::string_view text, std::vector<TextPart>& parts) {
  pending_ += text;
  while (step(false, parts)) {
  }
}

void ThoughtParser::finish(std::vector<TextPart>& parts) {
  while (step(true, parts)) {
  }
}

// Whether more of pending_ may be read.
bool ThoughtParser::step(bool is_end, std::vector<TextPart>& parts) {
  if (pending_.empty()) return false;
  if (state_ == State::kThought) return read_thought(is_end, parts);
  if (state_ == State::kAnswer) {
    tell(false, std::exchange(pending_, {}), parts);
    return false;
  }
  const size_t first = std::min(pending_.find_first_not_of(kThoughtBlanks), pending_.size());
  const std::string_view rest = std::string_view(pending_).substr(first);
  if (state_ == State::kBegin) {
    const bool may_open = rest.size() < reading_.marks.open.size() && reading_.marks.open.starts_with(rest);
    if (may_open && !is_end) return false;
    const bool opens = rest.starts_with(reading_.marks.open);
    if (opens) pending_.erase(0, first + reading_.marks.open.size());
    state_ = opens ? State::kOpen : State::kAnswer;
    return true;
  }
  pending_.erase(0, first);  // behind a mark
  // A template that opens thoughts, and a model that opens them once more.
  if (state_ == State::kOpen && std::string_view(pending_).starts_with(reading_.marks.open)) {
    pending_.erase(0, reading_.marks.open.size());
    return true;
  }
  if (state_ == State::kOpen && !is_end && pending_.size() < reading_.marks.open.size() &&
      reading_.marks.open.starts_with(pending_))
    return false;
  if (pending_.empty()) return false;
  state_ = state_ == State::kOpen ? State::kThought : State::kAnswer;
  return true;
}

bool ThoughtParser::read_thought(bool is_end, std::vector<TextPart>& parts) {
  const size_t close = pending_.find(reading_.marks.close);
  size_t end = std::min(close, pending_.size());
  if (close == pending_.npos && !is_end) end -= begun(pending_, reading_.marks.close);
  const size_t last = pending_.substr(0, end).find_last_not_of(kThoughtBlanks);
  const size_t told = last == std::string::npos ? 0 : last + 1;
  if (reading_.is_told) tell(true, pending_.substr(0, told), parts);
  if (close == pending_.npos) {
    pending_.erase(0, is_end ? pending_.size() : told);
    return false;
  }
  pending_.erase(0, close + reading_.marks.close.size());
  state_ = State::kClosed;
  return true;
}

void ThoughtCounter::add(std::string_view text) {
  std::vector<TextPart> parts;
  const bool was_thinking = parser_.is_thinking();
  parser_.append(text, parts);
  ++tokens_;
  if (was_thinking || parser_.is_thinking()) count_ = tokens_;
}

std::optional<ThoughtMarks> thought_marks(std::string_view chat_template) {
  for (const ThoughtMarks& marks : kKnownMarks)
    if (chat_template.find(marks.close) != chat_template.npos) return marks;
  return std::nullopt;
}

}  // namespace outrider
