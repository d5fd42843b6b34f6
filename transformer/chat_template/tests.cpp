// Tests: x is name(argument).
#include <algorithm>
#include <map>

#include "transformer/chat_template/builtins.h"

namespace outrider::chat_template {
namespace {

using Test = Result<bool> (*)(const Value&, const Arguments&, Budget&);

Result<Value> argument(const Arguments& arguments) {
  if (arguments.positional.empty()) return invalid_argument("an argument is needed");
  return arguments.positional[0];
}

Result<bool> is_equal(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const Value other, argument(arguments));
  RETURN_IF_ERROR(budget.work(value.weight()));
  return equal(value, other);
}
Result<bool> is_unequal(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const Value other, argument(arguments));
  RETURN_IF_ERROR(budget.work(value.weight()));
  return !equal(value, other);
}
Result<bool> is_in(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const Value container, argument(arguments));
  return contains(container, value, budget);
}

template <int kSign>  // kSign * compare() > 0
Result<bool> is_ordered(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const Value other, argument(arguments));
  RETURN_IF_ERROR(budget.work(value.weight()));
  ASSIGN_OR_RETURN(const int order, compare(value, other));
  return kSign * order > 0;
}

Result<bool> is_divisible(const Value& value, const Arguments& arguments, Budget&) {
  ASSIGN_OR_RETURN(const Value divisor, argument(arguments));
  const int64_t* a = value.as<int64_t>();
  const int64_t* b = divisor.as<int64_t>();
  if (a == nullptr || b == nullptr || *b == 0) return invalid_argument("integers are needed, and no 0");
  return *b == -1 || *a % *b == 0;
}

template <int kRemainder>
Result<bool> is_parity(const Value& value, const Arguments&, Budget&) {
  if (value.as<int64_t>() == nullptr) return invalid_argument("an integer is needed");
  return (*value.as<int64_t>() & 1) == kRemainder;
}

Result<bool> is_iterable(const Value& v, const Arguments&, Budget&) {
  return v.string() != nullptr || v.list() != nullptr || v.map() != nullptr || v.is_undefined();
}
Result<bool> is_number(const Value& v, const Arguments&, Budget&) {
  return v.as<int64_t>() != nullptr || v.as<double>() != nullptr || v.as<bool>() != nullptr;
}

const std::map<std::string, Test, std::less<>>& table_of_tests() {
  static const std::map<std::string, Test, std::less<>> table = {
      {"defined",
       [](const Value& v, const Arguments&, Budget&) -> Result<bool> { return !v.is_undefined(); }},
      {"undefined",
       [](const Value& v, const Arguments&, Budget&) -> Result<bool> { return v.is_undefined(); }},
      {"none", [](const Value& v, const Arguments&, Budget&) -> Result<bool> { return v.is_none(); }},
      {"string",
       [](const Value& v, const Arguments&, Budget&) -> Result<bool> { return v.string() != nullptr; }},
      {"mapping",
       [](const Value& v, const Arguments&, Budget&) -> Result<bool> { return v.map() != nullptr; }},
      {"sequence", is_iterable},
      {"iterable", is_iterable},
      {"number", is_number},
      {"integer",
       [](const Value& v, const Arguments&, Budget&) -> Result<bool> { return v.as<int64_t>() != nullptr; }},
      {"float",
       [](const Value& v, const Arguments&, Budget&) -> Result<bool> { return v.as<double>() != nullptr; }},
      {"boolean",
       [](const Value& v, const Arguments&, Budget&) -> Result<bool> { return v.as<bool>() != nullptr; }},
      {"true",
       [](const Value& v, const Arguments&, Budget&) -> Result<bool> {
         return v.as<bool>() && *v.as<bool>();
       }},
      {"false",
       [](const Value& v, const Arguments&, Budget&) -> Result<bool> {
         return v.as<bool>() && !*v.as<bool>();
       }},
      {"equalto", is_equal},
      {"eq", is_equal},
      {"ne", is_unequal},
      {"in", is_in},
      {"gt", is_ordered<1>},
      {"greaterthan", is_ordered<1>},
      {"lt", is_ordered<-1>},
      {"lessthan", is_ordered<-1>},
      {"odd", is_parity<1>},
      {"even", is_parity<0>},
      {"divisibleby", is_divisible},
  };
  return table;
}

}  // namespace

Result<bool> apply_test(const std::string& name, const Value& operand, const Arguments& arguments,
                        Budget& budget) {
  const auto test = table_of_tests().find(name);
  if (test == table_of_tests().end()) return unsupported(fmt::format("test '{}' is not supported", name));
  auto result = test->second(operand, arguments, budget);
  if (!result.ok()) return result.status().in("test '" + name + "'");
  return result;
}

}  // namespace outrider::chat_template
