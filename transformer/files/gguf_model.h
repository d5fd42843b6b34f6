// A GGUF file in the words of a Hugging Face directory: its config.json, and tensors under the names that
// they have there. Architectures llama (Mistral's files too), qwen2 and qwen3.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "transformer/files/gguf_file.h"

namespace outrider {

// `name` of the file stands in front of every message. Keys that could change what the model computes are
// understood or refused by name.
Result<nlohmann::json> gguf_config(const GgufContent& content, const std::string& name);

// Rows of q and k of llama files are marked as lying in pairs (TensorInfo::paired_rows).
Result<std::vector<TensorInfo>> gguf_tensors(GgufContent content, const std::string& name);

// The value as what it should be; nothing if the key is absent, an error if it is something else.
Result<std::optional<int64_t>> gguf_integer(const GgufContent& content, std::string_view key,
                                            const std::string& name);
Result<std::optional<std::string>> gguf_text(const GgufContent& content, std::string_view key,
                                             const std::string& name);
const GgufArray* gguf_array(const GgufContent& content, std::string_view key);  // null: no array

}  // namespace outrider
