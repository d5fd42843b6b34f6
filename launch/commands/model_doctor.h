// `outrider doctor --model` describes a model before it is loaded: family and sizes, contents of its files,
// memory of weights and KV cache by part and by rank, and whether text and chats can be read.
#pragma once

#include <string>

#include "base/status.h"

namespace outrider {

// Lines for people. An error names the file and key that cannot be read, as a start with this model would.
Result<std::string> describe_model(const std::string& directory, int tp_size);

}  // namespace outrider
