// Values of template expressions. Strings and containers are shared and constant; namespaces belong to one
// rendering.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

namespace outrider::chat_template {

class Value;
struct Macro;

using List = std::vector<Value>;

// Names with values in the order of insertion: variables of a scope, fields of a namespace.
struct Fields {
  std::vector<std::pair<std::string, Value>> entries;
  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

// A dict: keys of any kind that Python can hash, in the order of insertion. 1, 1.0 and true are one key.
struct Map {
  std::vector<std::pair<Value, Value>> entries;
  const Value* find(std::string_view key) const;
  const Value* find_key(const Value& key) const;
  void set(std::string_view key, Value value);
  void set_key(Value key, Value value);
};

struct Undefined {
  std::string name;  // for messages
};
struct None {};
// Python's kinds of sequences. They compare and print differently, and a view (dict.items()) has no indices.
enum class Sequence : uint8_t { kList, kTuple, kGroup, kRange, kView };  // kGroup: a tuple of groupby()
// Result of select(), map() and the like: true even if empty, without length or indices, and consumed by one
// pass.
struct Iterator {
  List items;
  size_t next = 0;
};
// The variable `loop` inside of a for statement.
struct Loop {
  std::shared_ptr<const List> items;
  size_t index0;
};
// A macro, with the variables around its definition where that is not the whole template.
struct MacroRef {
  const Macro* macro;
  std::shared_ptr<const Fields> closure;
};
// object.name, where the name is a method's.
struct Method {
  std::shared_ptr<const Value> object;
  std::string name;
};
enum class Builtin { kNamespace, kRange, kRaiseException, kDict, kStrftimeNow };

class Value {
 public:
  using Text = std::shared_ptr<const std::string>;
  using ListRef = std::shared_ptr<const List>;
  using MapRef = std::shared_ptr<const Map>;
  using IteratorRef = std::shared_ptr<Iterator>;
  // uint64_t: a whole number from 2^63 on, which comes from JSON, is printed and compared, and not computed
  // with.
  using State = std::variant<Undefined, None, bool, int64_t, uint64_t, double, Text, ListRef, MapRef, Fields*,
                             IteratorRef, Loop, MacroRef, Method, Builtin>;

  Value() : state_(Undefined{}) {}
  Value(Undefined u) : state_(std::move(u)) {}
  Value(None n) : state_(n) {}
  explicit Value(bool b) : state_(b) {}
  Value(int64_t i) : state_(i) {}
  explicit Value(uint64_t i) {
    if (i > uint64_t{INT64_MAX})
      state_ = i;
    else
      state_ = static_cast<int64_t>(i);
  }
  Value(double d) : state_(d) {}
  Value(std::string s);
  Value(List list, Sequence kind = Sequence::kList);
  Value(Map map);
  Value(Iterator iterator);
  Value(Loop loop) : state_(std::move(loop)) {}
  Value(MacroRef macro) : state_(std::move(macro)) {}
  Value(Method method) : state_(std::move(method)) {}
  Value(Builtin builtin) : state_(builtin) {}
  static Value of_namespace(Fields* fields) { return Value(State(fields)); }

  template <class T>
  const T* as() const {
    return std::get_if<T>(&state_);
  }
  const std::string* string() const { return as<Text>() ? as<Text>()->get() : nullptr; }
  const List* list() const { return as<ListRef>() ? as<ListRef>()->get() : nullptr; }  // of any Sequence
  const Map* map() const { return as<MapRef>() ? as<MapRef>()->get() : nullptr; }
  Iterator* iterator() const { return as<IteratorRef>() ? as<IteratorRef>()->get() : nullptr; }
  const Fields* fields() const { return as<Fields*>() ? *as<Fields*>() : nullptr; }  // of a namespace
  Sequence sequence() const { return sequence_; }
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }
  bool is_callable() const;
  bool is_integer() const { return as<int64_t>() || as<uint64_t>(); }

  bool is_true() const;
  const char* type_name() const;  // Python's
  // How deep containers nest, and about how many bytes a walk over the value sees, shared parts counted each
  // time. Both are bounded when a value is made, so that walks are.
  int depth() const { return depth_; }
  size_t weight() const { return weight_; }

 private:
  static constexpr size_t kOwnWeight = 16;
  explicit Value(State state) : state_(std::move(state)) {}
  void weigh(const List& list);
  State state_;
  Sequence sequence_ = Sequence::kList;
  int depth_ = 0;
  size_t weight_ = kOwnWeight;
};

bool equal(const Value& a, const Value& b);
// "a" < "b", 1 < 2.5, [1] < [2]; an error for other types. Negative, 0 or positive.
Result<int> compare(const Value& a, const Value& b);
Status check_key(const Value& key);  // that it can be a dict's
// Python's str(). What prints an address there, functions and iterators, is refused.
Result<std::string> to_text(const Value& value);
// The longest text that is made of a container, in bytes.
constexpr size_t kMaxJsonBytes = 4 << 20;
// json.dumps(value, ...).
struct JsonForm {
  std::string indent = {};  // of one level
  bool lines = false;       // each element on a line of its own
  std::string item_separator = ", ", key_separator = ": ";
  bool sort_keys = false, ensure_ascii = false;
};
Result<std::string> to_json(const Value& value, const JsonForm& form);
Result<double> to_number(const Value& value);  // of bool, int, float

}  // namespace outrider::chat_template
