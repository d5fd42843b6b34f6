#include "serve/api/structure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/json_text.h"
#include "serve/api/request.h"

namespace outrider {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::array<const char*, 10> kStructureFields = {
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "tools",           "tool_choice",        "text",        "output_config"};
constexpr size_t kMostTools = 128;

template <class Json>
const Json* field(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

Status must(const std::string& name, const char* what) {
  return invalid_argument(fmt::format("\"{}\" must be {}", name, what));
}

std::string text_or(const ordered_json& object, const char* key, std::string otherwise = {}) {
  const ordered_json* const at = field(object, key);
  return at && at->is_string() ? at->get<std::string>() : otherwise;
}

AskedGrammar json_of(const ordered_json& schema, const char* name) {
  return {
      .spec = {.kind = GrammarSpec::Kind::kJson, .text = json_text(with_fixed_blanks(schema)), .choices = {}},
      .field = name};
}

Result<AskedGrammar> read_schema(const ordered_json* schema, const char* name) {
  if (!schema) return must(name, "an object with a \"schema\"");
  if (!schema->is_object() && !schema->is_boolean()) return must(name, "an object with a JSON schema");
  return json_of(*schema, name);
}

// {"type": ...} of chats and completions; where OpenAI's newer endpoint has "text": {"format": ...}, and
// Anthropic's "output_config": {"format": ...}, the schema stands beside the type.
Result<std::optional<AskedGrammar>> read_format(const ordered_json& format, const char* name,
                                                bool is_nested) {
  using Asked = std::optional<AskedGrammar>;
  const std::string type = text_or(format, "type");
  if (type == "text") return Asked();
  if (type == "json_object") return Asked(json_of({{"type", "object"}}, name));
  if (type != "json_schema")
    return invalid_argument(
        fmt::format("\"{}\": its \"type\" must be \"text\", \"json_object\" or \"json_schema\"", name));
  const ordered_json* const holder = is_nested ? field(format, "json_schema") : &format;
  const ordered_json* schema = holder ? field(*holder, "schema") : nullptr;
  ASSIGN_OR_RETURN(AskedGrammar asked, read_schema(schema, name));
  return Asked(std::move(asked));
}

Result<AskedGrammar> read_choices(const ordered_json& list, const char* name) {
  AskedGrammar asked{.spec = {.kind = GrammarSpec::Kind::kChoice, .text = {}, .choices = {}}, .field = name};
  if (!list.is_array()) return must(name, "a list of texts");
  for (const ordered_json& item : list) {
    if (!item.is_string()) return must(name, "a list of texts");
    asked.spec.choices.push_back(item.get<std::string>());
  }
  return asked;
}

Result<AskedGrammar> read_text(const ordered_json& text, GrammarSpec::Kind kind, const char* name) {
  if (!text.is_string() || text.get_ref<const std::string&>().empty()) return must(name, "a text");
  return AskedGrammar{.spec = {.kind = kind, .text = text.get<std::string>(), .choices = {}}, .field = name};
}

// A schema, as an object or as its text.
Result<AskedGrammar> read_json(const ordered_json& value, const char* name) {
  if (!value.is_string()) return read_schema(&value, name);
  const auto schema = ordered_json::parse(value.get_ref<const std::string&>(), nullptr, false);
  if (schema.is_object()) return json_of(schema, name);
  return read_text(value, GrammarSpec::Kind::kJson, name);
}

// vLLM's field.
Result<std::optional<AskedGrammar>> read_structured_outputs(const ordered_json& object) {
  constexpr const char* kName = "structured_outputs";
  if (!object.is_object()) return must(kName, "an object");
  std::optional<AskedGrammar> asked;
  for (const auto& [key, value] : object.items()) {
    if (value.is_null() || value == false) continue;
    Result<AskedGrammar> one = unsupported(fmt::format(
        "\"{}\": \"{}\" is not supported; send \"json\", \"json_object\", \"regex\", \"choice\" or "
        "\"grammar\"",
        kName, key.substr(0, 40)));
    if (key == "json") one = read_json(value, kName);
    if (key == "json_object" && value == true) one = json_of({{"type", "object"}}, kName);
    if (key == "regex") one = read_text(value, GrammarSpec::Kind::kRegex, kName);
    if (key == "grammar") one = read_text(value, GrammarSpec::Kind::kLark, kName);
    if (key == "choice") one = read_choices(value, kName);
    if (!one.ok()) return one.status();
    if (asked) return invalid_argument(fmt::format("\"{}\" asks for two forms at once; send one", kName));
    asked = std::move(*one);
  }
  return asked;
}

Status add(std::optional<AskedGrammar> more, Structure& to) {
  if (!more) return {};
  if (to.grammar)
    return invalid_argument(fmt::format("\"{}\" and \"{}\" both say what the text looks like; send one",
                                        to.grammar->field, more->field));
  to.grammar = std::move(more);
  return {};
}

// ---- tools ----------------------------------------------------------------------------------------------

// In the shape of chats, which is that of templates: {"type": "function", "function": {"name", ...}}.
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

// "none", "auto", "required" ("any"), or a tool by its name, in the shape of any kind.
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
  if (!list || list->empty()) {
    const std::string type = !choice               ? "auto"
                             : choice->is_string() ? choice->get<std::string>()
                                                   : text_or(*choice, "type");
    if (type == "auto" || type == "none") return Used();
    return invalid_argument("\"tool_choice\" asks for a call, and there are no \"tools\"");
  }
  if (kind == ApiKind::kCompletion)
    return unsupported("\"tools\" are for chats; send them to /v1/chat/completions");
  if (!list->is_array()) return invalid_argument("\"tools\" must be a list of objects");
  if (list->size() > kMostTools)
    return invalid_argument(fmt::format("\"tools\" is a list of {}; at most {}", list->size(), kMostTools));
  ToolUse use;
  use.definitions = ordered_json::array();
  for (const ordered_json& item : *list) {
    ASSIGN_OR_RETURN(ordered_json definition, chat_tool(kind, item));
    ASSIGN_OR_RETURN(Tool tool, read_tool(definition));
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
  return std::any_of(kStructureFields.begin(), kStructureFields.end(),
                     [&](const char* key) { return field(body, key) != nullptr; });
}

Result<Structure> read_structure(ApiKind kind, const ordered_json& body) {
  Structure out;
  const auto add_format = [&](const ordered_json* format, const char* name, bool is_nested) -> Status {
    if (!format) return {};
    ASSIGN_OR_RETURN(auto asked, read_format(*format, name, is_nested));
    return add(std::move(asked), out);
  };
  if (const ordered_json* const text = field(body, "text"); text && kind == ApiKind::kResponses)
    RETURN_IF_ERROR(add_format(field(*text, "format"), "text", false));
  if (const ordered_json* const config = field(body, "output_config"); config && kind == ApiKind::kMessages)
    RETURN_IF_ERROR(add_format(field(*config, "format"), "output_config", false));
  RETURN_IF_ERROR(add_format(field(body, "response_format"), "response_format", true));
  if (const ordered_json* const asked = field(body, "structured_outputs")) {
    ASSIGN_OR_RETURN(auto one, read_structured_outputs(*asked));
    RETURN_IF_ERROR(add(std::move(one), out));
  }
  const auto add_one = [&](const char* name, auto read) -> Status {
    const ordered_json* const value = field(body, name);
    if (!value) return {};
    ASSIGN_OR_RETURN(AskedGrammar one, read(*value, name));
    return add(std::move(one), out);
  };
  RETURN_IF_ERROR(add_one("guided_json", read_json));
  RETURN_IF_ERROR(add_one("guided_choice", read_choices));
  RETURN_IF_ERROR(add_one("guided_regex", [](const ordered_json& value, const char* name) {
    return read_text(value, GrammarSpec::Kind::kRegex, name);
  }));
  RETURN_IF_ERROR(add_one("guided_grammar", [](const ordered_json& value, const char* name) {
    return read_text(value, GrammarSpec::Kind::kLark, name);
  }));
  ASSIGN_OR_RETURN(out.tools, read_tools(kind, body));
  if (out.grammar && out.tools)
    return unsupported(fmt::format(
        "\"{}\" together with \"tools\" is not supported; leave one out, or send \"tool_choice\": \"none\"",
        out.grammar->field));
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
  for (const char* key : kStructureFields)
    if (std::string_view(key) != "text" && std::string_view(key) != "output_config") body.erase(key);
}

}  // namespace outrider
