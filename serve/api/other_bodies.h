// Converts bodies of Anthropic's /v1/messages and OpenAI's /v1/responses to equivalent chat completions.
// Unknown fields are kept, so the check of chats refuses them by name.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"

namespace outrider {

enum class ApiKind : int;

Result<nlohmann::json> chat_of_messages(nlohmann::json body);
Result<nlohmann::json> chat_of_responses(nlohmann::json body);
// The error of such a chat, with the field names of the original body.
Status in_own_names(ApiKind kind, const Status& status);

}  // namespace outrider
