// Fields of each API about reasoning become variables of chat templates.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"

namespace outrider {

// These replace their fields by "chat_template_kwargs", whose own values stay, and "include_reasoning".
// Errors name the field in quotes.
Status take_effort(nlohmann::json& body);     // "reasoning_effort" of chats
Status take_chat_thinking(
    nlohmann::json& body);                    // "thinking" of chats, as DeepSeek's and GLM's clients send it
Status take_reasoning(nlohmann::json& body);  // "reasoning" of /v1/responses
Status take_thinking(nlohmann::json& body);  // "thinking", and the effort in "output_config", of /v1/messages

}  // namespace outrider
