// The rotations that config.json describes, in the keys of transformers 4 and 5.
#pragma once

#include "base/json_file.h"
#include "model_files/family.h"
#include "model_files/model_config.h"

namespace outrider {

// Fills in rope and local_rope; num_layers, head_dim and max_position_embeddings are known. LongRoPE shortens
// max_position_embeddings to the trained length, within which it turns by one set of factors.
Status read_rope(const JsonObject& config, const FamilyTraits& traits, ModelConfig& out);

}  // namespace outrider
