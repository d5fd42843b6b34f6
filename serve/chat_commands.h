// A line of a conversation is a message, or a command that begins with a slash.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "requests/request_params.h"
#include "text/chat_template/chat_template.h"

namespace outrider {

struct ChatCommand {
  enum class Kind { kMessage, kHelp, kClear, kSystem, kAgain, kUndo, kSet, kSave, kExit };
  Kind kind = Kind::kMessage;
  std::string text;  // the message, or what follows the command
};

// An error: there is no such command, or what follows it is missing. "//..." is the message "/...".
Result<ChatCommand> parse_chat_line(std::string_view line);

// The text of /help.
std::string chat_help();

// "NAME VALUE" of /set: temperature, top-p, top-k, min-p, repetition-penalty, max-tokens or seed. Ranges are
// checked where a request is built.
Status set_chat_parameter(std::string_view assignment, RequestParams& params);

// "temperature 0.8, top-p 1, ...": what /set may change.
std::string chat_parameters(const RequestParams& params);

// The messages of a conversation as JSON, in the form that `generate --prompts` reads.
std::string conversation_json(const std::vector<ChatMessage>& messages);

}  // namespace outrider
