#include "serve/api/shown_tools.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string>

#include "text/chat_template/chat_template.h"

namespace outrider {
namespace {

using nlohmann::ordered_json;

// In the words of DeepSeek-V3.1's model card (MIT), whose template writes calls and shows no tools.
constexpr const char* kDeepSeekTools =
    "## Tools\nYou have access to the following tools:\n"
    "{% for tool in tools %}{% set f = tool.function %}{{ '\n### ' + f.name }}\n"
    "Description: {{ f.description if f.description is defined }}\n\n"
    "Parameters: {{ (f.parameters if f.parameters is defined else {}) | tojson }}\n{% endfor %}{{ '\n' }}"
    "IMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<"
    "｜tool▁call▁end｜>"
    "{{ '{additional_tool_calls}' }}<｜tool▁calls▁end｜>\n\nWhere:\n"
    "- `tool_call_name` must be an exact match to one of the available tools\n"
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
    "- For multiple tool calls, chain them directly without separators or spaces";
// Phi-4-mini reads a text with the functions from its system message.
constexpr const char* kPhiTools =
    "[{% for tool in tools %}{{ tool.function | tojson }}{{ ', ' if not loop.last }}{% endfor %}]";

Result<std::string> described(const ToolUse& tools, const char* in_words) {
  ASSIGN_OR_RETURN(const auto words, parse_chat_template(in_words, "", ""));
  return words->render({ChatMessage{.role = "user", .content = ""}}, {.tools = tools.definitions});
}

// Behind the system messages at the beginning.
void add_system_message(std::string content, std::vector<ChatMessage>& messages) {
  const auto is_system = [](const ChatMessage& message) { return message.role == "system"; };
  messages.insert(std::find_if_not(messages.begin(), messages.end(), is_system),
                  ChatMessage{.role = "system", .content = std::move(content)});
}

}  // namespace

bool reads_variable(std::string_view chat_template, std::string_view variable) {
  const auto is_of_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (size_t at = 0; (at = chat_template.find(variable, at)) != std::string_view::npos; ++at) {
    const size_t end = at + variable.size();
    if ((at == 0 || !is_of_name(chat_template[at - 1])) &&
        (end == chat_template.size() || !is_of_name(chat_template[end])))
      return true;
  }
  return false;
}

Status show_tools(const ToolUse& tools, std::string_view chat_template, Conversation& chat) {
  chat.options.tools = tools.definitions;
  ASSIGN_OR_RETURN(const ToolFormat format, tool_format_of(chat_template));
  if (format == ToolFormat::kDeepSeek && !reads_variable(chat_template, "tools")) {
    ASSIGN_OR_RETURN(std::string text, described(tools, kDeepSeekTools));
    add_system_message(std::move(text), chat.messages);
  }
  if (format != ToolFormat::kPhi) return {};
  ASSIGN_OR_RETURN(std::string text, described(tools, kPhiTools));
  if (chat.messages.empty() || chat.messages.front().role != "system")
    add_system_message("You are a helpful assistant with some tools.", chat.messages);
  chat.messages.front().fields["tools"] = std::move(text);
  return {};
}

}  // namespace outrider
