// A GGUF file, versions 2 and 3: keys and values, then tensors. Not trusted: counts, lengths, types, offsets
// and overlaps are checked when it is opened. Format: docs/gguf.md of the ggml project.
//   "GGUF", u32 version, u64 tensors, u64 keys; keys: text, u32 type, value; tensors: text name, u32
//   dimensions, u64 each (fastest first), u32 type, u64 offset from the start of the data, which are aligned.
//   All little endian; a text is a u64 length and its bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "model_files/safetensors.h"

namespace outrider {

// Views of the file.
struct GgufArray {
  uint32_t type = 0;                    // as the file numbers them; no arrays of arrays
  std::vector<std::string_view> texts;  // of an array of texts
  std::span<const std::byte> numbers;   // of any other
  uint64_t count = 0;
  // Element i of an array of numbers; false and true are 0 and 1.
  double number(uint64_t i) const;
  // Nothing in an array of another type than whole numbers or flags, and above the range.
  std::optional<int64_t> whole(uint64_t i) const;
};
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray>;

struct GgufContent {
  std::map<std::string, GgufValue, std::less<>> values;
  std::vector<TensorInfo> tensors;  // with the file's names; shapes outermost first
  // Where the keys lie in the file.
  uint64_t key_count = 0;
  std::span<const std::byte> key_bytes;

  const GgufValue* find(std::string_view key) const;
  const TensorInfo* tensor(std::string_view name) const;
};

// `file` is everything from byte 0; what comes back points into it.
Result<GgufContent> parse_gguf(std::span<const std::byte> file, const std::string& name);

// Whether this path names a GGUF file rather than a model directory.
bool is_gguf_path(const std::filesystem::path& path);

}  // namespace outrider
