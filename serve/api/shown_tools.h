// Tools in a conversation, for its chat template. Most templates read the variable "tools"; some published
// ones have another place for them.
#pragma once

#include <string_view>

#include "requests/conversation.h"
#include "serve/api/tool_format.h"

namespace outrider {

// Whether a template reads a variable, and not only such as begin or end with its name.
bool reads_variable(std::string_view chat_template, std::string_view variable);

Status show_tools(const ToolUse& tools, std::string_view chat_template, Conversation& chat);

}  // namespace outrider
