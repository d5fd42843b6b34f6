#include "requests/conversation.h"

#include <fmt/format.h>

#include "base/json_text.h"
#include "requests/request_fields.h"

namespace outrider {
namespace {

using nlohmann::json;

Result<std::vector<std::string>> take_parts(const json& parts) {
  std::vector<std::string> texts;
  for (const json& part : parts) {
    const json* const type = part.is_object() ? find_field(part, "type") : nullptr;
    if (!type || *type != "text")
      return unsupported(
          fmt::format("\"messages\": a content part of type {} is not understood; parts must be {{\"type\": "
                      "\"text\", \"text\": ...}}",
                      type ? json_text(*type).substr(0, 40) : "none"));
    const json* const text = find_field(part, "text");
    if (!text || !text->is_string())
      return invalid_argument("\"messages\": a part of type \"text\" has no \"text\"");
    texts.push_back(text->get<std::string>());
  }
  return texts;
}

Result<std::vector<ChatMessage>> take_messages(const json& list) {
  constexpr const char* kForm = "\"messages\" must be a list of {role, content}";
  std::vector<ChatMessage> messages;
  if (!list.is_array() || list.empty()) return invalid_argument(kForm);
  for (const json& m : list) {
    if (!m.is_object()) return invalid_argument(kForm);
    const json *role = find_field(m, "role"), *content = find_field(m, "content"),
               *name = find_field(m, "name");
    if (!role || !role->is_string() || !content || (!content->is_string() && !content->is_array()))
      return invalid_argument(fmt::format("{}, both texts", kForm));
    if (name && !name->is_string()) return invalid_argument("\"messages\": a \"name\" must be a text");
    for (const auto& [key, value] : m.items())
      if (key != "role" && key != "content" && key != "name" && !value.is_null())
        return unsupported(fmt::format("\"messages\": \"{}\" of a message is not understood; leave it out",
                                       key.substr(0, 40)));
    ChatMessage message{role->get<std::string>(), {}};
    if (name) message.name = name->get<std::string>();
    if (content->is_string()) {
      message.content = content->get<std::string>();
    } else {
      ASSIGN_OR_RETURN(message.parts, take_parts(*content));
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

}  // namespace

Result<Conversation> take_conversation(const json& object) {
  Conversation out;
  const json* const list = find_field(object, "messages");
  if (!list) return invalid_argument("\"messages\" is missing");
  ASSIGN_OR_RETURN(out.messages, take_messages(*list));
  RETURN_IF_ERROR(take(object, "continue_final_message", out.options.continue_final_message));
  out.options.add_generation_prompt = !out.options.continue_final_message;
  RETURN_IF_ERROR(take(object, "add_generation_prompt", out.options.add_generation_prompt));
  if (const json* const variables = find_field(object, "chat_template_kwargs")) {
    if (!variables->is_object())
      return invalid_argument("\"chat_template_kwargs\" must be an object of the template's variables");
    out.options.variables = *variables;
  }
  return out;
}

}  // namespace outrider
