// Which layers of a model see a window, turn otherwise than the others, or hold experts.
#pragma once

#include "transformer/files/family.h"
#include "transformer/files/json_file.h"
#include "transformer/files/model_config.h"

namespace outrider {

// Fills in layers; num_layers, max_position_embeddings and experts are known. A window that is never shorter
// than the context counts as none.
Status read_layer_kinds(const JsonObject& config, const FamilyTraits& traits, ModelConfig& out);

}  // namespace outrider
