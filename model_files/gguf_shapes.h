// The keys of a GGUF file against the shapes of its tensors.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"
#include "model_files/gguf_architecture.h"

namespace outrider {

// An error names the key, its number, and the tensor's. A tensor that is missing is no error here.
Status check_gguf_sizes(const GgufKeys& keys);
// The same for the numbers of heads. `config`: the file's, with "head_dim".
Status check_gguf_heads(const GgufKeys& keys, const nlohmann::json& config);

}  // namespace outrider
