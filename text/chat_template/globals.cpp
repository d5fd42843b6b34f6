// The functions that every template can call.
#include <algorithm>
#include <ctime>

#include "text/chat_template/builtins.h"

namespace outrider::chat_template {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as Jinja's sandbox
constexpr size_t kMaxFormat = 1024;

Result<Value> range(const Arguments& given, Budget& budget) {
  int64_t bounds[3] = {0, 0, 1};
  if (given.positional.empty() || given.positional.size() > 3 || !given.keywords.empty())
    return invalid_argument("range() takes 1 to 3 integers");
  for (size_t i = 0; i < given.positional.size(); ++i) {
    ASSIGN_OR_RETURN(bounds[i], given.integer_or(i, "", 0));
  }
  if (given.positional.size() == 1) std::swap(bounds[0], bounds[1]);
  const auto [start, stop, step] = bounds;
  if (step == 0) return invalid_argument("range() with step 0");
  if (std::max({std::abs(start / 2), std::abs(stop / 2), std::abs(step / 2)}) > INT64_MAX / 8)
    return resource_exhausted("range() of numbers that large");
  if ((step > 0 ? stop - start : start - stop) / std::abs(step) >= kMaxRange)
    return resource_exhausted(fmt::format("range() of more than {} numbers", kMaxRange));
  List out;
  for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) out.emplace_back(i);
  RETURN_IF_ERROR(budget.bytes(out.size() * sizeof(Value)));
  return Value(std::move(out), Sequence::kRange);
}

// Expands the directives that Python's datetime expands itself, for a time without a zone: %f gives
// microseconds, %z and %Z give nothing.
std::string without_python_directives(const std::string& format, int64_t microseconds) {
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    const std::string_view rest = std::string_view(format).substr(i);
    if (rest.starts_with("%f")) {
      out += fmt::format("{:06}", microseconds);
      ++i;
    } else if (rest.starts_with("%z") || rest.starts_with("%Z")) {
      ++i;
    } else if (rest[0] == '%' && rest.size() > 1) {
      out += rest.substr(0, 2);
      ++i;
    } else {
      out += rest[0];
    }
  }
  return out;
}

Result<Value> strftime_now(const Arguments& given, std::chrono::system_clock::time_point now,
                           Budget& budget) {
  constexpr std::string_view kParameters[] = {"format"};
  RETURN_IF_ERROR(given.check(kParameters));
  ASSIGN_OR_RETURN(std::string format, given.text(0, "format"));
  if (format.size() > kMaxFormat)
    return unsupported(fmt::format("a format of more than {} bytes", kMaxFormat));
  const auto microseconds = std::chrono::floor<std::chrono::microseconds>(now.time_since_epoch()).count();
  const auto second = std::chrono::floor<std::chrono::seconds>(now);
  format = without_python_directives(format, microseconds - 1'000'000 * second.time_since_epoch().count());
  const std::time_t time = std::chrono::system_clock::to_time_t(second);
  std::tm local{};
  localtime_r(&time, &local);
  local.tm_isdst = -1;
  if (format.empty()) return Value(std::string());
  // Python too takes what does not fit 256 times the format for an empty text.
  std::string out(std::max<size_t>(1024, 256 * format.size()), '\0');
  RETURN_IF_ERROR(budget.bytes(out.size()));
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &local));
  return Value(std::move(out));
}

}  // namespace

Result<Map> dict_of(const Arguments& given, Budget& budget) {
  if (given.positional.size() > 1) return invalid_argument("dict() takes one argument and keywords");
  if (given.keywords.size() > 256) return resource_exhausted("more than 256 arguments");
  Map out;
  if (!given.positional.empty() && given.positional[0].map() != nullptr) {
    out = *given.positional[0].map();
  } else if (!given.positional.empty()) {
    ASSIGN_OR_RETURN(const List pairs, elements_of(given.positional[0], budget));
    if (pairs.size() > 256) return resource_exhausted("a dict of more than 256 entries");
    for (const Value& pair : pairs) {
      ASSIGN_OR_RETURN(const List two, elements_of(pair, budget));
      if (two.size() != 2) return invalid_argument("dict() needs pairs of a key and a value");
      RETURN_IF_ERROR(check_key(two[0]));
      out.set_key(two[0], two[1]);
    }
  }
  for (const auto& [name, value] : given.keywords) out.set(name, value);
  RETURN_IF_ERROR(budget.bytes(2 * out.entries.size() * sizeof(Value) + sizeof(Map)));
  return out;
}

Result<Value> call_function(Builtin function, const Arguments& given,
                            std::chrono::system_clock::time_point now, Budget& budget) {
  if (function == Builtin::kRange) return range(given, budget);
  if (function == Builtin::kStrftimeNow) return strftime_now(given, now, budget);
  if (function == Builtin::kDict) {
    ASSIGN_OR_RETURN(Map map, dict_of(given, budget));
    return Value(std::move(map));
  }
  const Value* message = given.find(0, "message");
  if (message == nullptr) return invalid_argument("argument 'message' is missing");
  ASSIGN_OR_RETURN(const std::string text, to_text(*message));
  return invalid_argument("the chat template refuses: " + text);
}

}  // namespace outrider::chat_template
