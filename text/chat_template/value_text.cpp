// Values as text: Python's str(), repr() and json.dumps().
#include <algorithm>
#include <cmath>

#include "base/utf8.h"
#include "text/chat_template/value.h"

namespace outrider::chat_template {
namespace {

std::string float_text(double value) {
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (std::isnan(value)) return "nan";
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string number_text(const Value& value) {
  if (const bool* b = value.as<bool>()) return *b ? "True" : "False";
  if (const int64_t* i = value.as<int64_t>()) return std::to_string(*i);
  if (const uint64_t* i = value.as<uint64_t>()) return std::to_string(*i);
  return float_text(*value.as<double>());
}

std::string json_string(const std::string& text, bool ensure_ascii) {
  constexpr std::string_view kSpecial = "\"\\\n\r\t\f\b", kNames = "\"\\nrtfb";
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_codepoint(text, at);
    const size_t special = c < 0x80 ? kSpecial.find(static_cast<char>(c)) : std::string_view::npos;
    if (special != std::string_view::npos)
      (out += '\\') += kNames[special];
    else if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000))
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    else if (ensure_ascii && c >= 0x10000)
      out +=
          fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
    else
      out.append(text, begin, at - begin);
  }
  return out + '"';
}

Status check_length(const std::string& text) {
  if (text.size() <= kMaxJsonBytes) return {};
  return resource_exhausted(fmt::format("the text of a value has more than {} bytes", kMaxJsonBytes));
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonForm& form) : form_(form) {}
  std::string take() { return std::move(out_); }

  Status write(const Value& value, int level) {
    RETURN_IF_ERROR(check_length(out_));
    const bool is_view = value.sequence() == Sequence::kRange || value.sequence() == Sequence::kView;
    if (value.list() != nullptr && !is_view) return container('[', *value.list(), ']', level);
    if (value.map() != nullptr) return dict(*value.map(), level);
    if (value.is_none())
      out_ += "null";
    else if (const bool* b = value.as<bool>())
      out_ += *b ? "true" : "false";
    else if (value.string() != nullptr)
      out_ += json_string(*value.string(), form_.ensure_ascii);
    else if (value.is_integer() || value.as<double>())
      out_ += json_number(value);
    else
      return invalid_argument(fmt::format("{} has no JSON form", value.type_name()));
    return {};
  }

 private:
  static std::string json_number(const Value& value) {
    const double* d = value.as<double>();
    if (d != nullptr && std::isnan(*d)) return "NaN";
    if (d != nullptr && std::isinf(*d)) return *d > 0 ? "Infinity" : "-Infinity";
    return number_text(value);
  }
  Status key(const Value& key) {
    std::string text;
    if (key.string() != nullptr)
      text = *key.string();
    else if (key.is_none())
      text = "null";
    else if (const bool* b = key.as<bool>())
      text = *b ? "true" : "false";
    else if (key.is_integer() || key.as<double>())
      text = json_number(key);
    else
      return invalid_argument(fmt::format("a {} as a key has no JSON form", key.type_name()));
    out_ += json_string(text, form_.ensure_ascii) + form_.key_separator;
    return {};
  }
  Status dict(const Map& map, int level) {
    if (!form_.sort_keys) return container('{', map.entries, '}', level);
    auto entries = map.entries;
    Status failure;
    std::stable_sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) {
      const auto order = compare(a.first, b.first);
      if (!order.ok()) failure = order.status();
      return order.ok() && *order < 0;
    });
    RETURN_IF_ERROR(failure);
    return container('{', entries, '}', level);
  }
  Status item(const Value& value, int level) { return write(value, level); }
  Status item(const std::pair<Value, Value>& entry, int level) {
    RETURN_IF_ERROR(key(entry.first));
    return write(entry.second, level);
  }
  template <class Items>
  Status container(char open, const Items& items, char close, int level) {
    out_ += open;
    bool first = true;
    for (const auto& element : items) {
      if (!first) out_ += form_.item_separator;
      first = false;
      new_line(level + 1);
      RETURN_IF_ERROR(item(element, level + 1));
    }
    if (!items.empty()) new_line(level);
    out_ += close;
    return {};
  }
  void new_line(int level) {
    if (!form_.lines) return;
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += form_.indent;
  }

  const JsonForm& form_;
  std::string out_;
};

// Python's repr() of a string.
std::string quoted(const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos,
             has_double = text.find('"') != std::string::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_codepoint(text, at);
    constexpr std::string_view kSpecial = "\n\r\t\\", kNames = "nrt\\";
    const size_t special = c < 0x80 ? kSpecial.find(static_cast<char>(c)) : std::string_view::npos;
    const auto code = static_cast<uint32_t>(c);
    if (special != std::string_view::npos)
      (out += '\\') += kNames[special];
    else if (c == static_cast<char32_t>(quote))
      (out += '\\') += quote;
    else if (is_printable(c))
      out.append(text, begin, at - begin);
    else
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
  }
  return out + quote;
}

Status append_repr(const Value& value, std::string& out) {
  RETURN_IF_ERROR(check_length(out));
  const auto separate = [&](bool& first) {
    if (!first) out += ", ";
    first = false;
  };
  bool first = true;
  if (value.string() != nullptr) {
    out += quoted(*value.string());
  } else if (value.list() != nullptr) {
    if (value.sequence() == Sequence::kRange || value.sequence() == Sequence::kView)
      return unsupported(fmt::format("text of a {}; make it a list", value.type_name()));
    const bool is_tuple = value.sequence() != Sequence::kList;
    out += is_tuple ? '(' : '[';
    for (const Value& element : *value.list()) {
      separate(first);
      RETURN_IF_ERROR(append_repr(element, out));
    }
    if (is_tuple && value.list()->size() == 1) out += ',';
    out += is_tuple ? ')' : ']';
  } else if (value.map() != nullptr) {
    out += '{';
    for (const auto& [key, element] : value.map()->entries) {
      separate(first);
      RETURN_IF_ERROR(append_repr(key, out));
      out += ": ";
      RETURN_IF_ERROR(append_repr(element, out));
    }
    out += '}';
  } else if (value.is_undefined()) {
    out += "Undefined";
  } else {
    ASSIGN_OR_RETURN(const std::string text, to_text(value));
    out += text;
  }
  return {};
}

}  // namespace

Result<std::string> to_text(const Value& value) {
  if (value.is_undefined()) return std::string();
  if (value.is_none()) return std::string("None");
  if (value.string() != nullptr) return *value.string();
  if (value.as<bool>() || value.is_integer() || value.as<double>()) return number_text(value);
  if (value.list() == nullptr && value.map() == nullptr)
    return unsupported(fmt::format("text of a {}", value.type_name()));
  std::string out;
  RETURN_IF_ERROR(append_repr(value, out));
  return out;
}

Result<std::string> to_json(const Value& value, const JsonForm& form) {
  JsonWriter writer(form);
  RETURN_IF_ERROR(writer.write(value, 0));
  return writer.take();
}

}  // namespace outrider::chat_template
