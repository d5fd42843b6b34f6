// Methods of strings and maps, as Python has them.
#include <string>
#include <vector>

#include "transformer/chat_template/builtins.h"
#include "transformer/tokenizer/utf8.h"

namespace outrider::chat_template {
namespace {

bool is_python_space(char32_t c) { return is_whitespace(c) || (c >= 0x1C && c <= 0x1F); }

// startswith and endswith take one string or several.
Result<Value> has_end(const std::string& text, const Arguments& arguments, bool at_start) {
  const auto matches = [&](const std::string& part) {
    return at_start ? text.starts_with(part) : text.ends_with(part);
  };
  const Value* part = arguments.find(0, "prefix");
  if (part != nullptr && part->list() != nullptr) {
    for (const Value& each : *part->list())
      if (each.string() != nullptr && matches(*each.string())) return Value(true);
    return Value(false);
  }
  ASSIGN_OR_RETURN(const std::string one, arguments.text(0, "prefix"));
  return Value(matches(one));
}

Result<Value> strip_method(const std::string& text, const Arguments& arguments, bool left, bool right) {
  const Value* characters = arguments.find(0, "chars");
  if (characters == nullptr || characters->is_none()) return Value(strip(text, nullptr, left, right));
  ASSIGN_OR_RETURN(const std::string set, arguments.text(0, "chars"));
  if (set.size() > kMaxStripSet) return unsupported("strip() of so many characters");
  return Value(strip(text, &set, left, right));
}

std::vector<std::string> split_at_spaces(const std::string& text, int64_t max_splits) {
  std::vector<std::string> parts;
  size_t begin = std::string::npos;  // of the part being read, if there is one
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const bool is_space = is_python_space(next_codepoint(text, at));
    if (!is_space && begin == std::string::npos) {
      begin = here;
      if (static_cast<int64_t>(parts.size()) == max_splits) break;
    } else if (is_space && begin != std::string::npos) {
      parts.push_back(text.substr(begin, here - begin));
      begin = std::string::npos;
    }
  }
  if (begin != std::string::npos) parts.push_back(text.substr(begin));
  return parts;
}

Result<Value> split(const std::string& text, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const int64_t max_splits, arguments.integer_or(1, "maxsplit", -1));
  std::vector<std::string> parts;
  const Value* separator = arguments.find(0, "sep");
  if (separator == nullptr || separator->is_none()) {
    parts = split_at_spaces(text, max_splits);
  } else {
    ASSIGN_OR_RETURN(const std::string by, arguments.text(0, "sep"));
    if (by.empty()) return invalid_argument("empty separator");
    RETURN_IF_ERROR(budget.search(text.size(), by.size()));
    size_t at = 0;
    for (size_t hit; (hit = text.find(by, at)) != std::string::npos; at = hit + by.size()) {
      if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) break;
      parts.push_back(text.substr(at, hit - at));
    }
    parts.push_back(text.substr(at));
  }
  RETURN_IF_ERROR(budget.bytes(text.size() + parts.size() * sizeof(Value)));
  List out;
  for (std::string& part : parts) out.emplace_back(std::move(part));
  return Value(std::move(out));
}

Result<Value> string_method(const std::string& text, const std::string& name, const Arguments& arguments,
                            Budget& budget) {
  RETURN_IF_ERROR(budget.bytes(text.size()));
  if (name == "startswith") return has_end(text, arguments, true);
  if (name == "endswith") return has_end(text, arguments, false);
  if (name == "strip") return strip_method(text, arguments, true, true);
  if (name == "lstrip") return strip_method(text, arguments, true, false);
  if (name == "rstrip") return strip_method(text, arguments, false, true);
  if (name == "split") return split(text, arguments, budget);
  if (name == "upper" || name == "lower") return Value(change_case(text, name == "upper"));
  if (name == "capitalize") return Value(capitalize(text));
  if (name == "replace") {
    ASSIGN_OR_RETURN(const std::string from, arguments.text(0, "old"));
    ASSIGN_OR_RETURN(const std::string to, arguments.text(1, "new"));
    ASSIGN_OR_RETURN(const int64_t count, arguments.integer_or(2, "count", -1));
    ASSIGN_OR_RETURN(std::string out, replace(text, from, to, count, budget));
    return Value(std::move(out));
  }
  if (name == "join")
    return apply_filter("join", arguments.positional.empty() ? Value() : arguments.positional[0],
                        {.positional = {Value(text)}, .keywords = {}}, budget);
  if (name == "find" || name == "count") {
    ASSIGN_OR_RETURN(const std::string part, arguments.text(0, "sub"));
    RETURN_IF_ERROR(budget.search(text.size(), part.size()));
    if (name == "find") {
      const size_t at = text.find(part);
      if (at == std::string::npos) return Value(int64_t{-1});
      ASSIGN_OR_RETURN(const int64_t index, length_of(Value(text.substr(0, at))));
      return Value(index);
    }
    if (part.empty()) return unsupported("count() of an empty string");
    int64_t hits = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++hits;
    return Value(hits);
  }
  return unsupported(fmt::format("method '{}' of a string", name));
}

