#include "serve/api/structure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/json_text.h"
#include "requests/asked_form.h"
#include "serve/api/request.h"

namespace outrider {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// In addition to kFormFields.
constexpr std::array<const char*, 4> kStructureFields = {"tools", "tool_choice", "text", "output_config"};
constexpr size_t kMaxTools = 128;

template <class Json>
const Json* field(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

std::string text_or(const ordered_json& object, const char* key, std::string otherwise = {}) {
  const ordered_json* const at = field(object, key);
  return at && at->is_string() ? at->get<std::string>() : otherwise;
}

// In the format of chats and templates: {"type": "function", "function": {"name", ...}}.
Result<ordered_json> chat_tool(ApiKind kind, const ordered_json& tool) {
  if (!tool.is_object()) return invalid_argument("\"tools\" must be a list of objects");
  if (kind != ApiKind::kMessages && text_or(tool, "type") != "function")
    return unsupported("\"tools\": only those of type \"function\" are supported");
  if (kind == ApiKind::kMessages && text_or(tool, "type", "custom") != "custom")
    return unsupported("\"tools\": only those of type \"custom\" are supported");
  if (kind == ApiKind::kChat) return tool;
  ordered_json function = ordered_json::object();
  for (const char* key : {"name", "description"})
    if (const ordered_json* const value = field(tool, key)) function[key] = *value;
  const char* const schema = kind == ApiKind::kMessages ? "input_schema" : "parameters";
  if (const ordered_json* const value = field(tool, schema)) function["parameters"] = *value;
  if (const ordered_json* const value = field(tool, "strict")) function["strict"] = *value;
  return ordered_json{{"type", "function"}, {"function", std::move(function)}};
}

Result<Tool> read_tool(const ordered_json& definition) {
  const ordered_json* const function = field(definition, "function");
  Tool tool{.name = function ? text_or(*function, "name") : "", .parameters = {}, .strict = false};
  const auto fits = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  };
  if (tool.name.empty() || tool.name.size() > 64 || !std::all_of(tool.name.begin(), tool.name.end(), fits))
    return invalid_argument(
        "\"tools\": each needs a \"name\" of 1 to 64 letters, digits, '_', '-' and '.', in its \"function\"");
  const ordered_json* const parameters = field(*function, "parameters");
  if (parameters && !parameters->is_object())
    return invalid_argument(
        fmt::format("\"tools\": the \"parameters\" of {} must be a JSON schema", tool.name));
  tool.parameters =
      parameters ? *parameters : ordered_json{{"type", "object"}, {"properties", ordered_json::object()}};
  const ordered_json* const strict = field(*function, "strict");
  if (strict && !strict->is_boolean())
    return invalid_argument(fmt::format("\"tools\": \"strict\" of {} must be true or false", tool.name));
  tool.strict = strict && strict->get<bool>();
  return tool;
}

// "none", "auto", "required" ("any"), or a tool by its name, in the format of any endpoint.
Status read_choice(const ordered_json& choice, ToolUse& use) {
  const std::string type = choice.is_string() ? choice.get<std::string>() : text_or(choice, "type");
  if (type == "none") return use.choice = ToolUse::Choice::kNone, Status();
  if (type == "auto") return use.choice = ToolUse::Choice::kAuto, Status();
  use.choice = ToolUse::Choice::kRequired;
  if (type == "required" || type == "any") return {};
  if (type != "function" && type != "tool")
    return invalid_argument(
        "\"tool_choice\" must be \"none\", \"auto\", \"required\", or {\"type\": \"function\", \"function\": "
        "{\"name\": ...}}");
  const ordered_json* const function = field(choice, "function");
  use.named = text_or(function ? *function : choice, "name");
  const auto is_named = [&](const Tool& tool) { return tool.name == use.named; };
  if (std::none_of(use.tools.begin(), use.tools.end(), is_named))
    return invalid_argument(fmt::format("\"tool_choice\" names {}, which is none of the \"tools\"",
                                        use.named.empty() ? "nothing" : use.named.substr(0, 64)));
  return {};
}

Result<std::optional<ToolUse>> read_tools(ApiKind kind, const ordered_json& body) {
  using Used = std::optional<ToolUse>;
  const ordered_json *const list = field(body, "tools"), *const choice = field(body, "tool_choice");
  if (list && !list->is_array()) return invalid_argument("\"tools\" must be a list of objects");
  if (!list || list->empty()) {
    const std::string type = !choice               ? "auto"
                             : choice->is_string() ? choice->get<std::string>()
                                                   : text_or(*choice, "type");
    if (type == "auto" || type == "none") return Used();
    return invalid_argument("\"tool_choice\" asks for a call, and there are no \"tools\"");
  }
  if (kind == ApiKind::kCompletion)
    return unsupported("\"tools\" are for chats; send them to /v1/chat/completions");
  if (list->size() > kMaxTools)
    return invalid_argument(fmt::format("\"tools\" is a list of {}; at most {}", list->size(), kMaxTools));
  ToolUse use;
  use.definitions = ordered_json::array();
  for (const ordered_json& item : *list) {
    ASSIGN_OR_RETURN(ordered_json definition, chat_tool(kind, item));
    ASSIGN_OR_RETURN(Tool tool, read_tool(definition));
    for (const Tool& other : use.tools)
      if (other.name == tool.name)
        return invalid_argument(
            fmt::format("\"tools\": two have the \"name\" {}; each needs a name of its own", tool.name));
    use.tools.push_back(std::move(tool));
    use.definitions.push_back(std::move(definition));
  }
  if (choice) RETURN_IF_ERROR(read_choice(*choice, use));
  if (const ordered_json* const parallel = field(body, "parallel_tool_calls"))
    use.is_parallel = *parallel != false;
  if (choice && choice->is_object() && field(*choice, "disable_parallel_tool_use"))
    use.is_parallel = *field(*choice, "disable_parallel_tool_use") == false;
  if (use.choice == ToolUse::Choice::kNone) return Used();
  return Used(std::move(use));
}

}  // namespace

