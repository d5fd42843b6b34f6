#include "serve/api/tagged_calls.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/json_file.h"
#include "base/json_text.h"
#include "serve/api/tool_parser.h"

namespace outrider {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kSpaces = " \t\r\n";
constexpr size_t kMaxHead = 256;  // bytes of a name or key, with what stands around it

std::string without_blanks(std::string_view text) {
  const size_t from = text.find_first_not_of(kSpaces);
  if (from == std::string_view::npos) return {};
  return std::string(text.substr(from, text.find_last_not_of(kSpaces) + 1 - from));
}

// Takes the type of the value off the end of a key; nothing: the key has none.
std::optional<uint8_t> told_type(std::string_view& key) {
  for (const auto& [mark, types] : {std::pair{kIsText, uint8_t{kText}},
                                    std::pair{kIsJson, uint8_t{kNumber | kBoolean | kNull | kNested}}})
    if (key.ends_with(mark)) {
      key.remove_suffix(mark.size());
      return types;
    }
  return std::nullopt;
}

}  // namespace

TaggedCallParser::TaggedCallParser(const ToolReading& reading)
    : reading_(reading), tags_(*tags_of(reading.format)) {}

void TaggedCallParser::append(std::string_view text, std::vector<ToolEvent>& events) {
  pending_ += text;
  while (step(events)) {
  }
}

// Whether more can be parsed at once.
bool TaggedCallParser::step(std::vector<ToolEvent>& events) {
  switch (state_) {
    case State::kText:
      return read_text(events);
    case State::kCalls:
      return read_calls(events);
    case State::kHead:
      if (tags_.notation != Notation::kJson) return read_loose_head(events);
      return tags_.key.empty() ? read_json_head(events) : read_head(events);
    case State::kKeys:
      return read_keys(events);
    case State::kValue:
      return read_value(events);
    case State::kArguments:
      return loose_ ? read_loose_arguments(events) : read_arguments(events);
    case State::kTail:
      return read_tail();
  }
  return false;
}

bool TaggedCallParser::read_text(std::vector<ToolEvent>& events) {
  const size_t at = pending_.find(tags_.begin);
  const bool is_found = at != std::string::npos;
  const size_t shown = is_found ? at : pending_.size() - begun(pending_, tags_.begin);
  show(pending_.substr(0, shown), events);
  pending_.erase(0, shown);
  if (!is_found) return false;
  take(tags_.begin.size());
  const bool has_head = tags_.call.empty() || tags_.notation != Notation::kJson;
  state_ = has_head ? State::kHead : State::kCalls;
  return true;
}

bool TaggedCallParser::read_calls(std::vector<ToolEvent>& events) {
  const size_t at = pending_.find_first_not_of(kSpaces);
  if (at == std::string::npos) return false;
  const std::string_view rest = std::string_view(pending_).substr(at);
  const bool has_called = taken_.empty();
  if (rest.starts_with(tags_.call)) {
    if (has_called)
      pending_.erase(0, at + tags_.call.size());
    else
      take(at + tags_.call.size());
    state_ = State::kHead;
    return true;
  }
  if (tags_.call.starts_with(rest) || (has_called && tags_.end.starts_with(rest) && rest != tags_.end))
    return false;
  if (!has_called) return give_up(events);
  if (rest.starts_with(tags_.end)) pending_.erase(0, at + tags_.end.size());
  has_shown_ = false;  // blank text between two sections is not shown
  state_ = State::kText;
  return true;
}

// A name, up to its end or, in a format without one, up to the first tag.
bool TaggedCallParser::read_head(std::vector<ToolEvent>& events) {
  const bool is_open = tags_.name_end.empty();
  const size_t end = is_open ? pending_.find('<') : pending_.find(tags_.name_end);
  if (end == std::string::npos && pending_.size() <= kMaxHead) return false;
  const std::string name = without_blanks(std::string_view(pending_).substr(0, end));
  if (end == std::string::npos || name.empty() || name.size() > kMaxHead ||
      name.find_first_of("<>{}\"\n\t ") != std::string::npos)
    return give_up(events);
  if (is_open) {  // a mention of the tag has no name, or another tag behind it
    const std::string_view rest = std::string_view(pending_).substr(end);
    const auto is = [&](std::string_view tag) { return rest.starts_with(tag); };
    if (!is(tags_.key) && !is(tags_.call_end)) {
      if (tags_.key.starts_with(rest) || tags_.call_end.starts_with(rest)) return false;
      return give_up(events);
    }
  }
  pending_.erase(0, end + tags_.name_end.size());
  begin_call(name, {}, events);
  state_ = State::kKeys;
  return true;
}

