// Values inside a JSON file that know their way: errors name file and key, however deep.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/status.h"

namespace outrider {

// A value inside a JSON file together with the way to it, for messages: "m/tokenizer.json: model.vocab: ...".
// A view of an absent value exists too; absent and null read alike.
class JsonView {
 public:
  JsonView(const nlohmann::json& root, const std::string& file) : value_(&root), where_(file + ":") {}

  bool present() const;
  bool is_string() const;
  bool is_object() const;
  bool is_array() const;
  const nlohmann::json& raw() const { return *value_; }  // only if present

  JsonView operator[](const std::string& key) const;  // absent if this is no object
  JsonView at(size_t index) const;
  size_t size() const;  // of an array or object, else 0

  Result<std::string> string() const;
  Result<int64_t> integer() const;
  Result<bool> boolean(bool if_absent) const;
  Status require_object() const;
  Status require_array() const;

  Status malformed(const std::string& message) const;
  Status unsupported(const std::string& message) const;

 private:
  JsonView(const nlohmann::json* value, std::string where) : value_(value), where_(std::move(where)) {}
  const nlohmann::json* value_;  // null: absent
  std::string where_;
};

}  // namespace outrider