bool asks_for_structure(const json& body) {
  const auto asks = [&](std::string_view key) { return field(body, key) != nullptr; };
  return std::any_of(kFormFields.begin(), kFormFields.end(), asks) ||
         std::any_of(kStructureFields.begin(), kStructureFields.end(), asks);
}

Result<Structure> read_structure(ApiKind kind, const ordered_json& body) {
  Structure out;
  const auto add_format = [&](const char* holder) -> Status {
    const ordered_json* const object = field(body, holder);
    const ordered_json* const format = object ? field(*object, "format") : nullptr;
    if (!format) return {};
    ASSIGN_OR_RETURN(out.grammar, read_format(*format, holder, SchemaPlace::kBesideType));
    return {};
  };
  if (kind == ApiKind::kResponses) RETURN_IF_ERROR(add_format("text"));
  if (kind == ApiKind::kMessages) RETURN_IF_ERROR(add_format("output_config"));
  ASSIGN_OR_RETURN(auto form, take_form(body));
  RETURN_IF_ERROR(add_form(std::move(form), out.grammar));
  ASSIGN_OR_RETURN(out.tools, read_tools(kind, body));
  return out;
}

void drop_structure(ApiKind kind, json& body) {
  const auto drop_format = [&](const char* key) {
    if (const auto at = body.find(key); at != body.end() && at->is_object()) {
      at->erase("format");
      if (at->empty()) body.erase(at);
    }
  };
  if (kind == ApiKind::kResponses) drop_format("text");
  if (kind == ApiKind::kMessages) drop_format("output_config");
  for (const std::string_view key : kFormFields) body.erase(std::string(key));
  for (const char* key : {"tools", "tool_choice"}) body.erase(key);
}

}  // namespace outrider
