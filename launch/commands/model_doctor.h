// What `outrider doctor --model` tells of a model before anything of it is loaded: family and sizes, what its
// files hold, the memory of weights and KV cache by part and by rank, and whether text and chats can be read.
#pragma once

#include <string>

#include "base/status.h"

namespace outrider {

// Lines for people. An error names the file and key that cannot be read, as a start with this model would.
Result<std::string> describe_model(const std::string& directory, int tp_size);

}  // namespace outrider
