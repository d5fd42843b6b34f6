#include "serve/api/tool_parser.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_text.h"

namespace outrider {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::string_view kPythonTag = "<|python_tag|>", kArgs = "[ARGS]", kHermesEnd = "</tool_call>";

void skip_blanks(std::string& text) { text.erase(0, std::min(text.find_first_not_of(kBlanks), text.size())); }

// How much of the end of `text` is a proper beginning of `mark`.
size_t begun(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(mark.size() - 1, text.size()); n > 0; --n)
    if (text.ends_with(mark.substr(0, n))) return n;
  return 0;
}

// The end of the JSON text that begins at `at` with a quote; npos: it is not whole.
size_t text_end(std::string_view json, size_t at) {
  for (size_t i = at + 1; i < json.size(); ++i) {
    if (json[i] == '\\')
      ++i;
    else if (json[i] == '"')
      return i + 1;
  }
  return std::string_view::npos;
}

}  // namespace

bool ToolCallParser::Nesting::ends_at(char c) {
  if (in_text) {
    if (!is_escaped && c == '"') in_text = false;
    is_escaped = !is_escaped && c == '\\';
    return false;
  }
  if (c == '"') in_text = true;
  if (c == '{' || c == '[') ++depth;
  return (c == '}' || c == ']') && --depth == 0;
}

void ToolCallParser::append(std::string_view text, std::vector<ToolEvent>& events) {
  pending_ += text;
  while (step(events)) {
  }
}

// Whether more can be read at once.
bool ToolCallParser::step(std::vector<ToolEvent>& events) {
  if (gave_up_ || is_over_) {
    show(std::exchange(pending_, {}), events);
    return false;
  }
  switch (state_) {
    case State::kText:
      return read_text(events);
    case State::kBegin:
      return read_begin(events);
    case State::kArguments:
      return read_arguments(events);
    case State::kTail:
      return read_tail();
    case State::kBetween:
      return read_between();
  }
  return false;
}

void ToolCallParser::show(std::string text, std::vector<ToolEvent>& events) {
  if (!has_shown_) {
    blank_ += text;
    if (blank_.find_first_not_of(kBlanks) == std::string::npos) return;
    text = std::exchange(blank_, {});
    has_shown_ = true;
  }
  if (!text.empty()) events.push_back({.kind = ToolEvent::Kind::kText, .index = 0, .text = std::move(text)});
}

bool ToolCallParser::read_text(std::vector<ToolEvent>& events) {
  if (format_ == ToolFormat::kLlama) {
    const size_t at = pending_.find_first_not_of(kBlanks);
    if (at == std::string::npos) return false;
    const std::string_view rest = std::string_view(pending_).substr(at);
    if (rest.starts_with(kPythonTag)) {
      take(at + kPythonTag.size());
    } else if (kPythonTag.starts_with(rest)) {
      return false;
    } else if (rest.front() != '{') {
      gave_up_ = true;
      return true;
    }
    state_ = State::kBegin;
    return true;
  }
  const std::string_view mark = call_begin(format_);
  const size_t at = pending_.find(mark);
  if (at != std::string::npos) {
    show(pending_.substr(0, at), events);
    pending_.erase(0, at);
    take(mark.size());
    state_ = State::kBegin;
    return true;
  }
  const size_t shown = pending_.size() - begun(pending_, mark);
  show(pending_.substr(0, shown), events);
  pending_.erase(0, shown);
  return false;
}

bool ToolCallParser::read_begin(std::vector<ToolEvent>& events) {
  const size_t at = pending_.find_first_not_of(kBlanks);
  if (at == std::string::npos) return false;
  const char first = pending_[at];
  if (first == '{') return read_object(events);
  if (format_ == ToolFormat::kMistral && first == '[' &&
      !std::string_view(pending_).substr(at).starts_with(kArgs)) {
    take(at + 1);  // of the list
    return true;
  }
  if (format_ == ToolFormat::kMistral) return read_named(events);
  give_up(events);
  return true;
}

// NAME{...} or NAME[ARGS]{...}
bool ToolCallParser::read_named(std::vector<ToolEvent>& events) {
  const size_t brace = pending_.find('{');
  if (brace == std::string::npos) return false;
  std::string name = pending_.substr(0, brace);
  if (name.ends_with(kArgs)) name.resize(name.size() - kArgs.size());
  skip_blanks(name);
  while (!name.empty() && kBlanks.find(name.back()) != std::string_view::npos) name.pop_back();
  if (name.empty() || name.find_first_of("\"[]{}") != std::string::npos) {
    give_up(events);
    return true;
  }
  pending_.erase(0, brace);
  is_object_ = false;
  begin_call(std::move(name), events);
  return true;
}

