#include "text/chat_template/value.h"

#include <algorithm>

namespace outrider::chat_template {

const Value* Fields::find(std::string_view wanted) const {
  for (const auto& [name, value] : entries)
    if (name == wanted) return &value;
  return nullptr;
}

void Fields::set(std::string_view wanted, Value value) {
  for (auto& [name, old] : entries)
    if (name == wanted) {
      old = std::move(value);
      return;
    }
  entries.emplace_back(wanted, std::move(value));
}

const Value* Map::find(std::string_view wanted) const {
  for (const auto& [key, value] : entries)
    if (key.string() != nullptr && *key.string() == wanted) return &value;
  return nullptr;
}

const Value* Map::find_key(const Value& wanted) const {
  if (wanted.string() != nullptr) return find(std::string_view(*wanted.string()));
  for (const auto& [key, value] : entries)
    if (equal(key, wanted)) return &value;
  return nullptr;
}

void Map::set_key(Value key, Value value) {
  if (const Value* old = find_key(key))
    *const_cast<Value*>(old) = std::move(value);
  else
    entries.emplace_back(std::move(key), std::move(value));
}

void Map::set(std::string_view key, Value value) { set_key(Value(std::string(key)), std::move(value)); }

Value::Value(std::string s) : weight_(kOwnWeight + s.size()) {
  state_ = std::make_shared<const std::string>(std::move(s));
}

void Value::weigh(const List& list) {
  for (const Value& element : list) {
    depth_ = std::max(depth_, element.depth());
    weight_ += element.weight();
  }
  ++depth_;
}

Value::Value(List list, Sequence kind) : sequence_(kind) {
  weigh(list);
  state_ = std::make_shared<const List>(std::move(list));
}

Value::Value(Iterator iterator) {
  weigh(iterator.items);
  state_ = std::make_shared<Iterator>(std::move(iterator));
}

Value::Value(Map map) {
  for (const auto& [key, value] : map.entries) {
    depth_ = std::max({depth_, key.depth(), value.depth()});
    weight_ += key.weight() + value.weight();
  }
  ++depth_;
  state_ = std::make_shared<const Map>(std::move(map));
}

bool Value::is_callable() const { return as<MacroRef>() || as<Method>() || as<Builtin>(); }

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
  constexpr const char* kNames[] = {"undefined", "none",   "bool",  "int",    "int",
                                    "float",     "string", "list",  "dict",   "namespace",
                                    "generator", "loop",   "macro", "method", "function"};
  constexpr const char* kSequences[] = {"list", "tuple", "tuple", "range", "view of a dict"};
  return list() != nullptr ? kSequences[static_cast<size_t>(sequence_)] : kNames[state_.index()];
}

Result<double> to_number(const Value& value) {
  if (const bool* b = value.as<bool>()) return *b ? 1.0 : 0.0;
  if (const int64_t* i = value.as<int64_t>()) return static_cast<double>(*i);
  if (const uint64_t* i = value.as<uint64_t>()) return static_cast<double>(*i);
  if (const double* d = value.as<double>()) return *d;
  return invalid_argument(fmt::format("a number is needed, not {}", value.type_name()));
}

namespace {

bool is_number(const Value& value) { return value.as<bool>() || value.is_integer() || value.as<double>(); }
// True for two integers if at least one is 2^63 or larger.
bool are_large(const Value& a, const Value& b) {
  return a.is_integer() && b.is_integer() && (a.as<uint64_t>() || b.as<uint64_t>());
}
int order_of_large(const Value& a, const Value& b) {
  const uint64_t x = a.as<uint64_t>() ? *a.as<uint64_t>() : 0, y = b.as<uint64_t>() ? *b.as<uint64_t>() : 0;
  return (x > y) - (x < y);
}

}  // namespace

bool equal(const Value& a, const Value& b) {
  if (a.string() != nullptr && b.string() != nullptr) return *a.string() == *b.string();
  if (a.as<int64_t>() && b.as<int64_t>()) return *a.as<int64_t>() == *b.as<int64_t>();
  if (are_large(a, b)) return order_of_large(a, b) == 0;
  if (is_number(a) && is_number(b)) return *to_number(a) == *to_number(b);
  if (a.list() != nullptr && b.list() != nullptr)
    return a.sequence() == b.sequence() &&
           std::equal(a.list()->begin(), a.list()->end(), b.list()->begin(), b.list()->end(), equal);
  if (a.map() != nullptr && b.map() != nullptr) {
    if (a.map()->entries.size() != b.map()->entries.size()) return false;
    for (const auto& [key, value] : a.map()->entries) {
      const Value* other = b.map()->find_key(key);
      if (other == nullptr || !equal(value, *other)) return false;
    }
    return true;
  }
  if (a.fields() != nullptr) return a.fields() == b.fields();
  if (a.iterator() != nullptr) return a.iterator() == b.iterator();
  if (a.as<Builtin>() && b.as<Builtin>()) return *a.as<Builtin>() == *b.as<Builtin>();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

Result<int> compare(const Value& a, const Value& b) {
  if (a.string() != nullptr && b.string() != nullptr) return a.string()->compare(*b.string());
  if (a.as<int64_t>() && b.as<int64_t>())
    return (*a.as<int64_t>() > *b.as<int64_t>()) - (*a.as<int64_t>() < *b.as<int64_t>());
  if (are_large(a, b)) return order_of_large(a, b);
  if (is_number(a) && is_number(b)) return (*to_number(a) > *to_number(b)) - (*to_number(a) < *to_number(b));
  const bool ordered = a.sequence() == Sequence::kList || a.sequence() == Sequence::kTuple;
  if (a.list() != nullptr && b.list() != nullptr && a.sequence() == b.sequence() && ordered) {
    const List &x = *a.list(), &y = *b.list();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!equal(x[i], y[i])) return compare(x[i], y[i]);
    return (x.size() > y.size()) - (x.size() < y.size());
  }
  for (const Value* value : {&a, &b})
    if (value->is_undefined())
      return invalid_argument(fmt::format("'{}' is undefined", value->as<Undefined>()->name));
  return invalid_argument(fmt::format("{} and {} have no order", a.type_name(), b.type_name()));
}

Status check_key(const Value& key) {
  if (key.map() != nullptr || (key.list() != nullptr && key.sequence() == Sequence::kList))
    return invalid_argument(fmt::format("a {} cannot be the key of a dict", key.type_name()));
  if (key.list() != nullptr)
    for (const Value& element : *key.list()) RETURN_IF_ERROR(check_key(element));
  return {};
}

}  // namespace outrider::chat_template
