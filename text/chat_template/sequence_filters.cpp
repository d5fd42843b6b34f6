// Filters of lists and dicts. What Jinja makes a generator is an Iterator here.
#include <algorithm>

#include "base/parse_number.h"
#include "text/chat_template/builtins.h"

namespace outrider::chat_template {
namespace {

Value iterate(List items) { return Value(Iterator{.items = std::move(items)}); }

// Looks up the path "a.b.0" or the index 0 in a value. If nothing is there: `otherwise`, where given.
Result<Value> look_up(Value value, const Value& path, const Value* otherwise, Budget& budget) {
  if (path.string() == nullptr) {
    ASSIGN_OR_RETURN(value, item_of(value, path, budget));
  } else {
    std::string_view rest = *path.string();
    for (bool more = true; more;) {
      if (value.is_undefined())
        return invalid_argument(fmt::format("'{}' is undefined", value.as<Undefined>()->name));
      const size_t dot = rest.find('.');
      const std::string name(rest.substr(0, dot));
      more = dot != std::string_view::npos;
      if (more) rest.remove_prefix(dot + 1);
      const auto index = parse_number<int64_t>(name);
      RETURN_IF_ERROR(budget.step());
      ASSIGN_OR_RETURN(value, item_of(value, index && *index >= 0 ? Value(*index) : Value(name), budget));
      if (otherwise != nullptr && value.is_undefined()) value = *otherwise;
    }
  }
  if (otherwise != nullptr && value.is_undefined()) return *otherwise;
  return value;
}

// Comparison key of an element: one of its attributes, or the element itself. Texts compare without regard to
// case unless `case_sensitive` is set.
struct Key {
  const Value* attribute;
  const Value* otherwise;
  bool case_sensitive;

  Result<Value> of(const Value& element, Budget& budget) const {
    Value key = element;
    if (attribute != nullptr && !attribute->is_none()) {
      ASSIGN_OR_RETURN(key, look_up(element, *attribute, otherwise, budget));
    }
    return folded(std::move(key));
  }
  Value folded(Value key) const {
    return case_sensitive || key.string() == nullptr ? key : Value(change_case(*key.string(), false));
  }
};

Result<List> keys_of(const List& list, const Key& key, Budget& budget) {
  List keys;
  for (const Value& element : list) {
    RETURN_IF_ERROR(budget.step());
    ASSIGN_OR_RETURN(Value one, key.of(element, budget));
    keys.push_back(std::move(one));
  }
  return keys;
}

// The order of elements by their keys, stable.
Result<std::vector<size_t>> sorted_order(const List& keys, bool reverse, Budget& budget) {
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  Status failure;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (!failure.ok()) return false;
    if (failure = budget.work(64 + keys[a].weight()); !failure.ok()) return false;
    const auto sign = reverse ? compare(keys[b], keys[a]) : compare(keys[a], keys[b]);
    if (!sign.ok()) failure = sign.status();
    return sign.ok() && *sign < 0;
  });
  RETURN_IF_ERROR(failure);
  return order;
}

Result<Value> length(const Value& value, const Arguments&, Budget&) {
  ASSIGN_OR_RETURN(const int64_t count, length_of(value));
  return Value(count);
}

Result<Value> join(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const List list, elements_of(value, budget));
  const Value* attribute = arguments.find(1, "attribute");
  std::string between;
  if (const Value* separator = arguments.find(0, "d")) {
    ASSIGN_OR_RETURN(between, to_text(*separator));
  }
  std::string out;
  for (const Value& element : list) {
    Value part = element;
    if (attribute != nullptr && !attribute->is_none()) {
      ASSIGN_OR_RETURN(part, look_up(element, *attribute, nullptr, budget));
    }
    ASSIGN_OR_RETURN(const std::string text, to_text(part));
    RETURN_IF_ERROR(budget.bytes(text.size() + between.size()));
    if (&element != &list.front()) out += between;
    out += text;
  }
  return Value(std::move(out));
}

