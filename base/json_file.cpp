#include "base/json_file.h"
#include "base/json_text.h"
#include "base/model_download.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace outrider {
namespace {

using nlohmann::json;

using nlohmann::ordered_json;

// Builds a value from parser events. The library's own builder has no depth limit and lets the last of two
// equal keys win.
template <class Json>
class BoundedBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit BoundedBuilder(const JsonLimits& limits) : limits_(limits) {}

  Json take() { return std::move(root_); }
  const std::string& error() const { return error_; }
  // The member of the outermost object that the error is about; empty: the text as a whole.
  const std::string& refused_member() const { return refused_member_; }

  bool null() override { return place(nullptr); }
  bool boolean(bool value) override { return place(value); }
  bool number_integer(int64_t value) override { return place(value); }
  bool number_unsigned(uint64_t value) override { return place(value); }
  bool number_float(double value, const std::string& text) override {
    if (limits_.whole_numbers_fit && text.find_first_not_of("-0123456789") == std::string::npos) {
      refused_member_ = outermost_;
      return fail(fmt::format("{} is a whole number of more than 64 bits", text.substr(0, 60)));
    }
    return place(value);
  }
  bool string(std::string& value) override { return place(std::move(value)); }
  bool binary(typename Json::binary_t&) override { return fail("binary value"); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    member_ = add(name);
    if (!member_) return fail(fmt::format("key \"{}\" appears twice in one object", name.substr(0, 200)));
    if (open_.size() == 1) outermost_ = name;
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, ...": the bracket does not help a reader.
    std::string text = error.what();
    if (const size_t bracket = text.find("] "); bracket != std::string::npos) text.erase(0, bracket + 2);
    return fail(text.substr(0, 300));
  }

 private:
  bool fail(std::string why) {
    error_ = std::move(why);
    return false;
  }
  // Null: there is such a key.
  Json* add(const std::string& name) {
    auto& members = open_.back()->template get_ref<typename Json::object_t&>();
    if constexpr (std::is_same_v<Json, ordered_json>) {
      // Its own emplace() looks at every key that is there.
      if (!keys_.back().insert(name).second) return nullptr;
      return &static_cast<typename Json::object_t::Container&>(members).emplace_back(name, nullptr).second;
    } else {
      const auto [member, is_new] = members.emplace(name, nullptr);
      return is_new ? &member->second : nullptr;
    }
  }
  Json* put(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array())
      return &open_.back()->template get_ref<typename Json::array_t&>().emplace_back(std::move(value));
    *member_ = std::move(value);
    return member_;
  }
  bool place(Json value) {
    put(std::move(value));
    return true;
  }
  bool open(Json container) {
    if (static_cast<int>(open_.size()) >= limits_.max_depth)
      return fail(fmt::format("nested more than {} levels deep", limits_.max_depth));
    open_.push_back(put(std::move(container)));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  Json root_;
  std::vector<Json*> open_;  // containers being filled; stable, since only the innermost grows
  std::vector<std::set<std::string>>
      keys_;                // for each open container, since the container itself keeps no order of keys
  Json* member_ = nullptr;  // where the value of the last key goes
  std::string outermost_, refused_member_;  // keys of the outermost object
  std::string error_;
};

template <class Json>
Result<Json> parse_bounded(std::string_view text, const std::string& name, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes)
    return malformed(fmt::format("{}: {} bytes, more than the {} this file may have", name, text.size(),
                                 limits.max_bytes));
  BoundedBuilder<Json> builder(limits);
  if (Json::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
  if (!builder.refused_member().empty())
    return invalid_argument(
        fmt::format("\"{}\": {}", builder.refused_member().substr(0, 200), builder.error()));
  return malformed(fmt::format("{}: {}", name, builder.error()));
}

}  // namespace

Result<json> parse_json(std::string_view text, const std::string& name, JsonLimits limits) {
  return parse_bounded<json>(text, name, limits);
}

Result<ordered_json> parse_ordered_json(std::string_view text, const std::string& name, JsonLimits limits) {
  return parse_bounded<ordered_json>(text, name, limits);
}

