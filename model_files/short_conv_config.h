// Models with short convolutions (LFM2), from config.json: which layers have one, and sizes by keys of their
// own.
#pragma once

#include "base/json_file.h"
#include "model_files/family.h"
#include "model_files/model_config.h"

namespace outrider {

// Columns of the MLP, which the class computes of "block_ff_dim" or "intermediate_size".
Result<int64_t> read_adjusted_intermediate_size(const JsonObject& config);

// Fills in conv_taps and layers, and refuses what would compute another function. Other sizes are known.
Status read_short_convolutions(const JsonObject& config, const FamilyTraits& traits, ModelConfig& out);

}  // namespace outrider