Result<Value> first(const Value& value, const Arguments&, Budget& budget) {
  if (Iterator* iterator = value.iterator())
    return iterator->next < iterator->items.size() ? iterator->items[iterator->next++]
                                                   : Value(Undefined{"first"});
  ASSIGN_OR_RETURN(const List list, elements_of(value, budget));
  return list.empty() ? Value(Undefined{"first"}) : list.front();
}

Result<Value> last(const Value& value, const Arguments&, Budget& budget) {
  if (value.iterator() != nullptr) return invalid_argument("a generator has no last element; make it a list");
  ASSIGN_OR_RETURN(const List list, elements_of(value, budget));
  return list.empty() ? Value(Undefined{"last"}) : list.back();
}

Result<Value> list_filter(const Value& value, const Arguments&, Budget& budget) {
  ASSIGN_OR_RETURN(List list, elements_of(value, budget));
  return Value(std::move(list));
}

Result<Value> reverse(const Value& value, const Arguments&, Budget& budget) {
  ASSIGN_OR_RETURN(List list, elements_of(value, budget));
  std::reverse(list.begin(), list.end());
  if (value.iterator() != nullptr || value.is_undefined()) return Value(std::move(list));
  if (value.string() == nullptr) return iterate(std::move(list));
  std::string text;
  for (const Value& character : list) text += *character.string();
  return Value(std::move(text));
}

Result<Value> items(const Value& value, const Arguments&, Budget& budget) {
  if (value.is_undefined()) return iterate({});
  if (value.map() == nullptr)
    return invalid_argument(fmt::format("a dict is needed, not {}", value.type_name()));
  ASSIGN_OR_RETURN(const Value view, call_method(value, "items", {}, budget));
  return iterate(*view.list());
}

// |map(attribute="name", default=...) or |map("filter", ...).
Result<Value> map_filter(const Value& value, const Arguments& arguments, Budget& budget) {
  if (!value.is_true()) return iterate({});
  ASSIGN_OR_RETURN(const List list, elements_of(value, budget));
  List out;
  const bool by_attribute = arguments.positional.empty();
  const Value *attribute = arguments.find(0, "attribute"), *otherwise = nullptr;
  Arguments rest = arguments;
  std::string filter;
  if (by_attribute) {
    if (attribute == nullptr) return invalid_argument("the name of a filter or attribute=... is needed");
    for (const auto& [name, given] : arguments.keywords) {
      if (name == "default")
        otherwise = &given;
      else if (name != "attribute")
        return invalid_argument(fmt::format("has no argument '{}'", name));
    }
  } else {
    ASSIGN_OR_RETURN(filter, arguments.text(0, "name"));
    rest.positional.erase(rest.positional.begin());
  }
  for (const Value& element : list) {
    RETURN_IF_ERROR(budget.step());
    ASSIGN_OR_RETURN(Value mapped, by_attribute ? look_up(element, *attribute, otherwise, budget)
                                                : apply_filter(filter, element, rest, budget));
    out.push_back(std::move(mapped));
  }
  return iterate(std::move(out));
}

// |select("test", ...), |selectattr("name", "test", ...) and their opposites.
template <bool kKeep, bool kByAttribute>
Result<Value> select(const Value& value, const Arguments& arguments, Budget& budget) {
  if (!value.is_true()) return iterate({});
  ASSIGN_OR_RETURN(const List list, elements_of(value, budget));
  Arguments rest = arguments;
  Value attribute;
  if (kByAttribute) {
    if (rest.positional.empty()) return invalid_argument("the name of an attribute is needed");
    attribute = rest.positional.front();
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
    Value subject = element;
    if (kByAttribute) {
      ASSIGN_OR_RETURN(subject, look_up(element, attribute, nullptr, budget));
    }
    bool passes = subject.is_true();
    if (!test.empty()) {
      ASSIGN_OR_RETURN(passes, apply_test(test, subject, rest, budget));
    }
    if (passes == kKeep) out.push_back(element);
  }
  return iterate(std::move(out));
}

