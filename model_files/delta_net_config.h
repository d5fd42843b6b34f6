// Models with gated delta nets (Qwen3-Next, Qwen3.5), from config.json: which layers have one, and its sizes.
#pragma once

#include "base/json_file.h"
#include "model_files/family.h"
#include "model_files/model_config.h"

namespace outrider {

// Fills in delta_net, and the mixers of `layers`, whose other properties are known.
Status read_delta_nets(const JsonObject& config, ModelConfig& out);

}  // namespace outrider
