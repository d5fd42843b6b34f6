// Converts bodies of Anthropic's /v1/messages and OpenAI's /v1/responses to equivalent chat completions.
// Unknown fields are kept, so the check of chats refuses them by name.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"

namespace outrider {

enum class ApiKind : int;

struct ChatBody {
  nlohmann::json body;
  std::vector<std::string> message_names;  // where each message stands in the original: "input"[2]
};

Result<ChatBody> chat_of_messages(nlohmann::json body);
Result<ChatBody> chat_of_responses(nlohmann::json body);
// The error of such a chat, with the field names of the original body.
Status in_own_names(ApiKind kind, const Status& status);

}  // namespace outrider
