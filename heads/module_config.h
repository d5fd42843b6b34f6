// config.json of a module of multi-token prediction: of its own, or the target's whose files it is in.
#pragma once

#include "heads/head_config.h"
#include "transformer/files/json_file.h"

namespace outrider {

// Fills in its layer. What of a layer no module is read with here is refused by name.
Status read_module_config(const JsonObject& config, HeadConfig& out);

}  // namespace outrider
