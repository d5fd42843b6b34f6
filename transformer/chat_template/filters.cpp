// Filters: x|name(arguments).
#include <algorithm>
#include <charconv>
#include <map>

#include "transformer/chat_template/builtins.h"
#include "transformer/tokenizer/utf8.h"

namespace outrider::chat_template {
namespace {

using Filter = Result<Value> (*)(const Value&, const Arguments&, Budget&);

Result<Value> trim(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const std::string text, to_text(value));
  RETURN_IF_ERROR(budget.bytes(text.size()));
  if (arguments.count() == 0) return Value(strip(text, nullptr, true, true));
  ASSIGN_OR_RETURN(const std::string characters, arguments.text(0, "chars"));
  if (characters.size() > kMaxStripSet) return unsupported("trim of so many characters");
  return Value(strip(text, &characters, true, true));
}

Result<Value> length(const Value& value, const Arguments&, Budget&) {
  ASSIGN_OR_RETURN(const int64_t count, length_of(value));
  return Value(count);
}

Result<Value> json(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const int64_t indent, arguments.integer_or(0, "indent", -1));
  if (indent > 16) return unsupported("tojson with an indent over 16");
  ASSIGN_OR_RETURN(std::string text, to_json(value, static_cast<int>(indent)));
  RETURN_IF_ERROR(budget.bytes(text.size()));
  return Value(std::move(text));
}

template <bool kUpper>
Result<Value> letters(const Value& value, const Arguments&, Budget& budget) {
  ASSIGN_OR_RETURN(const std::string text, to_text(value));
  RETURN_IF_ERROR(budget.bytes(text.size()));
  return Value(change_case(text, kUpper));
}

Result<Value> capitalize_filter(const Value& value, const Arguments&, Budget& budget) {
  ASSIGN_OR_RETURN(const std::string text, to_text(value));
  RETURN_IF_ERROR(budget.bytes(text.size()));
  return Value(capitalize(text));
}

Result<Value> replace_filter(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const std::string text, to_text(value));
  ASSIGN_OR_RETURN(const std::string from, arguments.text(0, "old"));
  ASSIGN_OR_RETURN(const std::string to, arguments.text(1, "new"));
  ASSIGN_OR_RETURN(const int64_t count, arguments.integer_or(2, "count", -1));
  ASSIGN_OR_RETURN(std::string out, replace(text, from, to, count, budget));
  return Value(std::move(out));
}

Result<Value> fallback(const Value& value, const Arguments& arguments, Budget&) {
  const Value* also_false = arguments.find(1, "boolean");
  const bool missing =
      value.is_undefined() || (also_false != nullptr && also_false->is_true() && !value.is_true());
  if (!missing) return value;
  const Value* other = arguments.find(0, "default_value");
  return other != nullptr ? *other : Value(std::string());
}

Result<Value> join(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const List list, elements_of(value, budget));
  const Value* attribute = arguments.find(1, "attribute");
  if (attribute != nullptr && attribute->string() == nullptr)
    return unsupported("join by an attribute that is no name");
  std::string between;
  if (const Value* separator = arguments.find(0, "d")) {
    ASSIGN_OR_RETURN(between, to_text(*separator));
  }
  std::string out;
  for (const Value& element : list) {
    ASSIGN_OR_RETURN(const std::string text,
                     to_text(attribute != nullptr ? attribute_of(element, *attribute->string()) : element));
    RETURN_IF_ERROR(budget.bytes(text.size() + between.size()));
    if (&element != &list.front()) out += between;
    out += text;
  }
  return Value(std::move(out));
}

template <bool kLast>
Result<Value> end(const Value& value, const Arguments&, Budget& budget) {
  ASSIGN_OR_RETURN(const List list, elements_of(value, budget));
  if (list.empty()) return Value(Undefined{kLast ? "last" : "first"});
  return kLast ? list.back() : list.front();
}

Result<Value> list_filter(const Value& value, const Arguments&, Budget& budget) {
  ASSIGN_OR_RETURN(List list, elements_of(value, budget));
  return Value(std::move(list));
}

Result<Value> reverse(const Value& value, const Arguments&, Budget& budget) {
  ASSIGN_OR_RETURN(List list, elements_of(value, budget));
  std::reverse(list.begin(), list.end());
  if (value.string() == nullptr) return Value(std::move(list));
  std::string text;
  for (const Value& character : list) text += *character.string();
  return Value(std::move(text));
}

