#include "text/tokenizer/json_view.h"

#include <nlohmann/json.hpp>

namespace outrider {

bool JsonView::present() const { return value_ != nullptr && !value_->is_null(); }
bool JsonView::is_string() const { return value_ != nullptr && value_->is_string(); }
bool JsonView::is_object() const { return value_ != nullptr && value_->is_object(); }
bool JsonView::is_array() const { return value_ != nullptr && value_->is_array(); }

JsonView JsonView::operator[](const std::string& key) const {
  const std::string where = where_ + (where_.back() == ':' ? " " : ".") + key;
  if (!is_object()) return {nullptr, where};
  const auto entry = value_->find(key);
  return {entry == value_->end() ? nullptr : &*entry, where};
}

JsonView JsonView::at(size_t index) const {
  const std::string where = fmt::format("{}[{}]", where_, index);
  if (!is_array() || index >= value_->size()) return {nullptr, where};
  return {&(*value_)[index], where};
}

size_t JsonView::size() const { return is_array() || is_object() ? value_->size() : 0; }

Result<std::string> JsonView::string() const {
  if (!is_string()) return malformed("a string is needed here");
  return value_->get<std::string>();
}

Result<int64_t> JsonView::integer() const {
  if (value_ == nullptr || !value_->is_number_integer()) return malformed("an integer is needed here");
  if (value_->is_number_unsigned() && value_->get<uint64_t>() > INT64_MAX)
    return malformed("too large an integer");
  return value_->get<int64_t>();
}

Result<bool> JsonView::boolean(bool if_absent) const {
  if (!present()) return if_absent;
  if (!value_->is_boolean()) return malformed("true or false is needed here");
  return value_->get<bool>();
}

Status JsonView::require_object() const {
  return is_object() ? Status() : malformed("an object is needed here");
}
Status JsonView::require_array() const {
  return is_array() ? Status() : malformed("an array is needed here");
}

Status JsonView::malformed(const std::string& message) const {
  return outrider::malformed(where_ + (where_.back() == ':' ? " " : ": ") + message);
}
Status JsonView::unsupported(const std::string& message) const {
  return outrider::unsupported(where_ + (where_.back() == ':' ? " " : ": ") + message);
}

}  // namespace outrider
