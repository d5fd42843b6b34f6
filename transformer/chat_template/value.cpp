#include "transformer/chat_template/value.h"

#include <algorithm>
#include <cmath>

namespace outrider::chat_template {
namespace {

std::string float_text(double value) {
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (std::isnan(value)) return "nan";
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string quote(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\b':
        out += "\\b";
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x20)
          out += fmt::format("\\u{:04x}", static_cast<uint8_t>(c));
        else
          out += c;
    }
  }
  return out + '"';
}

class JsonWriter {
 public:
  explicit JsonWriter(int indent) : indent_(indent) {}
  std::string take() { return std::move(out_); }

  Status write(const Value& value, int level) {
    if (out_.size() > kMaxJsonBytes)
      return resource_exhausted(fmt::format("JSON of more than {} bytes", kMaxJsonBytes));
    if (value.list() != nullptr) return container('[', *value.list(), ']', level);
    if (value.map() != nullptr) return container('{', value.map()->entries, '}', level);
    if (value.is_none())
      out_ += "null";
    else if (const bool* b = value.as<bool>())
      out_ += *b ? "true" : "false";
    else if (value.string() != nullptr)
      out_ += quote(*value.string());
    else if (const int64_t* i = value.as<int64_t>())
      out_ += std::to_string(*i);
    else if (const double* d = value.as<double>())
      out_ += float_text(*d);
    else
      return invalid_argument(fmt::format("{} has no JSON form", value.type_name()));
    return {};
  }

 private:
  Status item(const Value& value, int level) { return write(value, level); }
  Status item(const std::pair<std::string, Value>& entry, int level) {
    out_ += quote(entry.first) + ": ";
    return write(entry.second, level);
  }
  template <class Items>
  Status container(char open, const Items& items, char close, int level) {
    out_ += open;
    bool first = true;
    for (const auto& element : items) {
      if (!first) out_ += indent_ < 0 ? ", " : ",";
      first = false;
      new_line(level + 1);
      RETURN_IF_ERROR(item(element, level + 1));
    }
    if (!items.empty()) new_line(level);
    out_ += close;
    return {};
  }
  void new_line(int level) {
    if (indent_ >= 0) out_ += '\n' + std::string(static_cast<size_t>(indent_ * level), ' ');
  }

  int indent_;
  std::string out_;
};

}  // namespace

const Value* Map::find(std::string_view key) const {
  for (const auto& [name, value] : entries)
    if (name == key) return &value;
  return nullptr;
}

void Map::set(std::string_view key, Value value) {
  for (auto& [name, old] : entries)
    if (name == key) {
      old = std::move(value);
      return;
    }
  entries.emplace_back(key, std::move(value));
}

Value::Value(std::string s) : weight_(kOwnWeight + s.size()) {
  state_ = std::make_shared<const std::string>(std::move(s));
}

Value::Value(List list) {
  for (const Value& element : list) {
    depth_ = std::max(depth_, element.depth());
    weight_ += element.weight();
  }
  ++depth_;
  state_ = std::make_shared<const List>(std::move(list));
}

Value::Value(Map map) {
  for (const auto& [key, value] : map.entries) {
    depth_ = std::max(depth_, value.depth());
    weight_ += key.size() + value.weight();
  }
  ++depth_;
  state_ = std::make_shared<const Map>(std::move(map));
}

const Map* Value::fields() const {
  if (const auto* ns = as<Map*>()) return *ns;
  return map();
}

bool Value::is_true() const {
  if (is_undefined() || is_none()) return false;
  if (const bool* b = as<bool>()) return *b;
  if (const int64_t* i = as<int64_t>()) return *i != 0;
  if (const double* d = as<double>()) return *d != 0;
  if (string() != nullptr) return !string()->empty();
  if (list() != nullptr) return !list()->empty();
  if (map() != nullptr) return !map()->entries.empty();
  return true;
}

const char* Value::type_name() const {
  constexpr const char* kNames[] = {"undefined", "none", "bool",      "int",  "float", "string",
                                    "list",      "dict", "namespace", "loop", "macro", "function"};
  return kNames[state_.index()];
}

Result<double> to_number(const Value& value) {
  if (const bool* b = value.as<bool>()) return *b ? 1.0 : 0.0;
  if (const int64_t* i = value.as<int64_t>()) return static_cast<double>(*i);
  if (const double* d = value.as<double>()) return *d;
  return invalid_argument(fmt::format("a number is needed, not {}", value.type_name()));
}

bool equal(const Value& a, const Value& b) {
  if (a.as<int64_t>() && b.as<int64_t>()) return *a.as<int64_t>() == *b.as<int64_t>();
  const auto x = to_number(a), y = to_number(b);
  if (x.ok() && y.ok()) return *x == *y;
  if (a.string() != nullptr && b.string() != nullptr) return *a.string() == *b.string();
  if (a.list() != nullptr && b.list() != nullptr)
    return std::equal(a.list()->begin(), a.list()->end(), b.list()->begin(), b.list()->end(), equal);
  if (a.map() != nullptr && b.map() != nullptr) {
    if (a.map()->entries.size() != b.map()->entries.size()) return false;
    for (const auto& [key, value] : a.map()->entries) {
      const Value* other = b.map()->find(key);
      if (other == nullptr || !equal(value, *other)) return false;
    }
    return true;
  }
  if (a.as<Map*>() && b.as<Map*>()) return *a.as<Map*>() == *b.as<Map*>();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

Result<int> compare(const Value& a, const Value& b) {
  if (a.string() != nullptr && b.string() != nullptr) return a.string()->compare(*b.string());
  if (a.as<int64_t>() && b.as<int64_t>())
    return (*a.as<int64_t>() > *b.as<int64_t>()) - (*a.as<int64_t>() < *b.as<int64_t>());
  const auto x = to_number(a), y = to_number(b);
  if (!x.ok() || !y.ok())
    return invalid_argument(fmt::format("{} and {} have no order", a.type_name(), b.type_name()));
  return (*x > *y) - (*x < *y);
}

Result<std::string> to_text(const Value& value) {
  if (value.is_undefined()) return std::string();
  if (value.is_none()) return std::string("None");
  if (const bool* b = value.as<bool>()) return std::string(*b ? "True" : "False");
  if (value.string() != nullptr) return *value.string();
  if (const int64_t* i = value.as<int64_t>()) return std::to_string(*i);
  if (const double* d = value.as<double>()) return float_text(*d);
  return unsupported(fmt::format("text of a {}", value.type_name()));
}

Result<std::string> to_json(const Value& value, int indent) {
  JsonWriter writer(indent);
  RETURN_IF_ERROR(writer.write(value, 0));
  return writer.take();
}

}  // namespace outrider::chat_template
