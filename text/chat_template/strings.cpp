// Python's methods of strings.
#include <algorithm>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "text/chat_template/builtins.h"

namespace outrider::chat_template {

bool is_python_space(char32_t c) { return is_whitespace(c) || (c >= 0x1C && c <= 0x1F); }

namespace {

// startswith and endswith take one string or a tuple of strings.
Result<Value> has_end(const std::string& text, const Arguments& arguments, bool at_start) {
  const auto matches = [&](const std::string& part) {
    return at_start ? text.starts_with(part) : text.ends_with(part);
  };
  const Value* part = arguments.find(0, "prefix");
  if (part != nullptr && part->list() != nullptr && part->sequence() == Sequence::kTuple) {
    for (const Value& each : *part->list()) {
      if (each.string() == nullptr)
        return invalid_argument(fmt::format("a string is needed, not {}", each.type_name()));
      if (matches(*each.string())) return Value(true);
    }
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

// sep=None or a text, maxsplit.
struct SplitArguments {
  bool at_blanks;
  std::string separator;
  int64_t max_splits;
};

Result<SplitArguments> split_arguments(const Arguments& arguments) {
  SplitArguments out{.at_blanks = false, .separator = {}, .max_splits = -1};
  ASSIGN_OR_RETURN(out.max_splits, arguments.integer_or(1, "maxsplit", -1));
  const Value* separator = arguments.find(0, "sep");
  out.at_blanks = separator == nullptr || separator->is_none();
  if (out.at_blanks) return out;
  ASSIGN_OR_RETURN(out.separator, arguments.text(0, "sep"));
  if (out.separator.empty()) return invalid_argument("empty separator");
  return out;
}

Result<Value> texts(std::vector<std::string> parts, Budget& budget, Sequence kind = Sequence::kList) {
  size_t bytes = 0;
  List out;
  for (std::string& part : parts) {
    bytes += part.size() + sizeof(Value);
    out.emplace_back(std::move(part));
  }
  RETURN_IF_ERROR(budget.bytes(bytes));
  return Value(std::move(out), kind);
}

Result<Value> rsplit(const std::string& text, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const SplitArguments given, split_arguments(arguments));
  if (given.max_splits < 0) return split(text, arguments, budget);
  std::vector<std::string> parts;
  size_t end = text.size();
  if (given.at_blanks) {
    std::string rest = strip(text, nullptr, false, true);
    while (!rest.empty() && static_cast<int64_t>(parts.size()) < given.max_splits) {
      size_t begin = rest.size();
      while (begin > 0) {
        const size_t before = previous_boundary(rest, begin);
        size_t at = before;
        if (is_python_space(next_codepoint(rest, at))) break;
        begin = before;
      }
      parts.insert(parts.begin(), rest.substr(begin));
      RETURN_IF_ERROR(budget.work(rest.size()));
      rest = strip(std::string_view(rest).substr(0, begin), nullptr, false, true);
    }
    if (!rest.empty()) parts.insert(parts.begin(), rest);
    return texts(std::move(parts), budget);
  }
  RETURN_IF_ERROR(budget.search(text.size(), given.separator.size()));
  while (static_cast<int64_t>(parts.size()) < given.max_splits && end >= given.separator.size()) {
    const size_t hit = text.rfind(given.separator, end - given.separator.size());
    if (hit == std::string::npos) break;
    parts.push_back(text.substr(hit + given.separator.size(), end - hit - given.separator.size()));
    end = hit;
  }
  parts.push_back(text.substr(0, end));
  std::reverse(parts.begin(), parts.end());
  return texts(std::move(parts), budget);
}

Result<Value> partition(const std::string& text, const Arguments& arguments, bool from_right,
                        Budget& budget) {
  ASSIGN_OR_RETURN(const std::string by, arguments.text(0, "sep"));
  if (by.empty()) return invalid_argument("empty separator");
  RETURN_IF_ERROR(budget.search(text.size(), by.size()));
  const size_t hit = from_right ? text.rfind(by) : text.find(by);
  if (hit != std::string::npos)
    return texts({text.substr(0, hit), by, text.substr(hit + by.size())}, budget, Sequence::kTuple);
  return texts(from_right ? std::vector<std::string>{"", "", text} : std::vector<std::string>{text, "", ""},
               budget, Sequence::kTuple);
}

int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

Result<Value> find(const std::string& text, const std::string& name, const Arguments& arguments,
                   Budget& budget) {
  ASSIGN_OR_RETURN(const std::string part, arguments.text(0, "sub"));
  if (arguments.count() > 1) return unsupported(name + "() in a part of a string");
  RETURN_IF_ERROR(budget.search(text.size(), part.size()));
  if (name == "count") {
    if (part.empty()) return Value(characters(text) + 1);
    int64_t hits = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++hits;
    return Value(hits);
  }
  const bool from_right = name[0] == 'r';
  const size_t at = from_right ? text.rfind(part) : text.find(part);
  if (at != std::string::npos) return Value(characters(std::string_view(text).substr(0, at)));
  if (name.ends_with("index")) return invalid_argument("substring not found");
  return Value(int64_t{-1});
}

Result<Value> pad(const std::string& text, const std::string& name, const Arguments& arguments,
                  Budget& budget) {
  ASSIGN_OR_RETURN(const int64_t width, arguments.integer_or(0, "width", 0));
  std::string fill = name == "zfill" ? "0" : " ";
  if (arguments.find(1, "fillchar") != nullptr) {
    ASSIGN_OR_RETURN(fill, arguments.text(1, "fillchar"));
  }
  if (characters(fill) != 1) return invalid_argument("the fill character must be one character");
  const int64_t missing = width - characters(text);
  if (missing <= 0) return Value(text);
  if (missing > 4096) return unsupported("padding that wide");
  const int64_t left = name == "ljust" ? 0 : name == "center" ? missing / 2 + (missing & width & 1) : missing;
  const size_t sign = name == "zfill" && (text.starts_with('-') || text.starts_with('+')) ? 1 : 0;
  std::string out = text.substr(0, sign);
  for (int64_t i = 0; i < left; ++i) out += fill;
  out.append(text, sign);
  for (int64_t i = left; i < missing; ++i) out += fill;
  RETURN_IF_ERROR(budget.bytes(out.size()));
  return Value(std::move(out));
}

std::string title(const std::string& text) {
  std::string out;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_codepoint(text, at);
    append_utf8(out, inside ? to_lower(c) : to_upper(c));
    inside = is_letter(c);
  }
  return out;
}

std::string swap_case(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_codepoint(text, at);
    append_utf8(out, to_lower(c) != c ? to_lower(c) : to_upper(c));
  }
  return out;
}

// isdigit() and the like: all characters are of the class, and there is one.
Result<Value> has_class(const std::string& text, const std::string& name) {
  const auto all = [&](auto is) {
    bool every = !text.empty();
    for (size_t at = 0; every && at < text.size();) every = is(next_codepoint(text, at));
    return Value(every);
  };
  const auto is_digit = [](char32_t c) { return is_numeric(c) && to_upper(c) == c; };
  if (name == "isalpha") return all(is_letter);
  if (name == "isalnum") return all([](char32_t c) { return is_letter(c) || is_numeric(c); });
  if (name == "isdigit" || name == "isnumeric" || name == "isdecimal") return all(is_digit);
  if (name == "isspace") return all(is_python_space);
  if (name == "isascii") return text.empty() ? Value(true) : all([](char32_t c) { return c < 0x80; });
  if (name == "isprintable") return text.empty() ? Value(true) : all(is_printable);
  bool cased = false, fits = true;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_codepoint(text, at);
    const bool is_upper = to_lower(c) != c, is_lower = to_upper(c) != c;
    cased = cased || is_upper || is_lower;
    fits = fits && !(name == "isupper" ? is_lower : is_upper);
  }
  return Value(cased && fits);
}

