#include "text/chat_template/builtins.h"

#include <algorithm>

namespace outrider::chat_template {

Status Budget::work(uint64_t bytes) {
  work_ += std::min(bytes, kMaxSteps * kWorkPerStep + 1);
  if (work_ <= kMaxSteps * kWorkPerStep) return {};
  return resource_exhausted(fmt::format("the template takes more than {} steps", kMaxSteps));
}

Status Budget::bytes(size_t count) {
  bytes_ += std::min<uint64_t>(count, kMaxBytes + 1);
  if (bytes_ <= kMaxBytes) return {};
  return resource_exhausted(fmt::format("the template builds more than {} bytes of values", kMaxBytes));
}

Status Budget::check_size(const Value& value) {
  if (value.depth() > kMaxDepth)
    return resource_exhausted(fmt::format("the template nests values deeper than {} levels", kMaxDepth));
  if (value.weight() > kMaxWeight)
    return resource_exhausted(fmt::format("the template builds a value of more than {} bytes", kMaxWeight));
  return {};
}

const Value* Arguments::find(size_t position, std::string_view keyword) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& [name, value] : keywords)
    if (name == keyword) return &value;
  return nullptr;
}

Result<std::string> Arguments::text(size_t position, std::string_view keyword) const {
  const Value* value = find(position, keyword);
  if (value == nullptr || value->string() == nullptr)
    return invalid_argument(fmt::format("argument '{}' must be a string", keyword));
  return *value->string();
}

Result<int64_t> Arguments::integer_or(size_t position, std::string_view keyword, int64_t if_absent) const {
  const Value* value = find(position, keyword);
  if (value == nullptr) return if_absent;
  const auto integer = as_integer(*value);
  if (!integer) return invalid_argument(fmt::format("argument '{}' must be an integer", keyword));
  return *integer;
}

bool Arguments::is_true(size_t position, std::string_view keyword) const {
  const Value* value = find(position, keyword);
  return value != nullptr && value->is_true();
}

Status Arguments::check(std::span<const std::string_view> names) const {
  if (!names.empty() && names.back() == "*") return {};
  if (positional.size() > names.size())
    return invalid_argument(
        fmt::format("takes at most {} arguments, not {}", names.size(), positional.size()));
  for (const auto& [name, value] : keywords)
    if (std::find(names.begin(), names.end(), name) == names.end())
      return invalid_argument(fmt::format("has no argument '{}'", name));
  return {};
}

}  // namespace outrider::chat_template
