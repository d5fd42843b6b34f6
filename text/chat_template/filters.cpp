// Filters of texts and numbers: x|name(arguments).
#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/utf8.h"
#include "text/chat_template/builtins.h"

namespace outrider::chat_template {
namespace {

constexpr int64_t kMaxPadding = 4096;

Result<std::string> text_of(const Value& value, Budget& budget) {
  ASSIGN_OR_RETURN(std::string text, to_text(value));
  RETURN_IF_ERROR(budget.bytes(text.size()));
  return text;
}

// The str method of the same name.
template <const char* kMethod>
Result<Value> as_method(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const std::string text, text_of(value, budget));
  return string_method(text, kMethod, arguments, budget);
}
constexpr char kStrip[] = "strip", kUpper[] = "upper", kLower[] = "lower", kCapitalize[] = "capitalize";

Result<Value> replace_filter(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const std::string text, text_of(value, budget));
  const Value *from = arguments.find(0, "old"), *to = arguments.find(1, "new"),
              *count = arguments.find(2, "count");
  if (from == nullptr || to == nullptr) return invalid_argument("arguments 'old' and 'new' are needed");
  ASSIGN_OR_RETURN(const std::string old_text, to_text(*from));
  ASSIGN_OR_RETURN(const std::string new_text, to_text(*to));
  const bool all = count == nullptr || count->is_none();
  int64_t times = -1;
  if (!all) {
    ASSIGN_OR_RETURN(times, arguments.integer_or(2, "count", -1));
  }
  ASSIGN_OR_RETURN(std::string out, replace(text, old_text, new_text, times, budget));
  return Value(std::move(out));
}

Result<Value> string_filter(const Value& value, const Arguments&, Budget& budget) {
  ASSIGN_OR_RETURN(std::string text, text_of(value, budget));
  return Value(std::move(text));
}

// Words begin after blanks, "-", "(", "{", "[" and "<".
Result<Value> title(const Value& value, const Arguments&, Budget& budget) {
  ASSIGN_OR_RETURN(const std::string text, text_of(value, budget));
  std::string out;
  bool begins = true;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_codepoint(text, at);
    append_utf8(out, begins ? to_upper(c) : to_lower(c));
    begins = is_python_space(c) ||
             (c < 0x80 && std::string_view("-({[<").find(static_cast<char>(c)) != std::string_view::npos);
  }
  return Value(std::move(out));
}

Result<Value> indent(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(std::string text, text_of(value, budget));
  std::string margin;
  const Value* width = arguments.find(0, "width");
  if (width != nullptr && width->string() != nullptr) {
    margin = *width->string();
  } else {
    ASSIGN_OR_RETURN(const int64_t blanks, arguments.integer_or(0, "width", 4));
    if (blanks > kMaxPadding) return unsupported("an indent that wide");
    margin.assign(static_cast<size_t>(std::max<int64_t>(blanks, 0)), ' ');
  }
  const bool blank_lines = arguments.is_true(2, "blank");
  std::string out;
  if (arguments.is_true(1, "first")) out = margin;
  text += '\n';  // as Jinja, so that a last line of nothing counts
  List lines = split_lines(text);
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = *lines[i].string();
    if (i > 0) out += '\n';
    if (i > 0 && (blank_lines || !line.empty())) out += margin;
    RETURN_IF_ERROR(budget.bytes(line.size() + margin.size()));
    out += line;
  }
  return Value(std::move(out));
}

Result<Value> center(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const std::string text, text_of(value, budget));
  ASSIGN_OR_RETURN(const int64_t width, arguments.integer_or(0, "width", 80));
  return string_method(text, "center", {.positional = {Value(width)}, .keywords = {}}, budget);
}

Result<Value> wordcount(const Value& value, const Arguments&, Budget& budget) {
  ASSIGN_OR_RETURN(const std::string text, text_of(value, budget));
  int64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_codepoint(text, at);
    const bool is_word = is_word_character(c) && (is_letter(c) || is_numeric(c) || c == '_');
    words += is_word && !inside ? 1 : 0;
    inside = is_word;
  }
  return Value(words);
}

