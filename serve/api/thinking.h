// What requests ask about reasoning, in the fields of each API, as variables of chat templates.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"

namespace outrider {

// Replaces its field by "chat_template_kwargs", whose own values stay, and "include_reasoning". Errors
// name the field in quotes.
Status take_thinking(nlohmann::json& body);  // "thinking" of /v1/messages

}  // namespace outrider