Result<Value> string_filter(const Value& value, const Arguments&, Budget& budget) {
  ASSIGN_OR_RETURN(std::string text, to_text(value));
  RETURN_IF_ERROR(budget.bytes(text.size()));
  return Value(std::move(text));
}

Result<Value> integer_filter(const Value& value, const Arguments& arguments, Budget&) {
  ASSIGN_OR_RETURN(const int64_t otherwise, arguments.integer_or(0, "default", 0));
  if (value.as<int64_t>() != nullptr) return value;
  if (value.string() != nullptr) {
    const std::string text = strip(*value.string(), nullptr, true, true);
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return Value(error == std::errc() && end == text.data() + text.size() ? number : otherwise);
  }
  const auto number = to_number(value);
  if (!number.ok() || !(*number > -9e18 && *number < 9e18)) return Value(otherwise);
  return Value(static_cast<int64_t>(*number));
}

Result<Value> items(const Value& value, const Arguments& arguments, Budget& budget) {
  if (value.is_undefined()) return Value(List());
  return call_method(value, "items", arguments, budget);
}

Result<Value> absolute(const Value& value, const Arguments&, Budget&) {
  if (const int64_t* number = value.as<int64_t>()) {
    if (*number == INT64_MIN) return invalid_argument("number out of range");
    return Value(std::abs(*number));
  }
  ASSIGN_OR_RETURN(const double number, to_number(value));
  return Value(std::abs(number));
}

// |map(attribute="name") or |map("filter", ...).
Result<Value> map_filter(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const List list, elements_of(value, budget));
  List out;
  const bool by_attribute = arguments.positional.empty();
  ASSIGN_OR_RETURN(const std::string name,
                   by_attribute ? arguments.text(0, "attribute") : arguments.text(0, "name"));
  Arguments rest = arguments;
  if (!by_attribute) rest.positional.erase(rest.positional.begin());
  for (const Value& element : list) {
    RETURN_IF_ERROR(budget.step());
    if (by_attribute) {
      out.push_back(attribute_of(element, name));
      continue;
    }
    ASSIGN_OR_RETURN(Value mapped, apply_filter(name, element, rest, budget));
    out.push_back(std::move(mapped));
  }
  return Value(std::move(out));
}

// |select("test", ...), |selectattr("name", "test", ...) and their opposites.
template <bool kKeep, bool kByAttribute>
Result<Value> select(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const List list, elements_of(value, budget));
  Arguments rest = arguments;
  std::string attribute;
  if (kByAttribute) {
    ASSIGN_OR_RETURN(attribute, rest.text(0, "attribute"));
    rest.positional.erase(rest.positional.begin());
  }
  std::string test;  // empty: truth
  if (!rest.positional.empty()) {
    ASSIGN_OR_RETURN(test, rest.text(0, "test"));
    rest.positional.erase(rest.positional.begin());
  }
  List out;
  for (const Value& element : list) {
    RETURN_IF_ERROR(budget.step());
    const Value subject = kByAttribute ? attribute_of(element, attribute) : element;
    bool passes = subject.is_true();
    if (!test.empty()) {
      ASSIGN_OR_RETURN(passes, apply_test(test, subject, rest, budget));
    }
    if (passes == kKeep) out.push_back(element);
  }
  return Value(std::move(out));
}

const std::map<std::string, Filter, std::less<>>& filters() {
  static const std::map<std::string, Filter, std::less<>> table = {
      {"trim", trim},
      {"length", length},
      {"count", length},
      {"tojson", json},
      {"upper", letters<true>},
      {"lower", letters<false>},
      {"capitalize", capitalize_filter},
      {"replace", replace_filter},
      {"default", fallback},
      {"d", fallback},
      {"join", join},
      {"first", end<false>},
      {"last", end<true>},
      {"list", list_filter},
      {"reverse", reverse},
      {"string", string_filter},
      {"safe", string_filter},
      {"int", integer_filter},
      {"items", items},
      {"abs", absolute},
      {"map", map_filter},
      {"select", select<true, false>},
      {"reject", select<false, false>},
      {"selectattr", select<true, true>},
      {"rejectattr", select<false, true>},
  };
  return table;
}

}  // namespace

Result<Value> apply_filter(const std::string& name, const Value& operand, const Arguments& arguments,
                           Budget& budget) {
  const auto filter = filters().find(name);
  if (filter == filters().end()) return unsupported(fmt::format("filter '{}' is not supported", name));
  auto result = filter->second(operand, arguments, budget);
  if (!result.ok()) return result.status().in("filter '" + name + "'");
  return result;
}

}  // namespace outrider::chat_template