Result<std::string> read_text_file(const std::filesystem::path& path, size_t max_bytes) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return missing_file(path);
  if (!std::filesystem::is_regular_file(status))
    return invalid_argument(path.string() + ": not a regular file");
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return invalid_argument(path.string() + ": " + error.message());
  if (size > max_bytes)
    return malformed(
        fmt::format("{}: {} bytes, more than the {} this file may have", path.string(), size, max_bytes));
  std::string text(size, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file) return invalid_argument(path.string() + ": cannot be opened; check its permissions");
  if (!file.read(text.data(), static_cast<std::streamsize>(size)))
    return malformed(path.string() + ": became shorter while it was read");
  if (is_git_lfs_pointer(text)) return git_lfs_pointer_error(path.string());
  return text;
}

Result<json> read_json_file(const std::filesystem::path& path, JsonLimits limits) {
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path, limits.max_bytes));
  if (text.empty()) return empty_file(path);
  return parse_json(text, path.string(), limits);
}

// https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md: the version line comes first and starts like
// this.
bool is_git_lfs_pointer(std::string_view start_of_file) {
  return start_of_file.starts_with("version https://git-lfs.github.com/spec/");
}

Status git_lfs_pointer_error(const std::string& name) {
  return invalid_argument(name +
                          ": is a git-lfs pointer, not the file itself; run `git lfs pull` in its directory");
}

Result<JsonObject> JsonObject::view(const json& value, std::string where) {
  if (!value.is_object()) return invalid_argument(where + ": must be an object, not " + value.type_name());
  return JsonObject(value, std::move(where));
}

Status JsonObject::refused(const std::string& key, const std::string& what) const {
  return unsupported(fmt::format("{}: \"{}\" {}", where_, key, what));
}

Status JsonObject::wrong(const std::string& key, const std::string& what) const {
  return invalid_argument(fmt::format("{}: \"{}\" {}", where_, key, what));
}

const json* JsonObject::find(const std::string& key) const {
  const auto member = value_->find(key);
  return member == value_->end() || member->is_null() ? nullptr : &*member;
}

Result<int64_t> JsonObject::integer(const std::string& key, Range range) const {
  const json* value = find(key);
  if (value == nullptr) return wrong(key, "is missing");
  if (!value->is_number_integer())
    return wrong(key, fmt::format("must be an integer, not {}", value->type_name()));
  const bool too_large = value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX};
  const int64_t number = too_large ? INT64_MAX : value->get<int64_t>();
  if (too_large || number < range.min || number > range.max)
    return wrong(key,
                 fmt::format("is {}; must be between {} and {}", json_text(*value), range.min, range.max));
  return number;
}

Result<double> JsonObject::number(const std::string& key, double min, double max) const {
  const json* value = find(key);
  if (value == nullptr) return wrong(key, "is missing");
  if (!value->is_number()) return wrong(key, fmt::format("must be a number, not {}", value->type_name()));
  const double number = value->get<double>();
  if (!(number >= min && number <= max))
    return wrong(key, fmt::format("is {}; must be between {} and {}", number, min, max));
  return number;
}

Result<std::string> JsonObject::string(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) return wrong(key, "is missing");
  if (!value->is_string()) return wrong(key, fmt::format("must be a string, not {}", value->type_name()));
  return value->get<std::string>();
}

Result<int64_t> JsonObject::integer_or(const std::string& key, int64_t fallback, Range range) const {
  return has(key) ? integer(key, range) : Result<int64_t>(fallback);
}
Result<double> JsonObject::number_or(const std::string& key, double fallback, double min, double max) const {
  return has(key) ? number(key, min, max) : Result<double>(fallback);
}
Result<std::string> JsonObject::string_or(const std::string& key, const std::string& fallback) const {
  return has(key) ? string(key) : Result<std::string>(fallback);
}

Result<bool> JsonObject::boolean_or(const std::string& key, bool fallback) const {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean())
    return wrong(key, fmt::format("must be true or false, not {}", value->type_name()));
  return value->get<bool>();
}

Result<std::optional<JsonObject>> JsonObject::object(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) return std::optional<JsonObject>();
  ASSIGN_OR_RETURN(JsonObject nested, view(*value, fmt::format("{}: \"{}\"", where_, key)));
  return std::optional<JsonObject>(std::move(nested));
}

}  // namespace outrider
