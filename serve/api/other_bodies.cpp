#include "serve/api/other_bodies.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "requests/request_fields.h"

namespace outrider {
namespace {

using nlohmann::json;

void rename(json& body, const char* from, const char* to) {
  if (const json* const value = find_field(body, from)) body[to] = *value;
  body.erase(from);
}

// Takes the field out where its value asks for nothing; else it stays, to be refused.
void drop_neutral(json& body, const char* key, const json& values) {
  const json* const value = find_field(body, key);
  if (value && std::find(values.begin(), values.end(), *value) != values.end()) body.erase(key);
}

Status refuse_choices(const json& body) {
  for (const char* key : {"n", "logprobs", "prompt_logprobs"})
    if (find_field(body, key))
      return unsupported(fmt::format("\"{}\" is not of this endpoint; leave it out", key));
  return {};
}

// Texts of OpenAI's newer items under the name that parts of chats have.
json chat_content(const json& content) {
  if (!content.is_array()) return content;
  json parts = content;
  for (json& part : parts)
    if (part.is_object() &&
        (part.value("type", "") == "input_text" || part.value("type", "") == "output_text"))
      part["type"] = "text";
  return parts;
}

Result<json> messages_of_input(const json& input) {
  if (input.is_string()) return json::array({{{"role", "user"}, {"content", input}}});
  const Status wrong = invalid_argument("\"input\" must be a text or a list of messages {role, content}");
  if (!input.is_array() || input.empty()) return wrong;
  json messages = json::array();
  for (const json& item : input) {
    if (!item.is_object() || !item.contains("role") || !item.contains("content")) return wrong;
    if (const json* const type = find_field(item, "type"); type && *type != "message")
      return unsupported("\"input\": items other than messages are not supported");
    json role = item["role"];
    if (role == "developer") role = "system";
    messages.push_back({{"role", std::move(role)}, {"content", chat_content(item["content"])}});
  }
  return messages;
}

Status put_first(json& messages, const json* system) {
  if (!system) return {};
  if (!messages.is_array()) return {};  // refused later
  messages.insert(messages.begin(), json{{"role", "system"}, {"content", *system}});
  return {};
}

}  // namespace

Result<json> chat_of_messages(json body) {
  if (!find_field(body, "max_tokens")) return invalid_argument("\"max_tokens\" is missing");
  RETURN_IF_ERROR(refuse_choices(body));
  if (find_field(body, "messages")) RETURN_IF_ERROR(put_first(body["messages"], find_field(body, "system")));
  body.erase("system");
  rename(body, "stop_sequences", "stop");
  drop_neutral(body, "thinking", json::array({{{"type", "disabled"}}}));
  drop_neutral(body, "tool_choice", json::array({{{"type", "auto"}}, {{"type", "none"}}}));
  return body;
}

Result<json> chat_of_responses(json body) {
  RETURN_IF_ERROR(refuse_choices(body));
  const json* const input = find_field(body, "input");
  if (!input) return invalid_argument("\"input\" is missing");
  ASSIGN_OR_RETURN(json messages, messages_of_input(*input));
  RETURN_IF_ERROR(put_first(messages, find_field(body, "instructions")));
  body.erase("input");
  body.erase("instructions");
  body["messages"] = std::move(messages);
  rename(body, "max_output_tokens", "max_completion_tokens");
  drop_neutral(body, "text", json::array({json::object(), {{"format", {{"type", "text"}}}}}));
  drop_neutral(body, "truncation", {"disabled", "auto"});
  drop_neutral(body, "include", json::array({json::array()}));
  drop_neutral(body, "background", {false});
  drop_neutral(body, "reasoning", json::array({json::object()}));
  return body;
}

}  // namespace outrider
