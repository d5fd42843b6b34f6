#include "model_files/gguf_keys.h"

#include <fmt/format.h>

#include <limits>

namespace outrider {
namespace {

// The common value of all entries of an array of whole numbers.
Result<std::optional<int64_t>> only_number(const GgufArray& array, std::string_view key,
                                           const std::string& name) {
  std::optional<int64_t> first;
  for (uint64_t i = 0; i < array.count; ++i) {
    const auto own = array.whole(i);
    if (!own) return malformed(fmt::format("{}: {} is no whole number", name, key));
    if (own != first.value_or(*own))
      return unsupported(
          fmt::format("{}: {} differs between layers; one number for all is supported", name, key));
    first = own;
  }
  if (!first) return malformed(fmt::format("{}: {} is an empty list", name, key));
  return first;
}

}  // namespace

Result<std::optional<int64_t>> gguf_integer(const GgufContent& content, std::string_view key,
                                            const std::string& name) {
  const GgufValue* value = content.find(key);
  if (!value) return std::optional<int64_t>();
  if (const auto* number = std::get_if<int64_t>(value)) return std::optional(*number);
  if (const auto* array = std::get_if<GgufArray>(value)) return only_number(*array, key, name);
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
