// Python's two ways to format: "%s" % x and "{}".format(x).
#include <charconv>

#include "base/utf8.h"
#include "text/chat_template/builtins.h"

namespace outrider::chat_template {
namespace {

constexpr int kMaxWidth = 4096;

struct Directive {
  std::string flags;
  int width = 0, precision = -1;
  char kind = 0;
};

Result<int> read_number(std::string_view text, size_t& at) {
  int out = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    out = 10 * out + (text[at++] - '0');
    if (out > kMaxWidth) return unsupported("a width that large");
  }
  return out;
}

// After the %.
Result<Directive> read_directive(std::string_view form, size_t& at) {
  Directive out;
  if (at < form.size() && form[at] == '(') return unsupported("formatting by names");
  while (at < form.size() && std::string_view("-+ #0").find(form[at]) != std::string_view::npos)
    out.flags += form[at++];
  ASSIGN_OR_RETURN(out.width, read_number(form, at));
  if (at < form.size() && form[at] == '.') {
    ASSIGN_OR_RETURN(out.precision, read_number(form, ++at));
  }
  if (at == form.size()) return invalid_argument("incomplete format");
  out.kind = form[at++];
  return out;
}

std::string padded(std::string text, const Directive& d) {
  Result<int64_t> length = length_of(Value(text));
  const int64_t missing = d.width - *length;
  if (missing <= 0) return text;
  const std::string blanks(static_cast<size_t>(missing), ' ');
  return d.flags.find('-') != std::string::npos ? text + blanks : blanks + text;
}

template <class Number>
std::string printed(const Directive& d, const char* length, Number number) {
  const std::string precision = d.precision >= 0 ? fmt::format(".{}", d.precision) : "";
  const std::string form = fmt::format("%{}{}{}{}{}", d.flags, d.width > 0 ? std::to_string(d.width) : "",
                                       precision, length, d.kind);
  std::string out(static_cast<size_t>(std::snprintf(nullptr, 0, form.c_str(), number)) + 1, 0);
  std::snprintf(out.data(), out.size(), form.c_str(), number);
  out.pop_back();
  return out;
}

Result<std::string> formatted(Directive d, const Value& value) {
  if (d.kind == 's' || d.kind == 'r') {
    ASSIGN_OR_RETURN(std::string text, d.kind == 's' ? to_text(value) : to_text(Value(List{value})));
    if (d.kind == 'r') text = text.substr(1, text.size() - 2);
    if (d.precision >= 0) {
      size_t at = 0;
      for (int i = 0; i < d.precision && at < text.size(); ++i) next_codepoint(text, at);
      text.resize(at);
    }
    return padded(std::move(text), d);
  }
  ASSIGN_OR_RETURN(const double number, to_number(value));
  if (d.kind == 'i' || d.kind == 'u') d.kind = 'd';
  if (d.kind == 'd') {
    if (const auto integer = as_integer(value)) return printed(d, "ll", static_cast<long long>(*integer));
    if (!(number > -9e18 && number < 9e18)) return invalid_argument("number out of range");
    return printed(d, "ll", static_cast<long long>(number));
  }
  if (std::string_view("xXo").find(d.kind) != std::string_view::npos) {
    const auto integer = as_integer(value);
    if (!integer) return invalid_argument(fmt::format("%{} needs an integer", d.kind));
    if (*integer < 0) return unsupported(fmt::format("%{} of a negative number", d.kind));
    return printed(d, "ll", static_cast<long long>(*integer));
  }
  if (std::string_view("eEfFgG").find(d.kind) != std::string_view::npos) return printed(d, "", number);
  return unsupported(fmt::format("format %{}", d.kind));
}

}  // namespace

Result<std::string> format_percent(const std::string& form, const List& values, Budget& budget) {
  std::string out;
  size_t used = 0;
  for (size_t at = 0; at < form.size();) {
    if (form[at] != '%') {
      out += form[at++];
      continue;
    }
    ASSIGN_OR_RETURN(const Directive directive, read_directive(form, ++at));
    if (directive.kind == '%') {
      out += '%';
      continue;
    }
    if (used == values.size()) return invalid_argument("not enough values for the format");
    ASSIGN_OR_RETURN(const std::string text, formatted(directive, values[used++]));
    RETURN_IF_ERROR(budget.bytes(text.size()));
    out += text;
  }
  // A single dict or list may be left over, as Python has it.
  const bool spare = values.size() == 1 && (values[0].map() != nullptr || values[0].list() != nullptr);
  if (used < values.size() && !spare) return invalid_argument("more values than the format has places");
  return out;
}

Result<std::string> format_braces(const std::string& form, const Arguments& arguments, Budget& budget) {
  std::string out;
  size_t next = 0;
  for (size_t at = 0; at < form.size(); ++at) {
    const char c = form[at];
    if ((c == '{' || c == '}') && at + 1 < form.size() && form[at + 1] == c) {
      out += form[at++];
      continue;
    }
    if (c == '}') return invalid_argument("single '}' in a format");
    if (c != '{') {
      out += c;
      continue;
    }
    const size_t end = form.find('}', at);
    if (end == std::string::npos) return invalid_argument("single '{' in a format");
    const std::string name = form.substr(at + 1, end - at - 1);
    if (name.find_first_of(":!.[{") != std::string::npos)
      return unsupported("a format with more than a name in braces");
    size_t index = next;
    const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool by_position = name.empty() || (error == std::errc() && rest == name.data() + name.size());
    if (name.empty()) ++next;
    const Value* value = arguments.find(by_position ? index : arguments.positional.size(), name);
    if (value == nullptr || (by_position && index >= arguments.positional.size()))
      return invalid_argument("a value for {" + name + "} is missing");
    ASSIGN_OR_RETURN(const std::string text, to_text(*value));
    RETURN_IF_ERROR(budget.bytes(text.size()));
    out += text;
    at = end;
  }
  return out;
}

}  // namespace outrider::chat_template
