#include "requests/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/json_file.h"
#include "base/json_text.h"
#include "base/shortened.h"
#include "requests/request_fields.h"

namespace outrider {
namespace {

using nlohmann::json;

Result<std::vector<std::string>> take_parts(const json& parts) {
  std::vector<std::string> texts;
  for (const json& part : parts) {
    const json* const type = part.is_object() ? find_field(part, "type") : nullptr;
    if (type && (*type == "image_url" || *type == "image" || *type == "input_image" ||
                 *type == "input_audio" || *type == "audio_url" || *type == "video_url" || *type == "file"))
      return unsupported(fmt::format(
          "\"messages\": a content part is of type {}, which is not read; send texts alone, as parts of the "
          "form {{\"type\": \"text\", \"text\": ...}}",
          json_text(*type)));
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

// Completes the beginning of a JSON object that was cut at a text's length limit: closes open strings and
// brackets, and drops an incomplete value. Empty: not such a beginning.
std::string completed(std::string_view cut) {
  std::string open, kept;  // brackets to close; the object up to the last position where it can be closed
  bool in_text = false;
  size_t escape = std::string_view::npos;  // position of an incomplete escape in a string
  const auto closed = [&open](std::string_view text) {
    return std::string(text) + std::string(open.rbegin(), open.rend());
  };
  for (size_t i = 0; i < cut.size(); ++i) {
    const char c = cut[i];
    if (in_text) {
      const size_t length = escape == std::string_view::npos ? 0 : i + 1 - escape;
      if (length > 0) {
        if (length == (cut[escape + 1] == 'u' ? 6 : 2)) escape = std::string_view::npos;
      } else if (c == '\\') {
        escape = i;
      } else if (c == '"') {
        in_text = false;
      }
      continue;
    }
    if (c == '"') in_text = true;
    if (c == ',') kept = closed(cut.substr(0, i));
    if (c == '}' || c == ']') {
      if (open.empty() || open.back() != c) return {};
      open.pop_back();
    }
    if (c == '{' || c == '[') {
      open += c == '{' ? '}' : ']';
      kept = closed(cut.substr(0, i + 1));
    }
  }
  const std::string whole =
      closed(std::string(in_text ? cut.substr(0, escape) : cut) + (in_text ? "\"" : ""));
  return parse_json(whole, "").ok() ? whole : kept;
}

// Arguments of a call that a client sends back. Models write none if a tool has no parameters, and cut
// arguments at a text's length limit. Arguments that cannot be completed to an object are shown as plain
// text.
Result<nlohmann::ordered_json> read_arguments(const std::string& text) {
  using nlohmann::ordered_json;
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return ordered_json::object();
  auto parsed = parse_ordered_json(text, "the arguments", {.whole_numbers_fit = true});
  if (!parsed.ok() && parsed.status().code() == StatusCode::kInvalidArgument)
    return parsed.status().in("\"messages\": \"tool_calls\"");
  if (!parsed.ok()) parsed = parse_ordered_json(completed(text), "the arguments");
  if (!parsed.ok()) return ordered_json(text);
  if (parsed->is_null()) return ordered_json::object();
  return parsed->is_object() ? std::move(*parsed) : ordered_json(text);
}

// The calls of an answer of the model, with their arguments as objects, for templates to print.
Result<nlohmann::ordered_json> take_tool_calls(const json& list) {
  using nlohmann::ordered_json;
  const Status wrong = invalid_argument(
      "\"messages\": \"tool_calls\" must be a list of {\"id\", \"type\": \"function\", \"function\": "
      "{\"name\", \"arguments\"}}, whose arguments are the text of a JSON object");
  if (!list.is_array()) return wrong;
  ordered_json calls = ordered_json::array();
  for (const json& call : list) {
    const json* const function = call.is_object() ? find_field(call, "function") : nullptr;
    const json* const name = function && function->is_object() ? find_field(*function, "name") : nullptr;
    if (!name || !name->is_string()) return wrong;
    const json* const arguments = find_field(*function, "arguments");
    ordered_json parsed = ordered_json::object();
    if (arguments && arguments->is_string()) {
      ASSIGN_OR_RETURN(parsed, read_arguments(arguments->get_ref<const std::string&>()));
    } else if (arguments && !arguments->is_object()) {
      return wrong;
    } else if (arguments) {
      parsed = *arguments;
    }
    ordered_json out;
    if (const json* const id = find_field(call, "id"); id && id->is_string()) out["id"] = *id;
    out["type"] = "function";
    out["function"] = {{"name", *name}, {"arguments", std::move(parsed)}};
    calls.push_back(std::move(out));
  }
  return calls;
}

constexpr std::array<std::string_view, 7> kOfMessages = {"role",         "content", "name", "tool_calls",
                                                         "tool_call_id", "refusal", "audio"};
constexpr std::array<const char*, 2> kThoughts = {"reasoning_content", "reasoning"};

bool is_of_messages(std::string_view key) {
  return std::find(kOfMessages.begin(), kOfMessages.end(), key) != kOfMessages.end();
}

// Fields that only answers have; clients send them back unchanged.
bool is_of_answers(std::string_view key) {
  return key == "annotations" || std::find(kThoughts.begin(), kThoughts.end(), key) != kThoughts.end();
}

// `function`: OpenAI's older name of `tool`. Templates ignore or misread roles that they do not know.
constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};

Status check_role(const json* role) {
  const std::string known = fmt::format("{}", fmt::join(kRoles, ", "));
  if (!role) return invalid_argument("\"messages\": a message has no \"role\"; roles are " + known);
  if (role->is_string() &&
      std::find(kRoles.begin(), kRoles.end(), role->get_ref<const std::string&>()) != kRoles.end())
    return {};
  return invalid_argument(
      fmt::format("\"messages\": {} is no \"role\"; roles are {}", shortened(json_text(*role), 40), known));
}

Status check_content(const std::string& role, const json* content, bool has_calls) {
  if (!content && !has_calls)
    return invalid_argument(fmt::format(
        "\"messages\": a message of the role {} has no \"content\", or null; it must be a text or a "
        "list of parts{}",
        role, role == "assistant" ? ", except beside \"tool_calls\"" : ""));
  if (content && !content->is_string() && !content->is_array())
    return invalid_argument(fmt::format(
        "\"messages\": the \"content\" of a message of the role {} must be a text or a list of parts", role));
  return {};
}

Result<ChatMessage> take_message(const json& m) {
  if (!m.is_object()) return invalid_argument("\"messages\": a message must be an object {role, content}");
  const json *role = find_field(m, "role"), *content = find_field(m, "content"),
             *name = find_field(m, "name");
  const json* const calls = find_field(m, "tool_calls");
  const bool has_calls = calls && !calls->empty();
  RETURN_IF_ERROR(check_role(role));
  RETURN_IF_ERROR(check_content(role->get_ref<const std::string&>(), content, has_calls));
  if (name && !name->is_string()) return invalid_argument("\"messages\": a \"name\" must be a text");
  const bool is_answer = *role == "assistant";
  for (const auto& [key, value] : m.items())
    if (!value.is_null() && !is_of_messages(key) && !(is_answer && is_of_answers(key)))
      return unsupported(fmt::format("\"messages\": \"{}\" of a message is not understood; leave it out",
                                     key.substr(0, 40)));
  ChatMessage message{role->get<std::string>(), {}};
  if (name) message.name = name->get<std::string>();
  // Templates may print the model's reasoning before a tool call.
  for (const char* key : kThoughts) {
    const json* const thought = find_field(m, key);
    if (!thought || !is_answer) continue;
    if (!thought->is_string())
      return invalid_argument(fmt::format("\"messages\": a \"{}\" must be a text", key));
    message.fields[key] = *thought;
  }
  if (const json* const id = find_field(m, "tool_call_id")) {
    if (!id->is_string()) return invalid_argument("\"messages\": a \"tool_call_id\" must be a text");
    message.fields["tool_call_id"] = *id;
  }
  if (has_calls) {
    ASSIGN_OR_RETURN(message.fields["tool_calls"], take_tool_calls(*calls));
  }
  if (!content) {
  } else if (content->is_string()) {
    message.content = content->get<std::string>();
  } else {
    ASSIGN_OR_RETURN(message.parts, take_parts(*content));
  }
  return message;
}

// The error with the name of the message in place of "messages".
Status named(const Status& status, std::string_view name) {
  constexpr std::string_view kField = "\"messages\"";
  std::string text = status.message();
  if (text.starts_with(kField)) text.replace(0, kField.size(), name);
  return {status.code(), std::move(text)};
}

Result<std::vector<ChatMessage>> take_messages(const json& list, std::span<const std::string> names) {
  std::vector<ChatMessage> messages;
  if (!list.is_array()) return invalid_argument("\"messages\" must be a list of {role, content}");
  if (list.empty()) return invalid_argument("\"messages\" is empty; send at least one message");
  for (size_t i = 0; i < list.size(); ++i) {
    auto message = take_message(list[i]);
    if (!message.ok())
      return named(message.status(), i < names.size() ? names[i] : fmt::format("\"messages\"[{}]", i));
    messages.push_back(std::move(message).value());
  }
  return messages;
}

}  // namespace

Result<Conversation> take_conversation(const json& object, std::span<const std::string> names) {
  Conversation out;
  const json* const list = find_field(object, "messages");
  if (!list) return invalid_argument("\"messages\" is missing");
  ASSIGN_OR_RETURN(out.messages, take_messages(*list, names));
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
