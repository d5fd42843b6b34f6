// A GGUF file in the words of a Hugging Face directory: its config.json, and tensors under the names that
// they have there. Architectures: gguf_architecture.h.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model_files/gguf_file.h"
#include "model_files/gguf_keys.h"

namespace outrider {

// Tensors of the rotation, which the config says.
inline constexpr const char *kGgufRopeFactors = "rope_freqs.weight",
                            *kGgufShortFactors = "rope_factors_short.weight",
                            *kGgufLongFactors = "rope_factors_long.weight";

// `name` of the file stands in front of every message. Keys that could change what the model computes are
// understood or refused by name.
Result<nlohmann::json> gguf_config(const GgufContent& content, const std::string& name);
// The same error with the keys of the GGUF file in place of those of config.json.
Status in_words_of_gguf(const Status& status, const GgufContent& content, const std::string& name);

// Rows of q and k that lie in pairs are marked (TensorInfo::paired_rows); tensors of all experts, of fused
// projections and of all heads of latent attention become views of their parts.
Result<std::vector<TensorInfo>> gguf_tensors(GgufContent content, const std::string& name);

// The file's name for the tensor `name` of a directory, whether or not the file has it; else `name`.
std::string gguf_tensor_name(std::string_view name, const GgufContent& content);

// Whether the file's norms hold 1 + weight, where the family multiplies by that.
bool gguf_norms_hold_one(const GgufContent& content);
// DeltaNetConfig::in_turns
bool gguf_values_in_turns(const GgufContent& content);

}  // namespace outrider