Result<Value> format(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const std::string form, text_of(value, budget));
  if (!arguments.keywords.empty()) return unsupported("format by names");
  ASSIGN_OR_RETURN(std::string out, format_percent(form, arguments.positional, budget));
  return Value(std::move(out));
}

Result<Value> json(const Value& value, const Arguments& arguments, Budget& budget) {
  JsonForm form{.ensure_ascii = arguments.is_true(0, "ensure_ascii")};
  const Value *indent = arguments.find(1, "indent"), *separators = arguments.find(2, "separators");
  if (indent != nullptr && !indent->is_none()) {
    form.lines = true;
    form.item_separator.assign(1, ',');
    if (indent->string() != nullptr) {
      form.indent = *indent->string();
    } else {
      ASSIGN_OR_RETURN(const int64_t blanks, arguments.integer_or(1, "indent", 0));
      form.indent.assign(static_cast<size_t>(std::clamp<int64_t>(blanks, 0, 17)), ' ');
    }
    if (form.indent.size() > 16) return unsupported("tojson with an indent over 16");
  }
  if (separators != nullptr && !separators->is_none()) {
    const List* two = separators->list();
    if (two == nullptr || two->size() != 2 || (*two)[0].string() == nullptr || (*two)[1].string() == nullptr)
      return invalid_argument("separators must be two texts");
    form.item_separator = *(*two)[0].string();
    form.key_separator = *(*two)[1].string();
    if (form.item_separator.size() + form.key_separator.size() > 16)
      return unsupported("separators that long");
  }
  form.sort_keys = arguments.is_true(3, "sort_keys");
  ASSIGN_OR_RETURN(std::string text, to_json(value, form));
  RETURN_IF_ERROR(budget.bytes(text.size()));
  return Value(std::move(text));
}

Result<Value> fallback(const Value& value, const Arguments& arguments, Budget&) {
  if (!value.is_undefined() && !(arguments.is_true(1, "boolean") && !value.is_true())) return value;
  const Value* other = arguments.find(0, "default_value");
  return other != nullptr ? *other : Value(std::string());
}

Status no_number(const Value& value) {
  if (!value.is_undefined()) return {};
  return invalid_argument(fmt::format("'{}' is undefined", value.as<Undefined>()->name));
}

// Reads a whole text as a number, as Python's float() does.
std::optional<double> parse_float(const std::string& text) {
  std::string trimmed = strip(text, nullptr, true, true);
  if (trimmed.starts_with('+') && !trimmed.starts_with("+-")) trimmed.erase(0, 1);
  double out = 0;
  const char* last = trimmed.data() + trimmed.size();
  const auto [end, error] = std::from_chars(trimmed.data(), last, out);
  return error == std::errc() && end == last ? std::optional(out) : std::nullopt;
}

Result<Value> integer_filter(const Value& value, const Arguments& arguments, Budget&) {
  RETURN_IF_ERROR(no_number(value));
  ASSIGN_OR_RETURN(const int64_t base, arguments.integer_or(1, "base", 10));
  if (base != 10) return unsupported("int of another base than 10");
  const Value* other = arguments.find(0, "default");
  const Value otherwise = other != nullptr ? *other : Value(int64_t{0});
  if (const auto integer = as_integer(value)) return Value(*integer);
  std::optional<double> number;
  if (value.string() != nullptr) {
    std::string text = strip(*value.string(), nullptr, true, true);
    if (text.starts_with('+') && !text.starts_with("+-")) text.erase(0, 1);
    int64_t out = 0;
    const char* last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, out);
    if (end == last && error == std::errc()) return Value(out);
    if (end == last && error == std::errc::result_out_of_range)
      return invalid_argument("number out of range");
    number = parse_float(text);
  } else if (value.as<double>()) {
    number = *value.as<double>();
  }
  if (!number || !std::isfinite(*number)) return otherwise;
  if (std::abs(*number) >= 9.2e18) return invalid_argument("number out of range");
  return Value(static_cast<int64_t>(*number));
}

