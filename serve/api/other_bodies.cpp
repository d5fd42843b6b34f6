#include "serve/api/other_bodies.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/json_text.h"
#include "requests/request_fields.h"
#include "serve/api/request.h"
#include "serve/api/thinking.h"

namespace outrider {
namespace {

using nlohmann::json;

struct Renamed {
  const char *own, *of_chats;
};
constexpr Renamed kOfMessages[] = {{"stop_sequences", "stop"}};
constexpr Renamed kOfResponses[] = {{"max_output_tokens", "max_completion_tokens"}, {"input", "messages"}};

void rename(json& body, const char* from, const char* to) {
  if (const json* const value = find_field(body, from)) body[to] = *value;
  body.erase(from);
}

// Removes a field that may only have values without an effect; refuses other values.
Status drop_neutral(json& body, const char* key, const json& values) {
  const json* const value = find_field(body, key);
  if (!value) return {};
  if (std::find(values.begin(), values.end(), *value) == values.end())
    return unsupported(
        fmt::format("\"{}\" is not supported; leave it out, or send {}", key, json_text(values.front())));
  body.erase(key);
  return {};
}

// Refuses the names that chats have for a field of this endpoint, which would be confused with it.
Status refuse_others(const json& body, std::span<const Renamed> names) {
  for (const Renamed& name : names)
    if (find_field(body, name.of_chats))
      return invalid_argument(
          fmt::format("there is no key \"{}\" here; did you mean \"{}\"?", name.of_chats, name.own));
  return {};
}

Status refuse_choices(const json& body) {
  for (const char* key : {"n", "logprobs", "prompt_logprobs"})
    if (find_field(body, key))
      return unsupported(fmt::format("\"{}\" is not of this endpoint; leave it out", key));
  return {};
}

// Empty if the type is not a string.
std::string type_of(const json& item) {
  const json* const type = item.is_object() ? find_field(item, "type") : nullptr;
  return type && type->is_string() ? type->get<std::string>() : std::string();
}

// Texts of OpenAI's newer items, under the names of chat parts.
json chat_content(const json& content) {
  if (!content.is_array()) return content;
  json parts = content;
  for (json& part : parts)
    if (const std::string type = type_of(part); type == "input_text" || type == "output_text")
      part["type"] = "text";
  return parts;
}

// A call of the model from an earlier answer, and the result of a call.
Result<json> message_of_call(const json& item, bool is_output, const std::string& at) {
  const char* const what = is_output ? "output" : "arguments";
  if (!item.contains("call_id") || !item.contains(what) || (!is_output && !item.contains("name")))
    return invalid_argument(at +
                            ": a function_call needs \"call_id\", \"name\" and \"arguments\", a "
                            "function_call_output \"call_id\" and \"output\"");
  if (is_output)
    return json{
        {"role", "tool"}, {"tool_call_id", item["call_id"]}, {"content", chat_content(item["output"])}};
  const json call{{"id", item["call_id"]},
                  {"type", "function"},
                  {"function", {{"name", item["name"]}, {"arguments", item["arguments"]}}}};
  return json{{"role", "assistant"}, {"tool_calls", json::array({call})}};
}

// The thoughts of an item of reasoning; without them, their summary.
Result<std::string> thoughts_of(const json& item, const std::string& at) {
  std::string text;
  for (const char* key : {"content", "summary"}) {
    const json* const parts = find_field(item, key);
    if (!parts || !text.empty()) continue;
    const auto has_text = [](const json& part) {
      return part.is_object() && part.contains("text") && part["text"].is_string();
    };
    if (!parts->is_array() || !std::all_of(parts->begin(), parts->end(), has_text))
      return invalid_argument(fmt::format(
          "{}: the \"{}\" of a reasoning item must be a list of {{\"type\", \"text\"}}", at, key));
    for (const json& part : *parts) text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

// Messages, each with its name for errors.
struct NamedMessages {
  json list = json::array();
  std::vector<std::string> names;
  std::string open_thoughts = {};

  // Thoughts are of the model's next message.
  void add(json message, std::string name) {
    const std::string thoughts = std::exchange(open_thoughts, {});
    if (!thoughts.empty() && message.is_object() && message.value("role", json()) == "assistant")
      message["reasoning_content"] = thoughts;
    list.push_back(std::move(message));
    names.push_back(std::move(name));
  }
  void put_first(const json* content, std::string name) {
    if (!content) return;
    list.insert(list.begin(), json{{"role", "system"}, {"content", *content}});
    names.insert(names.begin(), std::move(name));
  }
};

Result<NamedMessages> messages_of_input(const json& input) {
  NamedMessages out;
  if (input.is_string()) {
    out.add({{"role", "user"}, {"content", input}}, "\"input\"");
    return out;
  }
  if (!input.is_array())
    return invalid_argument("\"input\" must be a text or a list of messages {role, content}");
  if (input.empty()) return invalid_argument("\"input\" is empty; send a text, or at least one message");
  json& messages = out.list;
  size_t first_call = 0;  // of the calls that form one message
  for (size_t i = 0; i < input.size(); ++i) {
    const json& item = input[i];
    const std::string at = fmt::format("\"input\"[{}]", i);
    const std::string kind = type_of(item);
    if (kind == "function_call" || kind == "function_call_output") {
      ASSIGN_OR_RETURN(json message, message_of_call(item, kind == "function_call_output", at));
      const bool joins = message.contains("tool_calls") && !messages.empty() && out.open_thoughts.empty() &&
                         messages.back().value("role", json()) == "assistant" &&
                         messages.back().contains("tool_calls");
      if (joins) {
        messages.back()["tool_calls"].push_back(message["tool_calls"][0]);
        out.names.back() = fmt::format("\"input\"[{} to {}]", first_call, i);
      } else {
        out.add(std::move(message), at);
        first_call = i;
      }
      continue;
    }
    if (kind == "reasoning") {
      ASSIGN_OR_RETURN(const std::string thoughts, thoughts_of(item, at));
      out.open_thoughts += thoughts;
      continue;
    }
    if (!item.is_object() || !item.contains("role") || !item.contains("content"))
      return invalid_argument(at + " must be a message {role, content}");
    if (const json* const type = find_field(item, "type"); type && *type != "message")
      return unsupported(at + ": items other than messages are not supported");
    json role = item["role"];
    if (role == "developer") role = "system";
    out.add({{"role", std::move(role)}, {"content", chat_content(item["content"])}}, at);
  }
  return out;
}

// Anthropic's blocks of calls and of their results become messages of their own, as in chats.
Result<NamedMessages> with_calls_apart(const json& messages) {
  NamedMessages out;
  for (size_t i = 0; i < messages.size(); ++i) {
    const json& message = messages[i];
    const std::string at = fmt::format("\"messages\"[{}]", i);
    const json* const content = message.is_object() ? find_field(message, "content") : nullptr;
    if (!content || !content->is_array()) {
      out.add(message, at);
      continue;
    }
    json rest = message;
    rest["content"] = json::array();
    json calls = json::array();
    std::string thoughts;
    for (const json& block : *content) {
      const std::string type = type_of(block);
      if (type == "tool_use") {
        if (!block.contains("id") || !block.contains("name") || !block.contains("input"))
          return invalid_argument(at + ": a tool_use needs \"id\", \"name\" and \"input\"");
        calls.push_back({{"id", block["id"]},
                         {"type", "function"},
                         {"function", {{"name", block["name"]}, {"arguments", json_text(block["input"])}}}});
      } else if (type == "tool_result") {
        if (!block.contains("tool_use_id"))
          return invalid_argument(at + ": a tool_result needs \"tool_use_id\"");
        out.add({{"role", "tool"},
                 {"tool_call_id", block["tool_use_id"]},
                 {"content", block.contains("content") ? block["content"] : json("")}},
                at);
      } else if (type == "thinking") {
        if (!block.contains("thinking") || !block["thinking"].is_string())
          return invalid_argument(at + ": a block of thinking needs \"thinking\", a text");
        thoughts += block["thinking"].get_ref<const std::string&>();
      } else if (type != "redacted_thinking") {
        rest["content"].push_back(block);
      }
    }
    if (!thoughts.empty()) rest["reasoning_content"] = thoughts;
    if (!calls.empty()) rest["tool_calls"] = calls;
    if (rest["content"].empty() && calls.empty() && !content->empty() && thoughts.empty()) continue;
    if (rest["content"].empty() && !calls.empty()) rest.erase("content");
    out.add(std::move(rest), at);
  }
  return out;
}

}  // namespace

Result<ChatBody> chat_of_messages(json body) {
  if (!find_field(body, "max_tokens")) return invalid_argument("\"max_tokens\" is missing");
  RETURN_IF_ERROR(refuse_choices(body));
  RETURN_IF_ERROR(refuse_others(body, kOfMessages));
  std::vector<std::string> names;
  // Others are refused later.
  if (const json* const list = find_field(body, "messages"); list && list->is_array() && !list->empty()) {
    ASSIGN_OR_RETURN(NamedMessages messages, with_calls_apart(*list));
    messages.put_first(find_field(body, "system"), "\"system\"");
    body["messages"] = std::move(messages.list);
    names = std::move(messages.names);
  }
  body.erase("system");
  rename(body, "stop_sequences", "stop");
  RETURN_IF_ERROR(take_thinking(body));
  return ChatBody{std::move(body), std::move(names)};
}

Result<ChatBody> chat_of_responses(json body) {
  RETURN_IF_ERROR(refuse_choices(body));
  RETURN_IF_ERROR(refuse_others(body, kOfResponses));
  const json* const input = find_field(body, "input");
  if (!input) return invalid_argument("\"input\" is missing");
  ASSIGN_OR_RETURN(NamedMessages messages, messages_of_input(*input));
  messages.put_first(find_field(body, "instructions"), "\"instructions\"");
  body.erase("input");
  body.erase("instructions");
  body["messages"] = std::move(messages.list);
  rename(body, "max_output_tokens", "max_completion_tokens");
  RETURN_IF_ERROR(
      drop_neutral(body, "text", json::array({json::object(), {{"format", {{"type", "text"}}}}})));
  RETURN_IF_ERROR(drop_neutral(body, "truncation", {"disabled"}));
  // Items of reasoning have a field for the encrypted form, which is null.
  RETURN_IF_ERROR(drop_neutral(body, "include",
                               json::array({json::array(), json::array({"reasoning.encrypted_content"})})));
  RETURN_IF_ERROR(drop_neutral(body, "background", {false}));
  RETURN_IF_ERROR(take_reasoning(body));
  return ChatBody{std::move(body), std::move(messages.names)};
}

Status in_own_names(ApiKind kind, const Status& status) {
  std::span<const Renamed> names;
  if (kind == ApiKind::kMessages) names = kOfMessages;
  if (kind == ApiKind::kResponses) names = kOfResponses;
  std::string message = status.message();
  for (const Renamed& name : names) {
    const std::string from = fmt::format("\"{}\"", name.of_chats), to = fmt::format("\"{}\"", name.own);
    for (size_t at = message.find(from); at != std::string::npos; at = message.find(from, at + to.size()))
      message.replace(at, from.size(), to);
  }
  return {status.code(), std::move(message)};
}

}  // namespace outrider