Result<Value> sort(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const List list, elements_of(value, budget));
  const Key key{arguments.find(2, "attribute"), nullptr, arguments.is_true(1, "case_sensitive")};
  if (key.attribute != nullptr && key.attribute->string() != nullptr &&
      key.attribute->string()->find(',') != std::string::npos)
    return unsupported("sort by several attributes");
  ASSIGN_OR_RETURN(const List keys, keys_of(list, key, budget));
  ASSIGN_OR_RETURN(const auto order, sorted_order(keys, arguments.is_true(0, "reverse"), budget));
  List out;
  for (const size_t i : order) out.push_back(list[i]);
  return Value(std::move(out));
}

Result<Value> unique(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const List list, elements_of(value, budget));
  const Key key{arguments.find(1, "attribute"), nullptr, arguments.is_true(0, "case_sensitive")};
  ASSIGN_OR_RETURN(const List keys, keys_of(list, key, budget));
  Map seen;
  size_t seen_weight = 0;
  List out;
  for (size_t i = 0; i < list.size(); ++i) {
    RETURN_IF_ERROR(budget.work(seen_weight += keys[i].weight()));
    RETURN_IF_ERROR(check_key(keys[i]));
    if (seen.find_key(keys[i]) != nullptr) continue;
    seen.set_key(keys[i], None{});
    out.push_back(list[i]);
  }
  return iterate(std::move(out));
}

template <bool kMax>
Result<Value> extreme(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const List list, elements_of(value, budget));
  if (list.empty()) return Value(Undefined{kMax ? "max" : "min"});
  const Key key{arguments.find(1, "attribute"), nullptr, arguments.is_true(0, "case_sensitive")};
  ASSIGN_OR_RETURN(const List keys, keys_of(list, key, budget));
  size_t best = 0;
  for (size_t i = 1; i < list.size(); ++i) {
    ASSIGN_OR_RETURN(const int order, compare(keys[i], keys[best]));
    if (kMax ? order > 0 : order < 0) best = i;
  }
  return list[best];
}

Result<Value> sum(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const List list, elements_of(value, budget));
  const Key key{arguments.find(0, "attribute"), nullptr, true};
  const Value* start = arguments.find(1, "start");
  Value total = start != nullptr ? *start : Value(int64_t{0});
  if (total.string() != nullptr) return invalid_argument("texts are joined, not summed");
  for (const Value& element : list) {
    ASSIGN_OR_RETURN(const Value part, key.of(element, budget));
    ASSIGN_OR_RETURN(total, calculate("+", total, part, budget));
    RETURN_IF_ERROR(Budget::check_size(total));
  }
  return total;
}

Result<Value> groupby(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const List list, elements_of(value, budget));
  const Key exact{arguments.find(0, "attribute"), arguments.find(1, "default"), true};
  if (exact.attribute == nullptr) return invalid_argument("argument 'attribute' is missing");
  const Key key{exact.attribute, exact.otherwise, arguments.is_true(2, "case_sensitive")};
  ASSIGN_OR_RETURN(const List keys, keys_of(list, key, budget));
  ASSIGN_OR_RETURN(const auto order, sorted_order(keys, false, budget));
  List out;
  for (size_t i = 0; i < order.size();) {
    ASSIGN_OR_RETURN(const Value name, exact.of(list[order[i]], budget));
    List members;
    const Value& group = keys[order[i]];
    for (; i < order.size() && equal(keys[order[i]], group); ++i) members.push_back(list[order[i]]);
    out.emplace_back(List{name, Value(std::move(members))}, Sequence::kGroup);
  }
  return Value(std::move(out));
}