// DeepSeek V3: function SEP NAME ```json; V3.1: NAME SEP; Kimi: functions.NAME:NUMBER and a tag.
bool TaggedCallParser::read_json_head(std::vector<ToolEvent>& events) {
  const size_t brace = pending_.find('{'), close = pending_.find(tags_.call_end);
  const size_t end = std::min(brace, close);
  if (end == std::string::npos && pending_.size() <= kMaxHead) return false;
  std::string head = pending_.substr(0, std::min(end, kMaxHead + 1));
  const size_t at = head.find(tags_.name_end);
  if (end == std::string::npos || head.size() > kMaxHead || at == std::string::npos) return give_up(events);
  std::string rest = without_blanks(std::string_view(head).substr(at + tags_.name_end.size()));
  if (const size_t fence = rest.find("```"); fence != std::string::npos)
    rest = without_blanks(rest.substr(0, fence));
  std::string id, name = rest.empty() ? without_blanks(std::string_view(head).substr(0, at)) : rest;
  if (reading_.format == ToolFormat::kKimi) {
    id = name;
    if (name.starts_with("functions.")) name.erase(0, 10);
    if (const size_t colon = name.rfind(':'); colon != std::string::npos) name.resize(colon);
  }
  if (name.empty() || name.find_first_of("<>{}\"\n\t `") != std::string::npos) return give_up(events);
  pending_.erase(0, end);
  begin_call(name, id, events);
  depth_ = 0;
  in_text_ = is_escaped_ = false;
  state_ = end == brace ? State::kArguments : State::kTail;
  if (end != brace) say("{}", events);
  return true;
}

// A name up to its bracket, or what stands behind the last call of a section.
bool TaggedCallParser::read_loose_head(std::vector<ToolEvent>& events) {
  const bool has_called = taken_.empty();
  const size_t at = pending_.find_first_not_of(has_called ? " \t\r\n[,;]" : " \t\r\n[");
  if (at == std::string::npos) return false;
  std::string_view rest = std::string_view(pending_).substr(at);
  const auto is_no_call = [&] {
    if (!has_called) return give_up(events);
    has_shown_ = false;
    state_ = State::kText;
    return true;
  };
  if (rest.starts_with(tags_.end)) {
    if (has_called) pending_.erase(0, at + tags_.end.size());
    return is_no_call();
  }
  const bool may_be_call = rest.starts_with(tags_.call);
  if (tags_.end.starts_with(rest) || (!may_be_call && tags_.call.starts_with(rest))) return false;
  if (!may_be_call) return is_no_call();
  rest.remove_prefix(tags_.call.size());
  const auto is_of_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  };
  const auto end = std::find_if_not(rest.begin(), rest.end(), is_of_name);
  const std::string name(rest.begin(), end);
  if (end == rest.end() && name.size() <= kMaxHead) return false;
  if (end == rest.end() || name.empty()) return is_no_call();
  const std::string_view arguments = rest.substr(name.size());
  const auto begins = begins_arguments(arguments, tags_.notation);
  if (!begins && arguments.size() <= kMaxHead) return false;
  if (!begins.value_or(false)) return is_no_call();
  pending_.erase(0, at + tags_.call.size() + name.size());
  begin_call(name, {}, events);
  loose_.emplace(tags_.notation);
  state_ = State::kArguments;
  return true;
}

// Arguments that are not closed end with their section.
bool TaggedCallParser::read_loose_arguments(std::vector<ToolEvent>& events) {
  const size_t at = pending_.find(tags_.end);
  const bool is_end = at != std::string::npos;
  const size_t limit = is_end ? at : pending_.size() - begun(pending_, tags_.end);
  std::string json;
  const size_t read = loose_->read(std::string_view(pending_).substr(0, limit), is_end, json);
  const bool is_over = loose_->is_over();
  if (is_end && !is_over) loose_->close_all(json);
  say(std::move(json), events);
  pending_.erase(0, is_over || !is_end ? read : at);
  if (is_over || is_end) state_ = State::kHead;
  return is_over || is_end;
}

