// Reading inside of values: elements, attributes, items, slices.
#include <algorithm>
#include <optional>

#include "base/utf8.h"
#include "text/chat_template/builtins.h"

namespace outrider::chat_template {
namespace {

Result<List> characters_of(const std::string& text, Budget& budget) {
  RETURN_IF_ERROR(budget.bytes(text.size() * sizeof(Value)));
  List out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    next_codepoint(text, at);
    out.emplace_back(text.substr(begin, at - begin));
  }
  return out;
}

Value loop_attribute(const Loop& loop, const std::string& name) {
  const auto length = static_cast<int64_t>(loop.items->size());
  const auto index0 = static_cast<int64_t>(loop.index0);
  if (name == "index") return Value(index0 + 1);
  if (name == "index0") return Value(index0);
  if (name == "revindex") return Value(length - index0);
  if (name == "revindex0") return Value(length - index0 - 1);
  if (name == "first") return Value(index0 == 0);
  if (name == "last") return Value(index0 + 1 == length);
  if (name == "length") return Value(length);
  if (name == "depth") return Value(int64_t{1});  // counts recursive loops only
  if (name == "depth0") return Value(int64_t{0});
  if (name == "previtem" && index0 > 0) return (*loop.items)[loop.index0 - 1];
  if (name == "nextitem" && index0 + 1 < length) return (*loop.items)[loop.index0 + 1];
  return Undefined{"loop." + name};
}

Value list_item(const List& list, int64_t index) {
  const auto size = static_cast<int64_t>(list.size());
  if (index < 0) index += size;
  if (index < 0 || index >= size) return Undefined{"list item"};
  return list[static_cast<size_t>(index)];
}

Result<std::optional<int64_t>> slice_bound(const Value* value) {
  if (value == nullptr || value->is_none()) return std::optional<int64_t>();
  const auto bound = as_integer(*value);
  if (!bound) return invalid_argument("slice bounds must be integers");
  return bound;
}

// Python's rule: indices from the end, then clamped.
int64_t clamp_bound(std::optional<int64_t> bound, int64_t if_absent, int64_t size, int64_t low,
                    int64_t high) {
  if (!bound) return if_absent;
  return std::clamp(*bound < 0 ? std::max(*bound, -size - 1) + size : *bound, low, high);
}

}  // namespace

Result<List> elements_of(const Value& value, Budget& budget) {
  if (value.is_undefined()) return List();
  if (value.string() != nullptr) return characters_of(*value.string(), budget);
  if (value.list() != nullptr) {
    RETURN_IF_ERROR(budget.bytes(value.list()->size() * sizeof(Value)));
    return *value.list();
  }
  if (Iterator* iterator = value.iterator()) {
    RETURN_IF_ERROR(budget.bytes(iterator->items.size() * sizeof(Value)));
    List rest(iterator->items.begin() + static_cast<ptrdiff_t>(iterator->next), iterator->items.end());
    iterator->next = iterator->items.size();
    return rest;
  }
  if (value.map() == nullptr) return invalid_argument(fmt::format("a {} has no elements", value.type_name()));
  RETURN_IF_ERROR(budget.bytes(value.map()->entries.size() * sizeof(Value)));
  List keys;
  for (const auto& [key, unused] : value.map()->entries) keys.push_back(key);
  return keys;
}

Result<bool> contains(const Value& container, const Value& element, Budget& budget) {
  if (container.string() == nullptr) RETURN_IF_ERROR(budget.work(container.weight()));
  if (container.is_undefined()) return false;
  if (container.list() != nullptr)
    return std::any_of(container.list()->begin(), container.list()->end(),
                       [&](const Value& v) { return equal(v, element); });
  if (container.map() != nullptr) {
    RETURN_IF_ERROR(check_key(element));
    return container.map()->find_key(element) != nullptr;
  }
  if (Iterator* iterator = container.iterator()) {  // read up to the element
    while (iterator->next < iterator->items.size())
      if (equal(iterator->items[iterator->next++], element)) return true;
    return false;
  }
  if (container.string() == nullptr)
    return invalid_argument(fmt::format("'in' needs a container, not {}", container.type_name()));
  if (element.string() == nullptr)
    return invalid_argument(fmt::format("'in' a string needs a string, not {}", element.type_name()));
  RETURN_IF_ERROR(budget.search(container.string()->size(), element.string()->size()));
  return container.string()->find(*element.string()) != std::string::npos;
}

