// The functions of the template language: filters, tests and methods. Pure: values in, value out. Errors have
// no line.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/chat_template/value.h"

namespace outrider::chat_template {

// Work and memory one rendering may use, whatever the template does.
class Budget {
 public:
  static constexpr uint64_t kMaxSteps = 1'000'000;
  static constexpr uint64_t kWorkPerStep = 4096;
  static constexpr uint64_t kMaxBytes = 128u << 20;  // of all intermediate values together
  static constexpr size_t kMaxWeight = 16u << 20;    // of one value
  static constexpr int kMaxDepth = 64;               // of one value

  Status step() { return work(kWorkPerStep); }
  Status work(uint64_t bytes);  // that are looked at
  Status bytes(size_t count);   // that are made
  Status search(size_t text, size_t part) { return work(uint64_t{text} * (part + 1)); }
  static Status check_size(const Value& value);

 private:
  uint64_t work_ = 0;
  uint64_t bytes_ = 0;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;

  size_t count() const { return positional.size() + keywords.size(); }
  // An error if there are more arguments than `names`, or a keyword that is not in `names`.
  Status check(std::span<const std::string_view> names) const;
  // By position or, if given there instead, by keyword; null if absent.
  const Value* find(size_t position, std::string_view keyword) const;
  Result<std::string> text(size_t position,
                           std::string_view keyword) const;  // an error if absent or no string
  Result<int64_t> integer_or(size_t position, std::string_view keyword, int64_t if_absent) const;
  bool is_true(size_t position, std::string_view keyword) const;  // given, and true
};

Result<Value> apply_filter(const std::string& name, const Value& operand, const Arguments& arguments,
                           Budget& budget);
Result<bool> apply_test(const std::string& name, const Value& operand, const Arguments& arguments,
                        Budget& budget);
Result<Value> call_method(const Value& object, const std::string& name, const Arguments& arguments,
                          Budget& budget);

// Elements of a list, keys of a map, characters of a string; nothing of undefined.
Result<List> elements_of(const Value& value, Budget& budget);
Result<bool> contains(const Value& container, const Value& element, Budget& budget);
// Jinja's object.name: a method or field, else the dict's entry under that name, else undefined.
Value attribute_of(const Value& object, const std::string& name);
Value python_attribute(const Value& object, const std::string& name);  // a method or field only
bool has_method(const Value& object, const std::string& name);
bool hides_method(const Value& object, const std::string& name);  // one that would change the object
// object[key]: what a dict or list has there, else as python_attribute().
Result<Value> item_of(const Value& object, const Value& key, Budget& budget);
// object[start:stop:step] with null for what is left out.
Result<Value> slice_of(const Value& object, const Value* start, const Value* stop, const Value* step,
                       Budget& budget);
Result<int64_t> length_of(const Value& value);
std::optional<int64_t> as_integer(const Value& value);  // of int and bool
// left + right and the like, as in Python.
Result<Value> calculate(const std::string& symbol, const Value& left, const Value& right, Budget& budget);
// range(), dict(), raise_exception() and strftime_now().
Result<Value> call_function(Builtin function, const Arguments& arguments,
                            std::chrono::system_clock::time_point now, Budget& budget);
Result<Map> dict_of(const Arguments& arguments, Budget& budget);

struct Filter {
  Result<Value> (*function)(const Value&, const Arguments&, Budget&);
  std::vector<std::string_view> parameters;  // Jinja's names; "*" is any number
};
using FilterTable = std::map<std::string, Filter, std::less<>>;
const FilterTable& text_filters();
const FilterTable& sequence_filters();
bool is_filter(const std::string& name);
bool is_test(const std::string& name);

// Python's str methods; the characters are codepoints.
constexpr size_t kMaxStripSet = 256;  // bytes
bool is_python_space(char32_t c);
List split_lines(const std::string& text);  // without their ends
std::string strip(std::string_view text, const std::string* characters, bool left, bool right);
std::string change_case(std::string_view text, bool upper);
std::string capitalize(std::string_view text);
Result<Value> string_method(const std::string& text, const std::string& name, const Arguments& arguments,
                            Budget& budget);
// "%s and %5.2f" % (a, b) and "{} and {name}".format(...).
Result<std::string> format_percent(const std::string& form, const List& values, Budget& budget);
Result<std::string> format_braces(const std::string& form, const Arguments& arguments, Budget& budget);
Result<std::string> replace(const std::string& text, const std::string& from, const std::string& to,
                            int64_t count, Budget& budget);

}  // namespace outrider::chat_template
