// Typed reading of the keys of a GGUF file. Errors name file and key.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model_files/gguf_file.h"

namespace outrider {

// The value as what it should be; nothing if the key is absent, an error if it is something else. An array
// of equal numbers is that number: some files have one for each layer.
Result<std::optional<int64_t>> gguf_integer(const GgufContent& content, std::string_view key,
                                            const std::string& name);
Result<std::optional<double>> gguf_number(const GgufContent& content, std::string_view key,
                                          const std::string& name);
Result<std::optional<bool>> gguf_flag(const GgufContent& content, std::string_view key,
                                      const std::string& name);
Result<std::optional<std::string>> gguf_text(const GgufContent& content, std::string_view key,
                                             const std::string& name);
const GgufArray* gguf_array(const GgufContent& content, std::string_view key);  // null: no array

}  // namespace outrider
