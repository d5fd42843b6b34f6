// How many numbers a model and its KV cache have, from the sizes in its config.json alone: what it takes of
// memory, and what a pass reads, is known before any weight is there.
#pragma once

#include <cstdint>

#include "model_files/model_config.h"

namespace outrider {

struct ModelSize {
  int64_t parameters = 0;  // all that its files hold, biases and norms among them
  // The part of `parameters` that belongs to routed experts, over all layers. A token uses `chosen` of
  // `experts` in each layer.
  int64_t of_experts = 0, experts = 0, chosen = 0;
  int64_t kv_numbers = 0;     // cached of a token, in all layers
  int64_t row_numbers = 0;    // the part of kv_numbers that a pass over later tokens does not read
  int64_t state_numbers = 0;  // fp32 numbers of a text's recurrent states, in all layers
  bool shares_kv = false;     // every tp_rank caches the whole latent, which is not split over heads

  // Parameters that one token uses.
  int64_t active() const {
    return parameters - of_experts + (experts > 0 ? of_experts / experts * chosen : 0);
  }
};

ModelSize size_of(const ModelConfig& config);
// The size of a single layer.
ModelSize size_of_layer(const ModelConfig& config, const LayerKind& kind);

}  // namespace outrider