// As Python's getattr(): methods and fields, no keys of dicts.
Value python_attribute(const Value& object, const std::string& name) {
  if (const Loop* loop = object.as<Loop>(); loop != nullptr && !has_method(object, name))
    return loop_attribute(*loop, name);
  if (const Fields* fields = object.fields())
    if (const Value* value = fields->find(name)) return *value;
  if (object.list() != nullptr && object.sequence() == Sequence::kGroup &&
      (name == "grouper" || name == "list"))
    return (*object.list())[name == "list"];
  if (has_method(object, name)) return Method{std::make_shared<const Value>(object), name};
  return Undefined{name};
}

Value attribute_of(const Value& object, const std::string& name) {
  Value attribute = python_attribute(object, name);
  if (!attribute.is_undefined() || object.map() == nullptr || hides_method(object, name)) return attribute;
  const Value* value = object.map()->find(name);
  return value != nullptr ? *value : attribute;
}

Result<Value> item_of(const Value& object, const Value& key, Budget& budget) {
  if (object.map() != nullptr)
    if (const Value* value = object.map()->find_key(key)) return *value;
  if (key.string() != nullptr) return python_attribute(object, *key.string());
  const auto index = as_integer(key);
  if (!index) return Value(Undefined{"item"});
  if (object.list() != nullptr && object.sequence() != Sequence::kView)
    return list_item(*object.list(), *index);
  if (object.string() == nullptr) return Value(Undefined{"item"});
  ASSIGN_OR_RETURN(const List characters, characters_of(*object.string(), budget));
  return list_item(characters, *index);
}

Result<Value> slice_of(const Value& object, const Value* start, const Value* stop, const Value* step,
                       Budget& budget) {
  // Jinja asks for an item, finds none, and goes on with nothing.
  if ((object.list() == nullptr || object.sequence() == Sequence::kView) && object.string() == nullptr)
    return Value(Undefined{"slice"});
  ASSIGN_OR_RETURN(const auto from, slice_bound(start));
  ASSIGN_OR_RETURN(const auto to, slice_bound(stop));
  ASSIGN_OR_RETURN(const auto given_step, slice_bound(step));
  if (given_step == 0) return invalid_argument("a slice's step must not be 0");
  ASSIGN_OR_RETURN(const List all, elements_of(object, budget));
  const auto size = static_cast<int64_t>(all.size());
  const int64_t by = std::clamp(given_step.value_or(1), -size - 1, size + 1);
  const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  const int64_t first = clamp_bound(from, by > 0 ? 0 : size - 1, size, low, high);
  const int64_t last = clamp_bound(to, by > 0 ? size : -1, size, low, high);
  List out;
  for (int64_t i = first; by > 0 ? i < last : i > last; i += by) out.push_back(all[static_cast<size_t>(i)]);
  if (object.list() != nullptr) return Value(std::move(out), object.sequence());
  std::string text;
  for (const Value& character : out) text += *character.string();
  return Value(std::move(text));
}

Result<int64_t> length_of(const Value& value) {
  if (value.is_undefined()) return int64_t{0};
  if (value.list() != nullptr) return static_cast<int64_t>(value.list()->size());
  if (value.map() != nullptr) return static_cast<int64_t>(value.map()->entries.size());
  if (value.string() == nullptr)
    return invalid_argument(fmt::format("a {} has no length", value.type_name()));
  return static_cast<int64_t>(std::count_if(value.string()->begin(), value.string()->end(),
                                            [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace outrider::chat_template