bool TaggedCallParser::read_keys(std::vector<ToolEvent>& events) {
  const size_t at = pending_.find_first_not_of(kSpaces);
  if (at == std::string::npos) return false;
  pending_.erase(0, at);
  const std::string_view rest = pending_;
  if (rest.starts_with(tags_.call_end)) {
    pending_.erase(0, tags_.call_end.size());
    end_call(events);
    return true;
  }
  if (!tags_.end.empty() && rest.starts_with(tags_.end)) {  // its last tag is missing
    end_call(events);
    return true;
  }
  if (rest.starts_with(tags_.key)) {
    const size_t end = rest.find(tags_.key_end, tags_.key.size());
    if (end == std::string_view::npos && rest.size() <= tags_.key.size() + kMaxHead) return false;
    if (end != std::string_view::npos) {
      const size_t behind = rest.find_first_not_of(kSpaces, end + tags_.key_end.size());
      const std::string_view open = rest.substr(std::min(behind, rest.size()));
      if (!tags_.value.empty() && !open.starts_with(tags_.value) && tags_.value.starts_with(open))
        return false;
      if (open.starts_with(tags_.value) || tags_.value.empty()) {
        std::string_view key = rest.substr(tags_.key.size(), end - tags_.key.size());
        const std::optional<uint8_t> told = tags_.is_typed ? told_type(key) : std::nullopt;
        say((std::exchange(has_keys_, true) ? ", " : "{") + json_text(nlohmann::json(without_blanks(key))) +
                ": ",
            events);
        types_ = tool_ < reading_.parameters.size()
                     ? types_of(reading_.parameters[tool_], without_blanks(key))
                     : uint8_t{0};
        if (told) types_ = *told;
        if (types_ == 0) types_ = kText;
        pending_.erase(0, tags_.value.empty() ? end + tags_.key_end.size() : behind + tags_.value.size());
        is_begun_ = false;
        scanned_ = 0;
        if (types_ == kText) say("\"", events);
        state_ = State::kValue;
        return true;
      }
    }
  } else if (tags_.key.starts_with(rest) || tags_.call_end.starts_with(rest) || tags_.end.starts_with(rest)) {
    return false;
  }
  pending_.erase(0, std::min(pending_.find('<', 1), pending_.size()));  // no part of a call
  return true;
}

// Texts are streamed; other values are read when they are whole.
bool TaggedCallParser::read_value(std::vector<ToolEvent>& events) {
  if (tags_.has_lines && !is_begun_) {
    if (pending_.empty()) return false;
    if (pending_.front() == '\n') pending_.erase(0, 1);
    is_begun_ = true;
  }
  const size_t at = pending_.find(tags_.value_end, scanned_);
  if (at == std::string::npos) {
    size_t held = begun(pending_, tags_.value_end);
    scanned_ = pending_.size() - held;
    // The line break before the end is no part of the value.
    if (tags_.has_lines && scanned_ > 0 && pending_[scanned_ - 1] == '\n') ++held;
    if (types_ != kText) return false;
    const size_t length = pending_.size() - held;
    if (length > 0) say(json_escaped(std::string_view(pending_).substr(0, length)), events);
    pending_.erase(0, length);
    scanned_ -= std::min(scanned_, length);
    return false;
  }
  std::string_view value = std::string_view(pending_).substr(0, at);
  if (tags_.has_lines && value.ends_with('\n')) value.remove_suffix(1);
  if (types_ == kText)
    say(json_escaped(value) + '"', events);
  else
    say_value(value, events);
  pending_.erase(0, at + tags_.value_end.size());
  state_ = State::kKeys;
  return true;
}

// A value that may be other than a text: JSON, if it is of one of the types; Python's names of constants are
// what templates without a filter print. Anything else is a text.
void TaggedCallParser::say_value(std::string_view written, std::vector<ToolEvent>& events) const {
  std::string value = without_blanks(written);
  if (value == "True" || value == "False") value[0] = static_cast<char>(value[0] - 'A' + 'a');
  if (value == "None") value = "null";
  const auto parsed = parse_ordered_json(value, "a value");
  if (parsed.ok() && (json_type_of(*parsed) & types_) && !((types_ & kText) && parsed->is_string()))
    return say(std::move(value), events);
  say('"' + json_escaped(written) + '"', events);
}

