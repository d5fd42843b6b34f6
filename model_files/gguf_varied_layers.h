// Keys of GGUF files of Gemma 4, whose layers differ in their heads, keys and MLPs, in the words of
// config.json.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"
#include "model_files/gguf_architecture.h"

namespace outrider {

// GgufArchitecture::complete
Status complete_varied_layers(const GgufKeys& keys, nlohmann::json& config);

}  // namespace outrider