Result<Value> without_affix(const std::string& text, const std::string& name, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::string affix, arguments.text(0, "affix"));
  const bool front = name == "removeprefix";
  if (!(front ? text.starts_with(affix) : text.ends_with(affix))) return Value(text);
  return Value(front ? text.substr(affix.size()) : text.substr(0, text.size() - affix.size()));
}

}  // namespace

List split_lines(const std::string& text) {
  List out;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const char32_t c = next_codepoint(text, at);
    const bool ends =
        (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    out.emplace_back(text.substr(begin, here - begin));
    begin = at;
  }
  if (begin < text.size()) out.emplace_back(text.substr(begin));
  return out;
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
  if (name == "rsplit") return rsplit(text, arguments, budget);
  if (name == "partition" || name == "rpartition") return partition(text, arguments, name[0] == 'r', budget);
  if (name == "upper" || name == "lower" || name == "casefold")
    return Value(change_case(text, name == "upper"));
  if (name == "capitalize") return Value(capitalize(text));
  if (name == "title") return Value(title(text));
  if (name == "swapcase") return Value(swap_case(text));
  if (name == "replace") {
    ASSIGN_OR_RETURN(const std::string from, arguments.text(0, "old"));
    ASSIGN_OR_RETURN(const std::string to, arguments.text(1, "new"));
    ASSIGN_OR_RETURN(const int64_t count, arguments.integer_or(2, "count", -1));
    ASSIGN_OR_RETURN(std::string out, replace(text, from, to, count, budget));
    return Value(std::move(out));
  }
  if (name == "join") {
    ASSIGN_OR_RETURN(const List parts,
                     elements_of(arguments.positional.empty() ? Value() : arguments.positional[0], budget));
    for (const Value& part : parts)
      if (part.string() == nullptr)
        return invalid_argument(fmt::format("join() needs strings, not {}", part.type_name()));
    return apply_filter("join", Value(parts), {.positional = {Value(text)}, .keywords = {}}, budget);
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count")
    return find(text, name, arguments, budget);
  if (name == "center" || name == "ljust" || name == "rjust" || name == "zfill")
    return pad(text, name, arguments, budget);
  if (name == "removeprefix" || name == "removesuffix") return without_affix(text, name, arguments);
  if (name == "splitlines" && !arguments.is_true(0, "keepends")) return Value(split_lines(text));
  if (name == "format") {
    ASSIGN_OR_RETURN(std::string out, format_braces(text, arguments, budget));
    return Value(std::move(out));
  }
  if (name.starts_with("is") && name != "isidentifier" && name != "istitle") return has_class(text, name);
  return unsupported(fmt::format("method '{}' of a string", name));
}

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
  RETURN_IF_ERROR(budget.search(text.size(), from.size()));
  std::string out;
  size_t at = 0;
  if (from.empty()) {  // in front of every character, and at the end
    RETURN_IF_ERROR(budget.bytes(text.size() * (to.size() + 1)));
    for (;; --count) {
      if (count != 0) out += to;
      if (at == text.size()) return out;
      const size_t begin = at;
      next_codepoint(text, at);
      out.append(text, begin, at - begin);
      if (count == 0) return out.append(text, at);
    }
  }
  for (size_t hit; count != 0 && (hit = text.find(from, at)) != std::string::npos;
       at = hit + from.size(), --count) {
    RETURN_IF_ERROR(budget.bytes(hit - at + to.size()));
    out.append(text, at, hit - at).append(to);
  }
  return out.append(text, at);
}

}  // namespace outrider::chat_template