bool TaggedCallParser::read_arguments(std::vector<ToolEvent>& events) {
  size_t end = 0;
  bool is_whole = false;
  while (end < pending_.size() && !is_whole) {
    const char c = pending_[end];
    const std::string_view rest = std::string_view(pending_).substr(end);
    // JSON with a missing bracket or quote ends at the end of its call, which is a token of its own.
    if (c == '<' && !is_escaped_) {
      if (rest.starts_with(tags_.call_end) && (is_whole = true)) break;
      if (tags_.call_end.starts_with(rest)) break;
    }
    ++end;
    if (in_text_) {
      if (!is_escaped_ && c == '"') in_text_ = false;
      is_escaped_ = !is_escaped_ && c == '\\';
      continue;
    }
    if (c == '"') in_text_ = true;
    if (c == '{' || c == '[') ++depth_;
    if (c == '}' || c == ']') is_whole = --depth_ == 0;
  }
  if (end > 0) say(pending_.substr(0, end), events);
  pending_.erase(0, end);
  if (is_whole) state_ = State::kTail;
  return is_whole;
}

// Drops what stands between the arguments and the end of the call, such as ``` of DeepSeek V3.
bool TaggedCallParser::read_tail() {
  const size_t at = pending_.find(tags_.call_end), end = pending_.find(tags_.end);
  if (at == std::string::npos && end == std::string::npos) {
    const size_t held = std::max(begun(pending_, tags_.call_end), begun(pending_, tags_.end));
    pending_.erase(0, pending_.size() - held);
    return false;
  }
  pending_.erase(0, at < end ? at + tags_.call_end.size() : end);
  state_ = State::kCalls;
  return true;
}

void TaggedCallParser::begin_call(std::string name, std::string id, std::vector<ToolEvent>& events) {
  blank_.clear();
  taken_.clear();
  const auto at = std::find(reading_.names.begin(), reading_.names.end(), name);
  tool_ = static_cast<size_t>(at - reading_.names.begin());
  has_keys_ = false;
  events.push_back(
      {.kind = ToolEvent::Kind::kCall, .index = calls_++, .text = std::move(name), .id = std::move(id)});
}

void TaggedCallParser::end_call(std::vector<ToolEvent>& events) {
  say(has_keys_ ? "}" : "{}", events);
  has_shown_ = false;
  state_ = tags_.end.empty() ? State::kText : State::kCalls;
}

void TaggedCallParser::say(std::string arguments, std::vector<ToolEvent>& events) const {
  if (arguments.empty()) return;
  if (!events.empty() && events.back().kind == ToolEvent::Kind::kArguments)
    events.back().text += arguments;
  else
    events.push_back(
        {.kind = ToolEvent::Kind::kArguments, .index = calls_ - 1, .text = std::move(arguments), .id = {}});
}

void TaggedCallParser::show(std::string text, std::vector<ToolEvent>& events) {
  if (!has_shown_) {
    blank_ += text;
    if (blank_.find_first_not_of(kSpaces) == std::string::npos) return;
    text = std::exchange(blank_, {});
    has_shown_ = true;
  }
  if (!text.empty())
    events.push_back({.kind = ToolEvent::Kind::kText, .index = 0, .text = std::move(text), .id = {}});
}

void TaggedCallParser::take(size_t length) {
  taken_ += pending_.substr(0, length);
  pending_.erase(0, length);
}

// The collected text does not begin a call: shows it, and scans the following text again.
bool TaggedCallParser::give_up(std::vector<ToolEvent>& events) {
  show(std::exchange(taken_, {}), events);
  state_ = State::kText;
  return true;
}

void TaggedCallParser::finish(std::vector<ToolEvent>& events) {
  // Each turn skips the next tag, so the remaining text gets shorter.
  while ((state_ == State::kCalls || state_ == State::kHead) && !taken_.empty()) {
    give_up(events);
    while (step(events)) {
    }
  }
  if (state_ == State::kText) show(std::exchange(pending_, {}), events);
  if (state_ == State::kValue)  // cut; it could have become the end of the value
    say(types_ == kText ? json_escaped(pending_) : pending_, events);
  if (state_ == State::kArguments && loose_) {
    std::string json;
    loose_->read(pending_, true, json);
    say(std::move(json), events);
  } else if (state_ == State::kArguments) {
    say(pending_, events);
  }
  pending_.clear();
  if (calls_ == 0 && !blank_.empty())
    events.push_back(
        {.kind = ToolEvent::Kind::kText, .index = 0, .text = std::exchange(blank_, {}), .id = {}});
}

}  // namespace outrider
