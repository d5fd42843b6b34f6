#include "serve/api/tool_parser.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json_file.h"

namespace outrider {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::string_view kPythonTag = "<|python_tag|>", kArgs = "[ARGS]", kCallId = "[CALL_ID]";

void skip_blanks(std::string& text) { text.erase(0, std::min(text.find_first_not_of(kBlanks), text.size())); }

// The end of the JSON string that begins at `at`; npos: incomplete.
size_t text_end(std::string_view json, size_t at) {
  for (size_t i = at + 1; i < json.size(); ++i) {
    if (json[i] == '\\')
      ++i;
    else if (json[i] == '"')
      return i + 1;
  }
  return std::string_view::npos;
}

// The raw value of each member of a valid JSON object.
std::vector<std::pair<std::string, std::string_view>> members_of(std::string_view object) {
  std::vector<std::pair<std::string, std::string_view>> members;
  size_t at = object.find('{') + 1;
  while (true) {
    at = object.find_first_not_of(" \t\r\n,", at);
    if (at >= object.size() || object[at] != '"') return members;
    const size_t key_end = text_end(object, at);
    std::string key = parse_json(object.substr(at, key_end - at), "a key").value().get<std::string>();
    const size_t begin = object.find_first_not_of(kBlanks, object.find(':', key_end) + 1);
    size_t end = begin;
    if (object[begin] == '"') {
      end = text_end(object, begin);
    } else if (object[begin] == '{' || object[begin] == '[') {
      JsonNesting nesting;
      while (!nesting.ends_at(object[end])) ++end;
      ++end;
    } else {
      end = object.find_first_of(" \t\r\n,}", begin);
    }
    members.emplace_back(std::move(key), object.substr(begin, end - begin));
    at = end;
  }
}

// Whether an object begins the text, and not a block.
bool is_alone(const std::string& text) {
  const size_t first = text.find_first_not_of(kBlanks);
  return first != std::string::npos && text[first] == '{';
}

}  // namespace

bool JsonNesting::ends_at(char c) {
  if (in_text) {
    if (c == '\n') breaks_line = true;
    if (!is_escaped && c == '"') in_text = false;
    is_escaped = !is_escaped && c == '\\';
    return false;
  }
  if (c == '"') in_text = true, breaks_line = false;
  if (c == '{' || c == '[') ++depth;
  return (c == '}' || c == ']') && --depth == 0;
}

bool FencedCall::append(std::string_view text) {
  text_ += text;
  if (scanned_ == 0 && !read_name()) return false;
  if (scanned_ == 0) return true;
  while (!is_whole_ && scanned_ < text_.size()) is_whole_ = nesting_.ends_at(text_[scanned_++]);
  return !is_whole_ || is_end(std::string_view(text_).substr(scanned_));
}

// Whether the text is the beginning of such an answer, as far as the name.
bool FencedCall::read_name() {
  std::string_view rest = text_;
  bool fits = true, is_cut = false;
  const auto skip = [&](std::string_view word) {
    rest.remove_prefix(std::min(rest.find_first_not_of(kBlanks), rest.size()));
    is_cut = is_cut || (rest.size() < word.size() && word.starts_with(rest));
    fits = fits && (is_cut || rest.starts_with(word));
    rest.remove_prefix(fits && !is_cut ? word.size() : 0);
  };
  if (!is_alone(text_)) skip("```json");
  skip("{");
  const size_t open = text_.size() - rest.size();  // behind the bracket
  for (const char* word : {"\"name\"", ":", "\""}) skip(word);
  if (!fits || is_cut) return fits;
  const auto may_be = [&](const std::string& name) {
    return rest.size() <= name.size() ? name.starts_with(rest)
                                      : rest.starts_with(name) && rest[name.size()] == '"';
  };
  const auto found = std::find_if(names_.begin(), names_.end(), may_be);
  if (found == names_.end()) return false;
  const auto is_told = [&](const std::string& name) { return rest.size() > name.size() && may_be(name); };
  if (std::any_of(names_.begin(), names_.end(), is_told)) {
    nesting_.ends_at('{');
    scanned_ = open;
  }
  return true;
}

