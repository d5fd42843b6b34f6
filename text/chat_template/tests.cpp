// Tests: x is name(argument).
#include <algorithm>
#include <map>

#include "text/chat_template/builtins.h"

namespace outrider::chat_template {
namespace {

using Test = Result<bool> (*)(const Value&, const Arguments&, Budget&);

Result<Value> argument(const Arguments& arguments) {
  if (arguments.positional.size() != 1) return invalid_argument("takes one argument");
  return arguments.positional[0];
}

template <bool kEqual>
Result<bool> is_equal(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const Value other, argument(arguments));
  RETURN_IF_ERROR(budget.work(value.weight()));
  return equal(value, other) == kEqual;
}
Result<bool> is_in(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const Value container, argument(arguments));
  return contains(container, value, budget);
}

template <int kSign, bool kOrEqual>  // kSign * compare() > 0
Result<bool> is_ordered(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const Value other, argument(arguments));
  RETURN_IF_ERROR(budget.work(value.weight()));
  ASSIGN_OR_RETURN(const int order, compare(value, other));
  return kSign * order > 0 || (kOrEqual && order == 0);
}

Result<bool> leaves(const Value& value, const Value& divisor, int64_t remainder, Budget& budget) {
  ASSIGN_OR_RETURN(const Value rest, calculate("%", value, divisor, budget));
  return equal(rest, Value(remainder));
}

Result<bool> is_divisible(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const Value divisor, argument(arguments));
  return leaves(value, divisor, 0, budget);
}

template <int kRemainder>
Result<bool> is_parity(const Value& value, const Arguments&, Budget& budget) {
  return leaves(value, Value(int64_t{2}), kRemainder, budget);
}

Result<bool> is_iterable(const Value& v, const Arguments&, Budget&) {
  return v.string() != nullptr || v.list() != nullptr || v.map() != nullptr || v.iterator() != nullptr ||
         v.is_undefined() || v.as<Loop>() != nullptr;
}
Result<bool> is_sequence(const Value& v, const Arguments&, Budget&) {
  return v.string() != nullptr || (v.list() != nullptr && v.sequence() != Sequence::kView) ||
         v.map() != nullptr || v.is_undefined();
}
Result<bool> is_number(const Value& v, const Arguments&, Budget&) {
  return v.is_integer() || v.as<double>() != nullptr || v.as<bool>() != nullptr;
}

// One object in Python: of small values the equal ones of one type.
Result<bool> is_same(const Value& value, const Arguments& arguments, Budget&) {
  ASSIGN_OR_RETURN(const Value other, argument(arguments));
  if (value.list() != nullptr || value.map() != nullptr)
    return value.list() == other.list() && value.map() == other.map();
  return std::string_view(value.type_name()) == other.type_name() && equal(value, other);
}

template <bool kUpper>
Result<bool> is_case(const Value& value, const Arguments&, Budget& budget) {
  ASSIGN_OR_RETURN(const std::string text, to_text(value));
  ASSIGN_OR_RETURN(const Value answer, string_method(text, kUpper ? "isupper" : "islower", {}, budget));
  return answer.is_true();
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
      {"sequence", is_sequence},
      {"iterable", is_iterable},
      {"number", is_number},
      {"integer", [](const Value& v, const Arguments&, Budget&) -> Result<bool> { return v.is_integer(); }},
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
      {"callable",
       [](const Value& v, const Arguments&, Budget&) -> Result<bool> {
         return v.is_callable() || v.is_undefined();
       }},
      {"escaped", [](const Value&, const Arguments&, Budget&) -> Result<bool> { return false; }},
      {"filter",
       [](const Value& v, const Arguments&, Budget&) -> Result<bool> {
         return v.string() != nullptr && is_filter(*v.string());
       }},
      {"test",
       [](const Value& v, const Arguments&, Budget&) -> Result<bool> {
         return v.string() != nullptr && is_test(*v.string());
       }},
      {"sameas", is_same},
      {"upper", is_case<true>},
      {"lower", is_case<false>},
      {"equalto", is_equal<true>},
      {"eq", is_equal<true>},
      {"==", is_equal<true>},
      {"ne", is_equal<false>},
      {"!=", is_equal<false>},
      {"in", is_in},
      {"gt", is_ordered<1, false>},
      {"greaterthan", is_ordered<1, false>},
      {">", is_ordered<1, false>},
      {"ge", is_ordered<1, true>},
      {">=", is_ordered<1, true>},
      {"lt", is_ordered<-1, false>},
      {"lessthan", is_ordered<-1, false>},
      {"<", is_ordered<-1, false>},
      {"le", is_ordered<-1, true>},
      {"<=", is_ordered<-1, true>},
      {"odd", is_parity<1>},
      {"even", is_parity<0>},
      {"divisibleby", is_divisible},
  };
  return table;
}

}  // namespace

bool is_test(const std::string& name) { return table_of_tests().contains(name); }

Result<bool> apply_test(const std::string& name, const Value& operand, const Arguments& arguments,
                        Budget& budget) {
  const auto test = table_of_tests().find(name);
  if (test == table_of_tests().end()) return unsupported(fmt::format("test '{}' is not supported", name));
  auto result = test->second(operand, arguments, budget);
  if (!result.ok()) return result.status().in("test '" + name + "'");
  return result;
}

}  // namespace outrider::chat_template