// {"name": "...", "arguments": ...: as soon as that much is there. Keys in another order wait for the end.
bool ToolCallParser::read_object(std::vector<ToolEvent>& events) {
  const std::string_view text = pending_;
  size_t at = text.find('{') + 1;
  std::string name;
  while (true) {
    at = text.find_first_not_of(" \t\r\n,", at);
    if (at == std::string_view::npos) return false;
    if (text[at] != '"') break;
    const size_t key_end = text_end(text, at);
    if (key_end == std::string_view::npos) return false;
    const std::string_view key = text.substr(at + 1, key_end - at - 2);
    at = text.find_first_not_of(kBlanks, key_end);
    if (at == std::string_view::npos) return false;
    if (text[at] != ':') break;
    at = text.find_first_not_of(kBlanks, at + 1);
    if (at == std::string_view::npos) return false;
    if ((key == "arguments" || key == "parameters") && text[at] == '{' && !name.empty()) {
      pending_.erase(0, at);
      is_object_ = true;
      begin_call(std::move(name), events);
      return true;
    }
    if (key != "name" || text[at] != '"') break;
    const size_t value_end = text_end(text, at);
    if (value_end == std::string_view::npos) return false;
    const auto value = ordered_json::parse(text.substr(at, value_end - at), nullptr, false);
    if (!value.is_string()) break;
    name = value.get<std::string>();
    at = value_end;
  }
  Nesting whole;
  const size_t begin = text.find('{');
  for (size_t i = begin; i < text.size(); ++i) {
    if (!whole.ends_at(text[i])) continue;
    const auto call = ordered_json::parse(text.substr(begin, i + 1 - begin), nullptr, false);
    const bool is_object = call.is_object() && call.contains("name") && call["name"].is_string();
    if (!is_object) {
      give_up(events);
      return true;
    }
    const char* const key = call.contains("arguments") ? "arguments" : "parameters";
    const auto arguments = call.contains(key) ? call[key] : ordered_json::object();
    pending_.erase(0, i + 1);
    begin_call(call["name"].get<std::string>(), events);
    events.push_back({.kind = ToolEvent::Kind::kArguments,
                      .index = calls_ - 1,
                      .text = arguments.is_string() ? arguments.get<std::string>() : json_text(arguments)});
    state_ = State::kBetween;
    return true;
  }
  return false;
}

void ToolCallParser::begin_call(std::string name, std::vector<ToolEvent>& events) {
  blank_.clear();
  taken_.clear();
  events.push_back({.kind = ToolEvent::Kind::kCall, .index = calls_++, .text = std::move(name)});
  nesting_ = {};
  state_ = State::kArguments;
}

bool ToolCallParser::read_arguments(std::vector<ToolEvent>& events) {
  size_t length = 0;
  bool is_whole = false;
  while (length < pending_.size() && !is_whole) is_whole = nesting_.ends_at(pending_[length++]);
  if (length > 0)
    events.push_back(
        {.kind = ToolEvent::Kind::kArguments, .index = calls_ - 1, .text = pending_.substr(0, length)});
  pending_.erase(0, length);
  if (!is_whole) return false;
  nesting_ = {.depth = 1, .in_text = false, .is_escaped = false};
  state_ = is_object_ ? State::kTail : State::kBetween;
  return true;
}

bool ToolCallParser::read_tail() {
  size_t length = 0;
  bool is_whole = false;
  while (length < pending_.size() && !is_whole) is_whole = nesting_.ends_at(pending_[length++]);
  pending_.erase(0, length);
  if (is_whole) state_ = State::kBetween;
  return is_whole;
}

bool ToolCallParser::read_between() {
  skip_blanks(pending_);
  if (pending_.empty()) return false;
  switch (format_) {
    case ToolFormat::kHermes:
      if (std::string_view(pending_).starts_with(kHermesEnd))
        pending_.erase(0, kHermesEnd.size());
      else if (kHermesEnd.starts_with(pending_))
        return false;
      // What is no more than blank between two calls is not shown.
      has_shown_ = false;
      state_ = State::kText;
      return true;
    case ToolFormat::kLlama:
      if (pending_.front() == ';' || pending_.front() == ',') {
        pending_.erase(0, 1);
        state_ = State::kBegin;
      } else {
        is_over_ = true;
      }
      return true;
    case ToolFormat::kMistral:
      if (is_object_ && pending_.front() == ',') {
        pending_.erase(0, 1);
        state_ = State::kBegin;
        return true;
      }
      if (is_object_ && pending_.front() == ']') pending_.erase(0, 1);
      has_shown_ = false;
      state_ = State::kText;
      return true;
  }
  return false;
}

void ToolCallParser::take(size_t length) {
  taken_ += pending_.substr(0, length);
  pending_.erase(0, length);
}

// It is no call.
void ToolCallParser::give_up(std::vector<ToolEvent>& events) {
  show(std::exchange(taken_, {}), events);
  gave_up_ = true;
}

void ToolCallParser::finish(std::vector<ToolEvent>& events) {
  if (state_ == State::kBegin && !gave_up_ && calls_ == 0) give_up(events);
  if (state_ == State::kText || gave_up_ || is_over_) show(std::exchange(pending_, {}), events);
  pending_.clear();
  if (calls_ == 0 && !blank_.empty())
    events.push_back({.kind = ToolEvent::Kind::kText, .index = 0, .text = std::exchange(blank_, {})});
}

}  // namespace outrider