// Whether what stands behind the object may be the end of the answer.
bool FencedCall::is_end(std::string_view rest) const {
  rest.remove_prefix(std::min(rest.find_first_not_of(kBlanks), rest.size()));
  if (is_alone(text_)) return rest.empty();
  constexpr std::string_view kFence = "```";
  if (rest.size() <= kFence.size()) return kFence.starts_with(rest);
  return rest.starts_with(kFence) && rest.find_first_not_of(kBlanks, kFence.size()) == rest.npos;
}

std::optional<std::pair<std::string, std::string>> FencedCall::call() const {
  if (!is_whole_ || (!is_alone(text_) && text_.find("```", scanned_) == text_.npos)) return std::nullopt;
  const auto object =
      parse_json(std::string_view(text_).substr(text_.find('{'), scanned_ - text_.find('{')), "a call");
  if (!object.ok() || object->size() != 2 || !object->contains("arguments") ||
      !(*object)["arguments"].is_object())
    return std::nullopt;
  for (const auto& [key, bytes] : members_of(text_))
    if (key == "arguments") return std::pair((*object)["name"].get<std::string>(), std::string(bytes));
  return std::nullopt;
}

ToolCallParser::ToolCallParser(ToolReading reading)
    : reading_(std::move(reading)),
      form_(json_calls_of(reading_.format) ? *json_calls_of(reading_.format) : JsonCalls()) {
  if (tags_of(reading_.format)) tagged_.emplace(reading_);
  if (reading_.format == ToolFormat::kHermes && !reading_.has_grammar) fenced_.emplace(reading_.names);
}

void ToolCallParser::append(std::string_view text, std::vector<ToolEvent>& events) {
  if (tagged_) return tagged_->append(text, events);
  if (fenced_ && fenced_->append(text)) return;
  pending_ += fenced_ ? std::string_view(fenced_->text()) : text;
  fenced_.reset();
  while (step(events)) {
  }
}

