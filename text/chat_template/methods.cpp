// Methods by the type of their object. Those that change it are hidden, as in Jinja's sandbox.
#include <algorithm>

#include "text/chat_template/builtins.h"

namespace outrider::chat_template {
namespace {

constexpr std::string_view kOfStrings[] = {
    "capitalize", "casefold",     "center",       "count",   "encode",     "endswith",    "expandtabs",
    "find",       "format",       "format_map",   "index",   "isalnum",    "isalpha",     "isascii",
    "isdecimal",  "isdigit",      "isidentifier", "islower", "isnumeric",  "isprintable", "isspace",
    "istitle",    "isupper",      "join",         "ljust",   "lower",      "lstrip",      "maketrans",
    "partition",  "removeprefix", "removesuffix", "replace", "rfind",      "rindex",      "rjust",
    "rpartition", "rsplit",       "rstrip",       "split",   "splitlines", "startswith",  "strip",
    "swapcase",   "title",        "translate",    "upper",   "zfill"};
constexpr std::string_view kOfDicts[] = {"copy", "get", "items", "keys", "values"};
constexpr std::string_view kOfLists[] = {"copy", "count", "index"};
constexpr std::string_view kChangeDicts[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kChangeLists[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kOfTuples[] = {"count", "index"};

bool holds(std::span<const std::string_view> names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::span<const std::string_view> methods_of(const Value& object) {
  if (object.string() != nullptr) return kOfStrings;
  if (object.map() != nullptr) return kOfDicts;
  if (object.list() == nullptr || object.sequence() == Sequence::kView) return {};
  if (object.sequence() == Sequence::kList) return kOfLists;
  return kOfTuples;
}

Result<Value> map_method(const Map& map, const std::string& name, const Arguments& arguments,
                         Budget& budget) {
  if (name == "get") {
    const Value *key = arguments.find(0, ""), *fallback = arguments.find(1, "");
    if (key == nullptr || !arguments.keywords.empty())
      return invalid_argument("get() takes a key, and perhaps a default");
    RETURN_IF_ERROR(check_key(*key));
    const Value* found = map.find_key(*key);
    return found != nullptr ? *found : fallback != nullptr ? *fallback : Value(None{});
  }
  if (arguments.count() > 0) return invalid_argument(name + "() takes no arguments");
  RETURN_IF_ERROR(budget.bytes(map.entries.size() * 3 * sizeof(Value)));
  if (name == "copy") return Value(map);
  List out;
  for (const auto& [key, value] : map.entries) {
    if (name == "items")
      out.emplace_back(List{key, value}, Sequence::kTuple);
    else
      out.push_back(name == "keys" ? key : value);
  }
  return Value(std::move(out), Sequence::kView);
}

Result<Value> list_method(const List& list, const std::string& name, const Arguments& arguments,
                          Budget& budget) {
  RETURN_IF_ERROR(budget.bytes(list.size() * sizeof(Value)));
  if (name == "copy") return Value(list);
  const Value* wanted = arguments.find(0, "");
  if (wanted == nullptr || arguments.count() > 1) return invalid_argument(name + "() takes one value");
  RETURN_IF_ERROR(budget.work(list.size() * wanted->weight()));
  const auto is_wanted = [&](const Value& element) { return equal(element, *wanted); };
  if (name == "count") return Value(int64_t{std::count_if(list.begin(), list.end(), is_wanted)});
  const auto at = std::find_if(list.begin(), list.end(), is_wanted);
  if (at == list.end()) return invalid_argument("the value is not in the list");
  return Value(int64_t{at - list.begin()});
}

Result<Value> cycle(const Loop& loop, const Arguments& arguments) {
  if (arguments.positional.empty()) return invalid_argument("loop.cycle() needs values");
  return arguments.positional[loop.index0 % arguments.positional.size()];
}

}  // namespace

bool has_method(const Value& object, const std::string& name) {
  if (object.as<Loop>()) return name == "cycle";
  return holds(methods_of(object), name);
}

bool hides_method(const Value& object, const std::string& name) {
  if (object.map() != nullptr) return holds(kChangeDicts, name);
  return object.list() != nullptr && object.sequence() == Sequence::kList && holds(kChangeLists, name);
}

Result<Value> call_method(const Value& object, const std::string& name, const Arguments& arguments,
                          Budget& budget) {
  if (object.string() != nullptr) return string_method(*object.string(), name, arguments, budget);
  if (const Loop* loop = object.as<Loop>()) return cycle(*loop, arguments);
  if (object.map() != nullptr) return map_method(*object.map(), name, arguments, budget);
  return list_method(*object.list(), name, arguments, budget);
}

}  // namespace outrider::chat_template
