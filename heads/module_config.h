// config.json of a module of multi-token prediction: of its own, or the target's whose files it is in.
#pragma once

#include "base/json_file.h"
#include "heads/head_config.h"

namespace outrider {

// Fills in its layer. What of a layer no module is read with here is refused by name.
Status read_module_config(const JsonObject& config, HeadConfig& out);

}  // namespace outrider
