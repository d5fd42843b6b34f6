// + - * / // % ** on values. Integers do not grow beyond 64 bits: that is an error.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "text/chat_template/builtins.h"

namespace outrider::chat_template {
namespace {

Status out_of_range() { return invalid_argument("number out of range"); }

// Python rounds towards minus infinity.
Result<Value> divide_integers(const std::string& symbol, int64_t a, int64_t b) {
  if (b == 0) return invalid_argument("division by zero");
  if (symbol == "/") return Value(static_cast<double>(a) / static_cast<double>(b));
  if (a == INT64_MIN && b == -1) return out_of_range();
  const bool rounds_down = a % b != 0 && (a < 0) != (b < 0);
  if (symbol == "//") return Value(a / b - (rounds_down ? 1 : 0));
  return Value(a % b + (rounds_down ? b : 0));
}

Result<Value> power_of_integers(int64_t base, int64_t exponent) {
  if (exponent < 0 && base == 0) return invalid_argument("division by zero");
  if (exponent < 0) return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  if (exponent > 64 && base != 0 && base != 1 && base != -1) return out_of_range();
  int64_t out = 1;
  for (int64_t i = base == -1               ? exponent % 2
                   : base == 0 || base == 1 ? std::min<int64_t>(exponent, 1)
                                            : exponent;
       i > 0; --i)
    if (__builtin_mul_overflow(out, base, &out)) return out_of_range();
  return Value(out);
}

Result<Value> calculate_integers(const std::string& symbol, int64_t a, int64_t b) {
  int64_t out = 0;
  bool overflow = false;
  if (symbol == "+")
    overflow = __builtin_add_overflow(a, b, &out);
  else if (symbol == "-")
    overflow = __builtin_sub_overflow(a, b, &out);
  else if (symbol == "*")
    overflow = __builtin_mul_overflow(a, b, &out);
  else if (symbol == "**")
    return power_of_integers(a, b);
  else
    return divide_integers(symbol, a, b);
  if (overflow) return out_of_range();
  return Value(out);
}

Result<Value> calculate_floats(const std::string& symbol, double a, double b) {
  if (symbol == "+") return Value(a + b);
  if (symbol == "-") return Value(a - b);
  if (symbol == "*") return Value(a * b);
  if (symbol == "**") {
    const double power = std::pow(a, b);
    if (std::isnan(power) || (std::isinf(power) && std::isfinite(a) && std::isfinite(b)))
      return out_of_range();
    return Value(power);
  }
  if (b == 0) return invalid_argument("division by zero");
  if (symbol == "/") return Value(a / b);
  if (symbol == "//") return Value(std::floor(a / b));
  return Value(a - b * std::floor(a / b));
}

Result<Value> repeat(const std::string& text, int64_t times, Budget& budget) {
  if (times <= 0 || text.empty()) return Value(std::string());
  if (times > static_cast<int64_t>(Budget::kMaxWeight)) return budget.bytes(Budget::kMaxBytes + 1);
  RETURN_IF_ERROR(budget.bytes(text.size() * static_cast<size_t>(times)));
  std::string out;
  for (int64_t i = 0; i < times; ++i) out += text;
  return Value(std::move(out));
}

Result<Value> repeat(const Value& list, int64_t times, Budget& budget) {
  if (times > static_cast<int64_t>(Budget::kMaxWeight)) return budget.bytes(Budget::kMaxBytes + 1);
  List out;
  const size_t count = times > 0 ? static_cast<size_t>(times) : 0;
  RETURN_IF_ERROR(budget.bytes(list.list()->size() * count * sizeof(Value)));
  for (size_t i = 0; i < count; ++i) out.insert(out.end(), list.list()->begin(), list.list()->end());
  return Value(std::move(out), list.sequence());
}

bool is_list_or_tuple(const Value& value) {
  return value.list() != nullptr && value.sequence() != Sequence::kRange &&
         value.sequence() != Sequence::kView;
}

}  // namespace

std::optional<int64_t> as_integer(const Value& value) {
  if (const bool* b = value.as<bool>()) return *b ? 1 : 0;
  if (const int64_t* i = value.as<int64_t>()) return *i;
  return std::nullopt;
}

Result<Value> calculate(const std::string& symbol, const Value& left, const Value& right, Budget& budget) {
  if (symbol == "+" && left.string() != nullptr && right.string() != nullptr) {
    RETURN_IF_ERROR(budget.bytes(left.string()->size() + right.string()->size()));
    return Value(*left.string() + *right.string());
  }
  if (symbol == "%" && left.string() != nullptr) {
    const bool several = right.list() != nullptr && right.sequence() == Sequence::kTuple;
    ASSIGN_OR_RETURN(std::string text,
                     format_percent(*left.string(), several ? *right.list() : List{right}, budget));
    return Value(std::move(text));
  }
  if (symbol == "+" && is_list_or_tuple(left) && is_list_or_tuple(right) &&
      left.sequence() == right.sequence()) {
    RETURN_IF_ERROR(budget.bytes((left.list()->size() + right.list()->size()) * sizeof(Value)));
    List joined = *left.list();
    joined.insert(joined.end(), right.list()->begin(), right.list()->end());
    return Value(std::move(joined), left.sequence());
  }
  const auto a = as_integer(left), b = as_integer(right);
  if (symbol == "*" && left.string() != nullptr && b) return repeat(*left.string(), *b, budget);
  if (symbol == "*" && right.string() != nullptr && a) return repeat(*right.string(), *a, budget);
  if (symbol == "*" && is_list_or_tuple(left) && b) return repeat(left, *b, budget);
  if (symbol == "*" && is_list_or_tuple(right) && a) return repeat(right, *a, budget);
  if (a && b) return calculate_integers(symbol, *a, *b);
  const auto x = to_number(left), y = to_number(right);
  if (x.ok() && y.ok()) return calculate_floats(symbol, *x, *y);
  for (const Value* value : {&left, &right})
    if (value->is_undefined())
      return invalid_argument(fmt::format("'{}' is undefined", value->as<Undefined>()->name));
  return invalid_argument(
      fmt::format("{} {} {} is not possible", left.type_name(), symbol, right.type_name()));
}

}  // namespace outrider::chat_template
