// Which layers of a model see a window, turn otherwise than the others, or hold experts.
#pragma once

#include "base/json_file.h"
#include "model_files/family.h"
#include "model_files/model_config.h"

namespace outrider {

// Fills in layers; num_layers, max_position_embeddings and experts are known. A window that is never shorter
// than the context counts as none.
Status read_layer_kinds(const JsonObject& config, const FamilyTraits& traits, ModelConfig& out);

}  // namespace outrider
