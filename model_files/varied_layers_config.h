// Models whose layers differ in their heads, their keys and their MLPs (Gemma 4), from config.json.
#pragma once

#include "base/json_file.h"
#include "model_files/family.h"
#include "model_files/model_config.h"

namespace outrider {

// Refines layers and rope, and fills in layer_input_size and what all layers of such models have. Windows and
// the model's own sizes are known.
Status read_varied_layers(const JsonObject& config, const FamilyTraits& traits, ModelConfig& out);

}  // namespace outrider
