// Sizes and arithmetic of decoder layers, from a JSON object that describes them: the config.json of a model
// or of a drafter with a layer of its own.
#pragma once

#include <span>
#include <string_view>

#include "base/json_file.h"
#include "model_files/model_config.h"

namespace outrider {

// The family that "model_type" names; `fallback` without the key.
Result<ModelFamily> family_of(const JsonObject& config, ModelFamily fallback);

// All of a ModelConfig but special ids. Refuses what computes another function, by file and key; `also`:
// further keys that the caller reads.
Result<ModelConfig> read_layer_config(const JsonObject& config, ModelFamily family,
                                      std::span<const std::string_view> also = {});

}  // namespace outrider
