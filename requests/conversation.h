// The conversation of a request, in place of a prompt.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/chat_template/chat_template.h"

namespace outrider {

constexpr std::array<std::string_view, 4> kChatFields = {"messages", "add_generation_prompt",
                                                         "continue_final_message", "chat_template_kwargs"};

struct Conversation {
  std::vector<ChatMessage> messages;
  ChatOptions options;
};

// "messages" is a list of {role, content, name}. A content is a text or a list of parts, {"type": "text",
// "text": ...}. Errors begin with the field's name in quotes, and that of a message with its number, as
// "messages"[2], or with its entry of `names`: another body that the messages were made from.
Result<Conversation> take_conversation(const nlohmann::json& object, std::span<const std::string> names = {});

}  // namespace outrider
