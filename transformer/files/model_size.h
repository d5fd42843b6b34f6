// How many numbers a model and its KV cache have, from the sizes in its config.json alone: what it takes of
// memory, and what a pass reads, is known before any weight is there.
#pragma once

#include <cstdint>

#include "transformer/files/model_config.h"

namespace outrider {

struct ModelSize {
  int64_t parameters = 0;  // all that its files hold, biases and norms among them
  // Of them those of experts that a token is sent to, of all layers; it is sent to `chosen` of `experts` in
  // each.
  int64_t of_experts = 0, experts = 0, chosen = 0;
  int64_t kv_numbers = 0;  // cached of a token, in all layers
  bool shares_kv = false;  // every tp_rank caches all of them: a latent is cut among no heads

  // What a token goes through.
  int64_t active() const {
    return parameters - of_experts + (experts > 0 ? of_experts / experts * chosen : 0);
  }
};

ModelSize size_of(const ModelConfig& config);
// Of one layer by itself.
ModelSize size_of_layer(const ModelConfig& config, bool has_experts);

}  // namespace outrider
