// The "quantization_config" of config.json, as the programs write it that publish quantised checkpoints. A
// key that changes the arithmetic is understood or refused by name; keys that are known to change nothing are
// passed over; any other is refused.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_file.h"
#include "base/regex.h"
#include "base/status.h"

namespace outrider {

enum class QuantMethod : uint8_t { kGptq, kAwq, kCompressedTensors, kBlockFp8, kMxfp4 };

// Modules, by whole names or by expressions ("re:...") that match from where a name begins.
class ModuleNames {
 public:
  // The list at `key`; without one: no modules. An expression that cannot be read is an error with its key.
  static Result<ModuleNames> read(const JsonObject& object, const std::string& key);
  // kResourceExhausted: an expression takes too long.
  Result<bool> contain(std::string_view module) const;
  // Whether the whole name is listed.
  bool list(std::string_view name) const;

 private:
  struct Expression {
    std::string where;  // file, key and text, for errors
    Regex regex;
  };
  std::vector<std::string> names_;
  std::vector<Expression> expressions_;
};

// A config group of compressed-tensors: how the weights of some modules are stored.
struct CompressedGroup {
  enum class Format : uint8_t { kPacked, kIntegers, kFloat8 };
  enum class Strategy : uint8_t { kTensor, kChannel, kGroup, kBlock };
  ModuleNames targets;  // or names of classes
  Format format = Format::kPacked;
  Strategy strategy = Strategy::kGroup;
  int bits = 4;
  bool symmetric = true;
  int64_t group = 0;                          // columns, with kGroup
  int64_t block_rows = 0, block_columns = 0;  // with kBlock
};

struct QuantizationConfig {
  QuantMethod method = QuantMethod::kGptq;
  int bits = 4;
  int64_t group = 0;                          // GPTQ, AWQ: columns; 0: the whole row
  bool zero_is_less_one = false;              // GPTQ v1: zeros are stored less one
  int64_t block_rows = 0, block_columns = 0;  // block fp8
  std::vector<CompressedGroup> groups;        // compressed-tensors
  ModuleNames ignored;                        // not quantised

  const char* name() const;  // "gptq"
  // For compressed-tensors, the group of a module ("model.layers.0.self_attn.q_proj"); null: not quantised.
  Result<const CompressedGroup*> group_of(std::string_view module) const;
};

// Nothing for weights that are not quantised, or in this project's own formats, whose tensors say the rest.
Result<std::shared_ptr<const QuantizationConfig>> read_quantization_config(const JsonObject& config);

}  // namespace outrider