Result<Value> dictsort(const Value& value, const Arguments& arguments, Budget& budget) {
  if (value.map() == nullptr)
    return invalid_argument(fmt::format("a dict is needed, not {}", value.type_name()));
  ASSIGN_OR_RETURN(const Value view, call_method(value, "items", {}, budget));
  std::string by = "key";
  if (arguments.find(1, "by") != nullptr) {
    ASSIGN_OR_RETURN(by, arguments.text(1, "by"));
  }
  if (by != "key" && by != "value") return invalid_argument("argument 'by' must be key or value");
  const Value position(int64_t{by == "value"});
  const Key key{&position, nullptr, arguments.is_true(0, "case_sensitive")};
  ASSIGN_OR_RETURN(const List keys, keys_of(*view.list(), key, budget));
  ASSIGN_OR_RETURN(const auto order, sorted_order(keys, arguments.is_true(2, "reverse"), budget));
  List out;
  for (const size_t i : order) out.push_back((*view.list())[i]);
  return Value(std::move(out));
}

Result<int64_t> positive(const Arguments& arguments, const char* name) {
  ASSIGN_OR_RETURN(const int64_t count, arguments.integer_or(0, name, 0));
  if (count < 1) return invalid_argument(fmt::format("argument '{}' must be at least 1", name));
  if (count > 10'000) return resource_exhausted(fmt::format("argument '{}' is over 10000", name));
  return count;
}

Result<Value> batch(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const List list, elements_of(value, budget));
  ASSIGN_OR_RETURN(const int64_t size, positive(arguments, "linecount"));
  const Value* fill = arguments.find(1, "fill_with");
  List out;
  for (size_t i = 0; i < list.size(); i += static_cast<size_t>(size)) {
    const size_t end = std::min(list.size(), i + static_cast<size_t>(size));
    List row(list.begin() + static_cast<ptrdiff_t>(i), list.begin() + static_cast<ptrdiff_t>(end));
    if (fill != nullptr && !fill->is_none()) row.resize(static_cast<size_t>(size), *fill);
    RETURN_IF_ERROR(budget.bytes(row.size() * sizeof(Value)));
    out.emplace_back(std::move(row));
  }
  return iterate(std::move(out));
}

Result<Value> slice(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const List list, elements_of(value, budget));
  ASSIGN_OR_RETURN(const int64_t slices, positive(arguments, "slices"));
  const Value* fill = arguments.find(1, "fill_with");
  const size_t count = static_cast<size_t>(slices), each = list.size() / count, longer = list.size() % count;
  List out;
  for (size_t i = 0, at = 0; i < count; ++i) {
    const size_t size = each + (i < longer ? 1 : 0);
    List part(list.begin() + static_cast<ptrdiff_t>(at), list.begin() + static_cast<ptrdiff_t>(at + size));
    at += size;
    if (fill != nullptr && !fill->is_none() && i >= longer) part.push_back(*fill);
    RETURN_IF_ERROR(budget.bytes(part.size() * sizeof(Value)));
    out.emplace_back(std::move(part));
  }
  return iterate(std::move(out));
}

}  // namespace

const FilterTable& sequence_filters() {
  static const FilterTable table = {
      {"length", {length, {}}},
      {"count", {length, {}}},
      {"join", {join, {"d", "attribute"}}},
      {"first", {first, {}}},
      {"last", {last, {}}},
      {"list", {list_filter, {}}},
      {"reverse", {reverse, {}}},
      {"items", {items, {}}},
      {"map", {map_filter, {"*"}}},
      {"select", {select<true, false>, {"*"}}},
      {"reject", {select<false, false>, {"*"}}},
      {"selectattr", {select<true, true>, {"*"}}},
      {"rejectattr", {select<false, true>, {"*"}}},
      {"sort", {sort, {"reverse", "case_sensitive", "attribute"}}},
      {"unique", {unique, {"case_sensitive", "attribute"}}},
      {"min", {extreme<false>, {"case_sensitive", "attribute"}}},
      {"max", {extreme<true>, {"case_sensitive", "attribute"}}},
      {"sum", {sum, {"attribute", "start"}}},
      {"groupby", {groupby, {"attribute", "default", "case_sensitive"}}},
      {"dictsort", {dictsort, {"case_sensitive", "by", "reverse"}}},
      {"batch", {batch, {"linecount", "fill_with"}}},
      {"slice", {slice, {"slices", "fill_with"}}},
  };
  return table;
}

}  // namespace outrider::chat_template
