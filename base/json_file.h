// Bounded reading of the JSON files that come with a model. They are not trusted: size and depth are limited,
// duplicate keys (two readers, two meanings) and invalid UTF-8 are errors, and every error names file and
// key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace outrider {

struct JsonLimits {
  size_t max_bytes = size_t{16} << 20;
  int max_depth = 32;
  // Whole numbers of more than 64 bits are errors, which name the member of the outermost object. Otherwise
  // they are read as the nearest double.
  bool whole_numbers_fit = false;
};

// Every JSON text from outside is read here: nlohmann's own parse() has no bound of its depth, and copies and
// destructors of what it made are recursive. `name` stands in front of every message.
Result<nlohmann::json> parse_json(std::string_view text, const std::string& name, JsonLimits limits = {});
// With keys in the order in which they were written. The time is n log n of an object's keys.
Result<nlohmann::ordered_json> parse_ordered_json(std::string_view text, const std::string& name,
                                                  JsonLimits limits = {});
// kNotFound where there is no such file; a git-lfs pointer is recognised and its remedy named.
Result<nlohmann::json> read_json_file(const std::filesystem::path& path, JsonLimits limits = {});
Result<std::string> read_text_file(const std::filesystem::path& path, size_t max_bytes);

// Whether the bytes are what git leaves in place of a large file that was not downloaded.
bool is_git_lfs_pointer(std::string_view start_of_file);
Status git_lfs_pointer_error(const std::string& name);

// Typed, checked access to the members of one object. Views: the json must outlive it. A null member counts
// as absent, which is how Hugging Face writes "use the default".
class JsonObject {
 public:
  // An error unless `value` is an object. `where`: "config.json" or "config.json: rope_scaling".
  static Result<JsonObject> view(const nlohmann::json& value, std::string where);

  const std::string& where() const { return where_; }
  bool has(const std::string& key) const { return find(key) != nullptr; }
  const nlohmann::json* find(const std::string& key) const;  // null if absent
  const nlohmann::json& members() const { return *value_; }  // nulls included

  struct Range {
    int64_t min = std::numeric_limits<int64_t>::min();
    int64_t max = std::numeric_limits<int64_t>::max();
  };
  // Absent: an error.
  Result<int64_t> integer(const std::string& key, Range range) const;
  Result<double> number(const std::string& key, double min, double max) const;
  Result<std::string> string(const std::string& key) const;
  // Absent: the fallback.
  Result<int64_t> integer_or(const std::string& key, int64_t fallback, Range range) const;
  Result<double> number_or(const std::string& key, double fallback, double min, double max) const;
  Result<bool> boolean_or(const std::string& key, bool fallback) const;
  Result<std::string> string_or(const std::string& key, const std::string& fallback) const;
  // A nested object, or nothing.
  Result<std::optional<JsonObject>> object(const std::string& key) const;

  // kUnsupported, kInvalidArgument; both name file and key.
  Status refused(const std::string& key, const std::string& what) const;
  Status wrong(const std::string& key, const std::string& what) const;

 private:
  JsonObject(const nlohmann::json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  const nlohmann::json* value_;
  std::string where_;
};

}  // namespace outrider
