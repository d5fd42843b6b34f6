// Every field of a message with hostile values, one at a time. The fields are found by the functions that put
// messages on the wire (comm/wire_fields.h), so one that is added there is tried as well, and one of a type
// without hostile values does not compile.
#pragma once

#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <type_traits>

#include "comm/wire_fields.h"

namespace outrider::testing {

// An archive that changes one field of what is serialised with it: field number `field`, to its hostile value
// number `value`.
class HostileArchive {
 public:
  HostileArchive(size_t field, size_t value) : field_(field), value_(value) {}
  bool reached() const { return fields_ > field_; }  // there is such a field
  bool changed() const { return changed_; }          // and such a value

  template <class... Fields>
  void operator()(Fields&&... fields) {
    (visit(fields), ...);
  }
  const WireLimits& limits() const { return limits_; }
  void require(bool, const char*) {}
  void skip_rest() {}

 private:
  template <class T>
  void leaf(T& field, const std::vector<T>& hostile) {
    if (fields_++ != field_ || value_ >= hostile.size()) return;
    field = hostile[value_];
    changed_ = true;
  }

  template <std::integral T>
  void visit(T& field) {
    using Limits = std::numeric_limits<T>;
    if constexpr (std::same_as<T, bool>) {
      if (fields_++ == field_ && value_ == 0) field = !field, changed_ = true;
    } else {
      const auto near = static_cast<std::make_unsigned_t<T>>(field);
      leaf(field, {Limits::min(), Limits::max(), static_cast<T>(-1), T(0), T(1), static_cast<T>(near + 1),
                   static_cast<T>(near - 1), static_cast<T>(Limits::max() - 1), static_cast<T>(1 << 20),
                   static_cast<T>(Limits::max() / 2)});
    }
  }
  void visit(float& field) {
    using Limits = std::numeric_limits<float>;
    leaf(field, {-1, 0, 2, 1e-30f, 1e30f, Limits::denorm_min(), Limits::max(), -Limits::max(),
                 Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()});
  }
  template <class Tag, class Rep>
  void visit(StrongInt<Tag, Rep>& field) {
    Rep value = field.value();
    visit(value);
    field = StrongInt<Tag, Rep>(value);
  }
  template <class Enum>
  void visit(EnumField<Enum>& field) {
    std::vector<Enum> all;
    for (int i = 0; i <= static_cast<int>(field.last); ++i) all.push_back(static_cast<Enum>(i));
    leaf(field.value, all);
  }
  void visit(FiniteField& field) { visit(field.value); }
  void visit(TextField& field) {
    Capped capped{field.text, limits_.string_bytes};
    visit(capped);
  }
  void visit(Capped<std::string>& field) {
    leaf(field.values, {"", std::string(field.cap, '\xff'), std::string("\0\x1b[2J%n%s", 9), "tcp://",
                        "ipc://x", "tcp://127.0.0.1:1", "inproc://x"});
  }
  // Mutates the length of the list, then its first and its last element.
  template <class T>
  void visit(Capped<std::vector<T>>& field) {
    std::vector<T>& list = field.values;
    std::vector<T> shorter(list.begin(), list.empty() ? list.end() : list.end() - 1), longer = list;
    longer.push_back(list.empty() ? T{} : list.back());
    std::vector<T> huge(std::min<uint64_t>(field.cap, 5000), list.empty() ? T{} : list.back());
    leaf(list, {{}, shorter, longer, huge});
    if (list.size() > 1) visit(list.front());
    if (!list.empty()) visit(list.back());
  }
  void visit(QRow& row) {
    operator()(Capped{row.ids, 5000}, Capped{row.weights, 5000}, row.sum, row.rest, row.id_end);
  }
  void visit(HiddenRow& row) { operator()(row.scale, row.max, Capped{row.codes, 5000}); }
  void visit(HiddenRowsField& field) { operator()(Capped{field.rows, 5000}); }
  // Parents or a path: too many nodes, none, and those that are no tree.
  void visit(PerTokenField<int32_t>& field) {
    const size_t count = std::min<size_t>(field.count, 5000);
    std::vector<int32_t> rising(count), falling(count);
    std::iota(rising.begin(), rising.end(), 0);
    std::iota(falling.rbegin(), falling.rend(), 0);
    leaf(field.values, {std::vector<int32_t>(count, kTreeRoot), std::vector<int32_t>(count, 0),
                        std::vector<int32_t>(count, std::numeric_limits<int32_t>::max()), rising, falling});
    operator()(Capped{field.values, 5000});
  }
  // Margins of a draft.
  void visit(PerTokenField<float>& field) {
    const size_t count = std::min<size_t>(field.count, 5000);
    constexpr float kMost = std::numeric_limits<float>::max();
    leaf(field.values, {std::vector<float>(count, kMost), std::vector<float>(count, -kMost)});
    operator()(Capped{field.values, 5000});
  }
  void visit(TreeShapeField& field) {
    TreeShape& shape = field.shape;
    operator()(Capped{shape.widths, 5000}, Capped{shape.parents, 5000}, shape.nodes, shape.node_price,
               shape.pass_price);
  }
  template <class T>
  requires std::is_class_v<T>
  void visit(T& body) { serialize(*this, body); }

  const size_t field_, value_;
  size_t fields_ = 0;
  bool changed_ = false;
  const WireLimits limits_;
};

// Calls `use` with each lie that has a form on the wire, as it arrives there, and what to call it. Returns
// how many.
template <class Body>
int for_each_lie(const Body& honest,
                 const std::function<void(const Message&, const std::string& what)>& use) {
  int lies = 0;
  for (size_t field = 0, value = 0;; ++value) {
    Body body = honest;
    HostileArchive archive(field, value);
    archive(body);
    if (!archive.reached()) return lies;
    if (!archive.changed()) {
      ++field;
      value = static_cast<size_t>(-1);
      continue;
    }
    const auto frame = encode(body, {});
    if (!frame.ok()) continue;  // decode() would refuse it: tests/comm/codec_test.cpp
    auto decoded = decode(*frame, 0);
    if (!decoded.ok()) continue;
    ++lies;
    use(decoded->message,
        fmt::format("{}: field {}, hostile value {}", kMessageNames[decoded->message.index()], field, value));
  }
}

}  // namespace outrider::testing
