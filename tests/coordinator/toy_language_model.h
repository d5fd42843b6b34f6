// A Model for the production drafter that costs almost nothing: it predicts toy_next of the prefix with a
// given chance of being right. Its KV cache holds the token ids, and predictions come from the ids that the
// block tables lead to. A branch that wrote into another sequence's block, or was truncated wrongly,
// therefore gives wrong drafts.
#pragma once

#include <memory>

#include "model/model.h"

namespace outrider {

struct ToyLanguageModelOptions {
  double accuracy = 1;
  int64_t max_positions = 96;
  int64_t kv_blocks = 64;
};
std::unique_ptr<Model> make_toy_language_model(const ToyLanguageModelOptions& options);

}  // namespace outrider
