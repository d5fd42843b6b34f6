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

// String keys in the order of insertion, as in Python.
struct Map {
  std::vector<std::pair<std::string, Value>> entries;
  const Value* find(std::string_view key) const;
  void set(std::string_view key, Value value);
};

struct Undefined {
  std::string name;  // for messages
};
struct None {};
// What `loop` is inside of a for.
struct Loop {
  std::shared_ptr<const List> items;
  size_t index0;
};
enum class Builtin { kNamespace, kRange, kRaiseException, kDict };

class Value {
 public:
  using Text = std::shared_ptr<const std::string>;
  using ListRef = std::shared_ptr<const List>;
  using MapRef = std::shared_ptr<const Map>;
  using State = std::variant<Undefined, None, bool, int64_t, double, Text, ListRef, MapRef, Map*, Loop,
                             const Macro*, Builtin>;

  Value() : state_(Undefined{}) {}
  Value(Undefined u) : state_(std::move(u)) {}
  Value(None n) : state_(n) {}
  explicit Value(bool b) : state_(b) {}
  Value(int64_t i) : state_(i) {}
  Value(double d) : state_(d) {}
  Value(std::string s);
  Value(List list);
  Value(Map map);
  Value(Loop loop) : state_(std::move(loop)) {}
  Value(const Macro* macro) : state_(macro) {}
  Value(Builtin builtin) : state_(builtin) {}
  static Value of_namespace(Map* map) { return Value(State(map)); }

  template <class T>
  const T* as() const {
    return std::get_if<T>(&state_);
  }
  const std::string* string() const { return as<Text>() ? as<Text>()->get() : nullptr; }
  const List* list() const { return as<ListRef>() ? as<ListRef>()->get() : nullptr; }
  const Map* map() const { return as<MapRef>() ? as<MapRef>()->get() : nullptr; }
  const Map* fields() const;  // of a map or a namespace
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }

  bool is_true() const;
  const char* type_name() const;  // Python's
  // How deep containers nest, and about how many bytes a walk over the value sees, shared parts counted each
  // time. Both are bounded when a value is made, so that walks are.
  int depth() const { return depth_; }
  size_t weight() const { return weight_; }

 private:
  static constexpr size_t kOwnWeight = 16;
  explicit Value(State state) : state_(std::move(state)) {}
  State state_;
  int depth_ = 0;
  size_t weight_ = kOwnWeight;
};

bool equal(const Value& a, const Value& b);
// "a" < "b", 1 < 2.5; an error for other types. Negative, 0 or positive.
Result<int> compare(const Value& a, const Value& b);
// Python's str(). Containers are refused: nothing that ends in a prompt prints them.
Result<std::string> to_text(const Value& value);
// json.dumps(value, ensure_ascii=False); indent < 0: on one line. At most kMaxJsonBytes.
constexpr size_t kMaxJsonBytes = 4 << 20;
Result<std::string> to_json(const Value& value, int indent);
Result<double> to_number(const Value& value);  // of bool, int, float

}  // namespace outrider::chat_template
