// Bodies of Anthropic's /v1/messages and OpenAI's /v1/responses as those of chat completions that ask for the
// same. What these do not know stays in, and is refused there by name.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"

namespace outrider {

enum class ApiKind : int;

Result<nlohmann::json> chat_of_messages(nlohmann::json body);
Result<nlohmann::json> chat_of_responses(nlohmann::json body);
// What is wrong with such a chat, with the names that fields have in the body it was made of.
Status in_own_names(ApiKind kind, const Status& status);

}  // namespace outrider