// Whether more can be parsed at once.
bool ToolCallParser::step(std::vector<ToolEvent>& events) {
  if (is_over_) {
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
  if (!is_marked()) {
    const size_t at = pending_.find_first_not_of(kBlanks);
    if (at == std::string::npos) return false;
    const std::string_view rest = std::string_view(pending_).substr(at);
    if (rest.starts_with(kPythonTag)) {
      take(at + kPythonTag.size());
    } else if (kPythonTag.starts_with(rest)) {
      return false;
    } else if (rest.front() != '{') {
      is_over_ = true;
      return true;
    }
    state_ = State::kBegin;
    return true;
  }
  const std::string_view mark = form_.begin;
  const size_t at = pending_.find(mark);
  if (at != std::string::npos) {
    constexpr int kMaxBegun = 1000;  // limit of scans, each of which may go to the end of the text
    if (++begun_ > kMaxBegun) {
      is_over_ = true;
      return true;
    }
    show(pending_.substr(0, at), events);
    pending_.erase(0, at);
    take(mark.size());
    in_list_ = false;
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
  if (form_.is_list && first == '[' && !in_list_ &&
      !std::string_view(pending_).substr(at).starts_with(kArgs)) {
    take(at + 1);
    in_list_ = true;
    return true;
  }
  if (is_mistral()) return read_named(events);
  give_up(events);
  return true;
}

bool ToolCallParser::is_mistral() const { return form_.begin == json_calls_of(ToolFormat::kMistral)->begin; }

// NAME{...}, NAME[ARGS]{...} or NAME[CALL_ID]ID[ARGS]{...}
bool ToolCallParser::read_named(std::vector<ToolEvent>& events) {
  constexpr size_t kMaxHead = 256;  // bytes of a name, the marks and an id
  const size_t brace = std::min(pending_.find('{'), pending_.size());
  std::string name = pending_.substr(0, brace);
  if (name.size() > kMaxHead) {
    give_up(events);
    return true;
  }
  // Marks that are tokens arrive whole, except for pieces in a stream of bytes.
  if (brace == pending_.size()) return false;
  if (name.ends_with(kArgs)) name.resize(name.size() - kArgs.size());
  if (const size_t id = name.find(kCallId); id != std::string::npos) name.resize(id);
  skip_blanks(name);
  while (!name.empty() && kBlanks.find(name.back()) != std::string_view::npos) name.pop_back();
  if (name.empty() || name.find_first_of("\"[]{} \t\r\n") != std::string::npos) {
    give_up(events);
    return true;
  }
  pending_.erase(0, brace);
  is_object_ = false;
  begin_call(std::move(name), events);
  return true;
}

bool ToolCallParser::is_offered(std::string_view name) const {
  return std::find(reading_.names.begin(), reading_.names.end(), name) != reading_.names.end();
}

// {"name": "...", "arguments": ...: parsed as soon as that much has arrived, as are short texts before them.
// Keys in another order are parsed at the end.
bool ToolCallParser::read_object(std::vector<ToolEvent>& events) {
  constexpr size_t kMaxName = 256;     // bytes, with its escapes
  constexpr size_t kMaxBefore = 1024;  // bytes before the arguments, which every piece of text scans again
  if (scanned_ > 0) return read_whole_object(events);
  const std::string_view text = pending_;
  size_t at = text.find('{') + 1;
  std::string name;
  while (true) {
    if (at > kMaxBefore) break;
    at = text.find_first_not_of(" \t\r\n,", at);
    if (at == std::string_view::npos && text.size() > kMaxBefore) break;
    if (at == std::string_view::npos) return false;
    if (text[at] != '"') break;
    const size_t key_end = text_end(text, at);
    if (key_end == std::string_view::npos && text.size() - at <= kMaxName) return false;
    if (key_end == std::string_view::npos) break;
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
    if (text[at] != '"' || key == "arguments" || key == "parameters") break;
    const size_t value_end = text_end(text, at);
    if (value_end == std::string_view::npos && text.size() - at <= kMaxName) return false;
    if (value_end == std::string_view::npos) break;
    const auto value = parse_json(text.substr(at, value_end - at), "a name");
    if (!value.ok()) break;
    if (key != form_.name) {  // such as an id
      at = value_end;
      continue;
    }
    name = value->get<std::string>();
    // Without a mark, any JSON may have a "name".
    if (!is_marked() && !is_offered(name)) {
      give_up(events);
      return true;
    }
    at = value_end;
  }
  return read_whole_object(events);
}

bool ToolCallParser::read_whole_object(std::vector<ToolEvent>& events) {
  if (scanned_ == 0) nesting_ = {}, scanned_ = pending_.find('{');
  const Extent more = extent(scanned_);
  scanned_ = more.end;
  if (more.is_damaged) {
    give_up(events);
    return true;
  }
  if (!more.is_whole) return false;
  const std::string_view text = std::string_view(pending_).substr(0, scanned_);
  const auto call = parse_json(text, "a call");
  const std::string name_key(form_.name);
  if (!call.ok() || !call->contains(name_key) || !(*call)[name_key].is_string()) {
    give_up(events);
    return true;
  }
  std::string name = (*call)[name_key].get<std::string>();
  const char* const key = call->contains("arguments") ? "arguments" : "parameters";
  const bool has_arguments = call->contains(key);
  if (name.empty() || (!is_marked() && (!has_arguments || !is_offered(name)))) {
    give_up(events);
    return true;
  }
  std::string arguments = "{}";
  if (has_arguments) {
    const nlohmann::json& value = (*call)[key];
    for (const auto& [of, bytes] : members_of(text))
      if (of == key) arguments = bytes;
    if (value.is_string()) arguments = value.get<std::string>();
    if (value.is_null() || arguments.find_first_not_of(kBlanks) == std::string::npos) arguments = "{}";
  }
  pending_.erase(0, scanned_);
  begin_call(std::move(name), events);
  events.push_back({.kind = ToolEvent::Kind::kArguments, .index = calls_ - 1, .text = std::move(arguments)});
  state_ = State::kBetween;
  return true;
}

void ToolCallParser::begin_call(std::string name, std::vector<ToolEvent>& events) {
  blank_.clear();
  taken_.clear();
  scanned_ = 0;
  begun_ = 0;
  events.push_back({.kind = ToolEvent::Kind::kCall, .index = calls_++, .text = std::move(name)});
  nesting_ = {};
  state_ = State::kArguments;
}

// A value with a missing bracket or quote ends at the end mark of its call: outside of strings, where JSON
// has no "<", and after a line break in a string, which JSON forbids.
ToolCallParser::Extent ToolCallParser::extent(size_t from) {
  Extent out{.end = from};
  while (out.end < pending_.size()) {
    const char c = pending_[out.end];
    if (!form_.end.empty() && c == form_.end.front() && (!nesting_.in_text || nesting_.breaks_line)) {
      const std::string_view rest = std::string_view(pending_).substr(out.end);
      out.is_damaged = rest.starts_with(form_.end);
      if (out.is_damaged || form_.end.starts_with(rest)) return out;
    }
    ++out.end;
    if ((out.is_whole = nesting_.ends_at(c))) return out;
  }
  return out;
}

bool ToolCallParser::read_arguments(std::vector<ToolEvent>& events) {
  const Extent more = extent(0);
  if (more.end > 0)
    events.push_back(
        {.kind = ToolEvent::Kind::kArguments, .index = calls_ - 1, .text = pending_.substr(0, more.end)});
  pending_.erase(0, more.end);
  if (more.is_damaged) state_ = State::kBetween;
  if (!more.is_whole) return more.is_damaged;
  nesting_ = {};
  nesting_.depth = 1;
  state_ = is_object_ ? State::kTail : State::kBetween;
  return true;
}

bool ToolCallParser::read_tail() {
  const Extent more = extent(0);
  pending_.erase(0, more.end);
  if (more.is_whole || more.is_damaged) state_ = State::kBetween;
  return more.is_whole || more.is_damaged;
}

bool ToolCallParser::read_between() {
  skip_blanks(pending_);
  if (pending_.empty()) return false;
  const char first = pending_.front();
  if (!is_marked()) {  // calls follow each other, and nothing else does
    if (first == ';' || first == ',') {
      pending_.erase(0, 1);
      state_ = State::kBegin;
    } else {
      is_over_ = true;
    }
    return true;
  }
  const bool has_next = form_.is_list ? is_object_ && first == ','
                                      : first == '{' && reading_.format == ToolFormat::kToolCallLines;
  if (has_next) {
    if (first == ',') pending_.erase(0, 1);
    state_ = State::kBegin;
    return true;
  }
  if (form_.is_list && is_object_ && first == ']' && std::exchange(in_list_, false)) {
    pending_.erase(0, 1);
    return true;
  }
  if (!form_.end.empty() && std::string_view(pending_).starts_with(form_.end))
    pending_.erase(0, form_.end.size());
  else if (form_.end.starts_with(pending_))
    return false;
  // Blank text between two calls is not shown.
  has_shown_ = false;
  state_ = State::kText;
  return true;
}

void ToolCallParser::end_fenced(std::vector<ToolEvent>& events) {
  if (auto call = fenced_->call()) {
    events.push_back({.kind = ToolEvent::Kind::kCall, .index = calls_++, .text = std::move(call->first)});
    events.push_back(
        {.kind = ToolEvent::Kind::kArguments, .index = calls_ - 1, .text = std::move(call->second)});
  } else {
    pending_ = fenced_->text();
    while (step(events)) {
    }
  }
  fenced_.reset();
}

void ToolCallParser::take(size_t length) {
  taken_ += pending_.substr(0, length);
  pending_.erase(0, length);
}

// The collected text does not begin a call: shows it, and scans the following text again.
void ToolCallParser::give_up(std::vector<ToolEvent>& events) {
  show(std::exchange(taken_, {}), events);
  scanned_ = 0;
  state_ = State::kText;
  is_over_ = is_over_ || !is_marked();
}

void ToolCallParser::finish(std::vector<ToolEvent>& events) {
  if (tagged_) return tagged_->finish(events);
  if (fenced_) end_fenced(events);
  // Each turn skips the next mark, so the remaining text gets shorter.
  while (state_ == State::kBegin && !is_over_) {
    give_up(events);
    while (step(events)) {
    }
  }
  if (state_ == State::kText || is_over_) show(std::exchange(pending_, {}), events);
  if (state_ == State::kArguments && !pending_.empty())  // it could have become the end mark
    events.push_back(
        {.kind = ToolEvent::Kind::kArguments, .index = calls_ - 1, .text = std::exchange(pending_, {})});
  pending_.clear();
  if (calls_ == 0 && !blank_.empty())
    events.push_back({.kind = ToolEvent::Kind::kText, .index = 0, .text = std::exchange(blank_, {})});
}

}  // namespace outrider