Result<Value> float_filter(const Value& value, const Arguments& arguments, Budget&) {
  RETURN_IF_ERROR(no_number(value));
  const Value* other = arguments.find(0, "default");
  const Value otherwise = other != nullptr ? *other : Value(0.0);
  if (value.string() != nullptr) {
    const auto number = parse_float(*value.string());
    return number ? Value(*number) : otherwise;
  }
  const auto number = to_number(value);
  return number.ok() ? Value(*number) : otherwise;
}

Result<Value> round_filter(const Value& value, const Arguments& arguments, Budget&) {
  ASSIGN_OR_RETURN(const double number, to_number(value));
  ASSIGN_OR_RETURN(const int64_t precision, arguments.integer_or(0, "precision", 0));
  const Value* method = arguments.find(1, "method");
  std::string_view how = "common";
  if (method != nullptr && method->string() != nullptr) how = *method->string();
  if (std::abs(precision) > 15) return unsupported("round to that many digits");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (how == "ceil") return Value(std::ceil(number * scale) / scale);
  if (how == "floor") return Value(std::floor(number * scale) / scale);
  if (how != "common") return invalid_argument("method must be common, ceil or floor");
  if (as_integer(value) && precision >= 0) return value;
  if (precision < 0) {
    const double rounded = std::nearbyint(number * scale) / scale;
    if (!as_integer(value)) return Value(rounded);
    if (std::abs(rounded) >= 9.2e18) return invalid_argument("number out of range");
    return Value(static_cast<int64_t>(rounded));
  }
  // Decimal digits, as Python: of two equally near ones the even, judged by the exact number.
  return Value(std::stod(fmt::format("{:.{}f}", number, precision)));
}

Result<Value> absolute(const Value& value, const Arguments&, Budget&) {
  if (const auto number = as_integer(value)) {
    if (*number == INT64_MIN) return invalid_argument("number out of range");
    return Value(std::abs(*number));
  }
  ASSIGN_OR_RETURN(const double number, to_number(value));
  return Value(std::abs(number));
}

Result<Value> attribute_filter(const Value& value, const Arguments& arguments, Budget&) {
  ASSIGN_OR_RETURN(const std::string name, arguments.text(0, "name"));
  return python_attribute(value, name);
}

}  // namespace

const FilterTable& text_filters() {
  static const FilterTable table = {
      {"trim", {as_method<kStrip>, {"chars"}}},
      {"upper", {as_method<kUpper>, {}}},
      {"lower", {as_method<kLower>, {}}},
      {"capitalize", {as_method<kCapitalize>, {}}},
      {"title", {title, {}}},
      {"replace", {replace_filter, {"old", "new", "count"}}},
      {"string", {string_filter, {}}},
      {"safe", {string_filter, {}}},
      {"indent", {indent, {"width", "first", "blank"}}},
      {"center", {center, {"width"}}},
      {"wordcount", {wordcount, {}}},
      {"format", {format, {"*"}}},
      {"tojson", {json, {"ensure_ascii", "indent", "separators", "sort_keys"}}},
      {"default", {fallback, {"default_value", "boolean"}}},
      {"d", {fallback, {"default_value", "boolean"}}},
      {"int", {integer_filter, {"default", "base"}}},
      {"float", {float_filter, {"default"}}},
      {"round", {round_filter, {"precision", "method"}}},
      {"abs", {absolute, {}}},
      {"attr", {attribute_filter, {"name"}}},
  };
  return table;
}

namespace {

const Filter* find_filter(const std::string& name) {
  for (const FilterTable* table : {&text_filters(), &sequence_filters()})
    if (const auto found = table->find(name); found != table->end()) return &found->second;
  return nullptr;
}

}  // namespace

bool is_filter(const std::string& name) { return find_filter(name) != nullptr; }

Result<Value> apply_filter(const std::string& name, const Value& operand, const Arguments& arguments,
                           Budget& budget) {
  const Filter* filter = find_filter(name);
  if (filter == nullptr) return unsupported(fmt::format("filter '{}' is not supported", name));
  RETURN_IF_ERROR(arguments.check(filter->parameters).in(fmt::format("filter '{}'", name)));
  auto result = filter->function(operand, arguments, budget);
  if (!result.ok()) return result.status().in(fmt::format("filter '{}'", name));
  return result;
}

}  // namespace outrider::chat_template
