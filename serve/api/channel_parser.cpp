#include "serve/api/channel_parser.h"

#include <algorithm>
#include <span>
#include <utility>

namespace outrider {
namespace {

using namespace channel_marks;

constexpr std::string_view kBlanks = " \t\r\n", kAssistant = "assistant",
                           kRecipient = "to=", kFunctions = "functions.";
constexpr size_t kMaxHeader = 256;  // bytes
// These end a message; the last two also begin the next one.
constexpr std::array<std::string_view, 5> kEnds = {kEnd, kCall, kReturn, kStart, kChannel};

// The word behind `mark`; empty: there is none.
std::string_view word_behind(std::string_view header, std::string_view mark) {
  const size_t at = header.find(mark);
  if (at == header.npos) return {};
  const std::string_view rest = header.substr(at + mark.size());
  return rest.substr(0, rest.find_first_of(" \t\r\n<"));
}

}  // namespace

ChannelParser::ChannelParser(ChannelReading reading) : reading_(std::move(reading)) {
  std::vector<ToolEvent> of_prompt;
  append(reading_.opening, of_prompt);
  has_role_ = !in_body_ && !pending_.empty();
  pending_.clear();
}

void ChannelParser::append(std::string_view text, std::vector<ToolEvent>& events) {
  pending_ += text;
  while (step(false, events)) {
  }
}

void ChannelParser::finish(std::vector<ToolEvent>& events) {
  while (step(true, events)) {
  }
  if (in_body_) end(events);
}

// Whether more can be parsed at once.
bool ChannelParser::step(bool is_end, std::vector<ToolEvent>& events) {
  if (pending_.empty()) return false;
  return in_body_ ? read_body(is_end, events) : read_header(is_end, events);
}

// Whether pending_ is the beginning of a header, as far as it has come. A model may write text without any.
bool ChannelParser::may_be_header() const {
  std::string_view rest = pending_;
  const auto skip = [&](std::string_view word) {  // whether more must come
    if (rest.size() < word.size() && word.starts_with(rest)) return true;
    if (rest.starts_with(word)) rest.remove_prefix(word.size());
    return false;
  };
  const bool has_start = rest.starts_with(kStart);
  if (skip(kStart)) return true;
  if (has_start) {  // any role
    rest.remove_prefix(std::min(rest.find_first_of(" <"), rest.size()));
  } else if (!has_role_ && skip(kAssistant)) {
    return true;
  }
  rest.remove_prefix(std::min(rest.find_first_not_of(kBlanks), rest.size()));
  const auto begins = [&](std::string_view word) { return rest.starts_with(word) || word.starts_with(rest); };
  return begins(kChannel) || begins(kMessage) || begins(kRecipient) || begins(kStart);
}

bool ChannelParser::read_header(bool is_end, std::vector<ToolEvent>& events) {
  const size_t message = pending_.find(kMessage);
  if (std::min(message, pending_.size()) > kMaxHeader || !may_be_header()) {
    begin({}, events);
    for (const std::string_view mark : {kStart, kChannel})  // which would end this text
      if (pending_.starts_with(mark)) {
        say(std::string(mark), events);
        pending_.erase(0, mark.size());
      }
    return true;
  }
  size_t end = pending_.npos;
  std::string_view mark;
  for (const std::string_view one : {kEnd, kCall, kReturn})
    if (const size_t at = pending_.find(one); at < end) end = at, mark = one;
  if (end < message) {  // a message without a text
    pending_.erase(0, end + mark.size());
    has_role_ = false;
    return true;
  }
  if (message != pending_.npos) {
    const std::string header = pending_.substr(0, message);
    pending_.erase(0, message + kMessage.size());
    begin(header, events);
    return true;
  }
  if (is_end && pending_.find('<') == pending_.npos) {  // too short to be told from a header
    begin({}, events);
    return true;
  }
  if (is_end) pending_.clear();
  return false;
}

void ChannelParser::begin(std::string_view header, std::vector<ToolEvent>& events) {
  in_body_ = is_new_ = true;
  has_role_ = false;
  if (const size_t start = header.rfind(kStart); start != header.npos) header.remove_prefix(start);
  const std::string_view recipient = word_behind(header, kRecipient);
  kind_ = word_behind(header, kChannel) == "analysis" ? Kind::kThought : Kind::kText;
  if (!reading_.may_call || !recipient.starts_with(kFunctions)) return;
  kind_ = Kind::kCall;
  events.push_back({.kind = ToolEvent::Kind::kCall,
                    .index = calls_++,
                    .text = std::string(recipient.substr(kFunctions.size()))});
}

bool ChannelParser::read_body(bool is_end, std::vector<ToolEvent>& events) {
  size_t at = pending_.npos, held = 0;
  std::string_view mark;
  for (const std::string_view one : kEnds) {
    if (const size_t found = pending_.find(one); found < at) at = found, mark = one;
    held = std::max(held, begun(pending_, one));
  }
  const bool is_over = at != pending_.npos;
  const size_t told = is_over ? at : pending_.size() - (is_end ? 0 : held);
  say(pending_.substr(0, told), events);
  pending_.erase(0, told);
  if (!is_over) return false;
  if (mark != kStart && mark != kChannel) pending_.erase(0, mark.size());
  end(events);
  return true;
}

void ChannelParser::end(std::vector<ToolEvent>& events) {
  if (kind_ == Kind::kCall && is_new_) say("{}", events);
  in_body_ = false;
}

void ChannelParser::say(std::string text, std::vector<ToolEvent>& events) {
  if (text.empty()) return;
  const bool is_first = std::exchange(is_new_, false);
  if (kind_ == Kind::kCall) {
    events.push_back({.kind = ToolEvent::Kind::kArguments, .index = calls_ - 1, .text = std::move(text)});
    return;
  }
  if (kind_ == Kind::kThought && !reading_.tells_thoughts) return;
  const bool is_thought = kind_ == Kind::kThought && reading_.parts_thoughts;
  // Messages of one kind are paragraphs.
  bool& has_some = is_thought ? has_thought_ : has_said_;
  if (is_first && has_some) text.insert(0, "\n\n");
  has_some = true;
  events.push_back({.kind = is_thought ? ToolEvent::Kind::kThought : ToolEvent::Kind::kText,
                    .index = 0,
                    .text = std::move(text)});
}

void ChannelCounter::add(std::string_view text) {
  std::vector<ToolEvent> events;
  const bool was_thinking = parser_.is_thinking();
  parser_.append(text, events);
  if (was_thinking) ++count_;  // with the mark that ends them
}

bool has_channels(std::string_view chat_template) {
  return chat_template.find(kChannel) != chat_template.npos &&
         chat_template.find(kMessage) != chat_template.npos;
}

std::string channel_opening(std::span<const TokenId> prompt, const Tokenizer& tokenizer) {
  const auto start = tokenizer.find(kStart);
  if (!start) return std::string(kStart) + std::string(kAssistant);
  const auto last = std::find(prompt.rbegin(), prompt.rend(), *start);
  if (last == prompt.rend()) return {};
  const auto from = static_cast<size_t>(prompt.rend() - last) - 1;
  std::string text = decode_with_special_tokens(tokenizer, prompt.subspan(from));
  if (text.find(kEnd) != text.npos || text.find(kReturn) != text.npos) return {};
  if (const size_t message = text.find(kMessage); message != text.npos)
    text.resize(message + kMessage.size());
  return text;
}

}  // namespace outrider
