// The table of GGUF's architectures: which family each is, how its tensors are stored, and which of its keys
// say what in the words of config.json. Keys and tensors that all share are in gguf_config.cpp and
// gguf_model.cpp.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model_files/gguf_keys.h"
#include "model_files/model_config.h"

namespace outrider {

// A key of the file, behind "ARCHITECTURE.", that is a key of config.json.
struct GgufKey {
  enum class Kind : uint8_t { kInteger, kNumber, kFlag };
  std::string_view key, to;
  Kind kind = Kind::kInteger;
};

// The keys of one file and its architecture.
class GgufKeys {
 public:
  GgufKeys(const GgufContent& content, const std::string& file, std::string_view architecture)
      : content_(content), file_(file), architecture_(architecture) {}

  const GgufContent& content() const { return content_; }
  const std::string& file() const { return file_; }
  std::string name(std::string_view key) const { return std::string(architecture_) + "." + std::string(key); }
  bool has(std::string_view key) const { return content_.find(name(key)) != nullptr; }
  Result<std::optional<int64_t>> integer(std::string_view key) const {
    return gguf_integer(content_, name(key), file_);
  }
  Result<std::optional<double>> number(std::string_view key) const {
    return gguf_number(content_, name(key), file_);
  }
  Result<std::optional<bool>> flag(std::string_view key) const {
    return gguf_flag(content_, name(key), file_);
  }
  Result<std::optional<std::string>> text(std::string_view key) const {
    return gguf_text(content_, name(key), file_);
  }

 private:
  const GgufContent& content_;
  const std::string& file_;
  std::string_view architecture_;
};

struct GgufArchitecture {
  std::string_view name;
  ModelFamily family;
  bool has_experts = false;        // rows of the same name differ in it
  bool pairs_rows = false;         // q and k are stored for a rotation of neighbours
  bool norms_hold_one = false;     // norms are stored with 1 added
  bool kv_heads_by_layer = false;  // `complete` reads their number
  bool mlps_by_layer = false;      // `complete` reads their sizes
  bool values_in_turns = false;    // DeltaNetConfig::in_turns
  std::span<const GgufKey> keys = {};
  // Further keys that `complete` reads.
  std::span<const std::string_view> more_keys = {};
  // Adds config entries that depend on several keys or on no key.
  Status (*complete)(const GgufKeys& keys, nlohmann::json& config) = nullptr;
};

// Errors name the file.
Result<const GgufArchitecture*> gguf_architecture_of(const GgufContent& content, const std::string& name);
std::span<const GgufArchitecture> gguf_architectures();

}  // namespace outrider
