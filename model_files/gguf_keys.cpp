#include "model_files/gguf_keys.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace outrider {
namespace {

// The common value of all entries of a number array; nothing if entries differ.
std::optional<double> only_number(const GgufArray& array) {
  if (array.count == 0 || !array.texts.empty()) return {};
  const double first = array.number(0);
  for (uint64_t i = 1; i < array.count; ++i)
    if (array.number(i) != first) return {};
  return first;
}

}  // namespace

Result<std::optional<int64_t>> gguf_integer(const GgufContent& content, std::string_view key,
                                            const std::string& name) {
  const GgufValue* value = content.find(key);
  if (!value) return std::optional<int64_t>();
  if (const auto* number = std::get_if<int64_t>(value)) return std::optional(*number);
  if (const auto* array = std::get_if<GgufArray>(value)) {
    const auto same = only_number(*array);
    if (same && *same == std::floor(*same)) return std::optional(static_cast<int64_t>(*same));
    return unsupported(
        fmt::format("{}: {} differs between layers; one number for all is supported", name, key));
  }
  const auto* number = std::get_if<uint64_t>(value);
  if (!number || *number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return malformed(fmt::format("{}: {} is no whole number", name, key));
  return std::optional(static_cast<int64_t>(*number));
}

Result<std::optional<double>> gguf_number(const GgufContent& content, std::string_view key,
                                          const std::string& name) {
  const GgufValue* value = content.find(key);
  if (!value) return std::optional<double>();
  const auto* number = std::get_if<double>(value);
  if (!number) return malformed(fmt::format("{}: {} is no floating-point number", name, key));
  return std::optional(*number);
}

Result<std::optional<bool>> gguf_flag(const GgufContent& content, std::string_view key,
                                      const std::string& name) {
  const GgufValue* value = content.find(key);
  if (!value) return std::optional<bool>();
  const auto* flag = std::get_if<bool>(value);
  if (!flag) return malformed(fmt::format("{}: {} is neither true nor false", name, key));
  return std::optional(*flag);
}

Result<std::optional<std::string>> gguf_text(const GgufContent& content, std::string_view key,
                                             const std::string& name) {
  const GgufValue* value = content.find(key);
  if (!value) return std::optional<std::string>();
  const auto* text = std::get_if<std::string_view>(value);
  if (!text) return malformed(fmt::format("{}: {} is no text", name, key));
  return std::optional(std::string(*text));
}

const GgufArray* gguf_array(const GgufContent& content, std::string_view key) {
  const GgufValue* value = content.find(key);
  return value ? std::get_if<GgufArray>(value) : nullptr;
}

}  // namespace outrider
