// A Model for the production drafter that costs nothing: it predicts toy_next of the prefix, right with a
// given chance. Its KV cache holds the token ids themselves and predictions are made from what the block
// tables lead to, so a branch that wrote into another's block, or was cut wrongly, drafts nonsense.
#pragma once

#include <memory>

#include "transformer/model/model.h"

namespace outrider {

struct ToyLanguageModelOptions {
  double accuracy = 1;
  int64_t max_positions = 96;
  int64_t kv_blocks = 64;
};
std::unique_ptr<Model> make_toy_language_model(const ToyLanguageModelOptions& options);

}  // namespace outrider