Result<Value> map_method(const Map& map, const std::string& name, const Arguments& arguments,
                         Budget& budget) {
  if (name == "get") {
    const Value* key = arguments.find(0, "key");
    const Value* found = key != nullptr && key->string() != nullptr ? map.find(*key->string()) : nullptr;
    if (found != nullptr) return *found;
    const Value* fallback = arguments.find(1, "default");
    return fallback != nullptr ? *fallback : Value(None{});
  }
  RETURN_IF_ERROR(budget.bytes(map.entries.size() * 3 * sizeof(Value)));
  List out;
  for (const auto& [key, value] : map.entries) {
    if (name == "items")
      out.emplace_back(List{Value(key), value});
    else if (name == "keys")
      out.emplace_back(key);
    else if (name == "values")
      out.push_back(value);
    else
      return unsupported(fmt::format("method '{}' of a dict", name));
  }
  return Value(std::move(out));
}

Result<Value> cycle(const Loop& loop, const Arguments& arguments) {
  if (arguments.positional.empty()) return invalid_argument("loop.cycle() needs values");
  return arguments.positional[loop.index0 % arguments.positional.size()];
}

}  // namespace

std::string strip(std::string_view text, const std::string* characters, bool left, bool right) {
  const auto goes = [&](size_t begin, size_t end) {
    if (characters != nullptr) {
      // A whole character of the set: UTF-8 makes a match within another character impossible.
      return characters->find(text.substr(begin, end - begin)) != std::string::npos;
    }
    return is_python_space(next_codepoint(text, begin));
  };
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    size_t next = begin;
    next_codepoint(text, next);
    if (!goes(begin, next)) break;
    begin = next;
  }
  while (right && end > begin) {
    const size_t last = previous_boundary(text, end);
    if (!goes(last, end)) break;
    end = last;
  }
  return std::string(text.substr(begin, end - begin));
}

std::string change_case(std::string_view text, bool upper) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_codepoint(text, at);
    append_utf8(out, upper ? to_upper(c) : to_lower(c));
  }
  return out;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  size_t at = 0;
  next_codepoint(text, at);
  return change_case(text.substr(0, at), true) + change_case(text.substr(at), false);
}

Result<std::string> replace(const std::string& text, const std::string& from, const std::string& to,
                            int64_t count, Budget& budget) {
  if (from.empty()) return unsupported("replace() of an empty string");
  RETURN_IF_ERROR(budget.search(text.size(), from.size()));
  std::string out;
  size_t at = 0;
  for (size_t hit; count != 0 && (hit = text.find(from, at)) != std::string::npos;
       at = hit + from.size(), --count) {
    RETURN_IF_ERROR(budget.bytes(hit - at + to.size()));
    out.append(text, at, hit - at).append(to);
  }
  return out.append(text, at);
}

Result<Value> call_method(const Value& object, const std::string& name, const Arguments& arguments,
                          Budget& budget) {
  if (object.string() != nullptr) return string_method(*object.string(), name, arguments, budget);
  if (object.map() != nullptr) return map_method(*object.map(), name, arguments, budget);
  if (const Loop* loop = object.as<Loop>(); loop != nullptr && name == "cycle")
    return cycle(*loop, arguments);
  if (object.is_undefined())
    return invalid_argument(fmt::format("'{}' is undefined", object.as<Undefined>()->name));
  return unsupported(fmt::format("method '{}' of a {}", name, object.type_name()));
}

}  // namespace outrider::chat_template
