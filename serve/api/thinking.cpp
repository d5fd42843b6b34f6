#include "serve/api/thinking.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "requests/request_fields.h"

namespace outrider {
namespace {

using nlohmann::json;

// OpenAI's API has these values. Templates that read an effort may know fewer.
constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                      "high", "xhigh",   "max"};
constexpr std::array<std::string_view, 3> kSummaries = {"auto", "concise", "detailed"};
constexpr std::array<std::string_view, 3> kThinking = {"enabled", "disabled", "adaptive"};
constexpr std::array<std::string_view, 2> kDisplays = {"summarized", "omitted"};

// One of `known`. Empty: the field is absent.
Result<std::string> take_one(const json& object, const char* key, std::span<const std::string_view> known,
                             std::string_view field) {
  const json* const value = find_field(object, key);
  if (!value) return std::string();
  if (value->is_string() &&
      std::find(known.begin(), known.end(), value->get_ref<const std::string&>()) != known.end())
    return value->get<std::string>();
  return invalid_argument(fmt::format("{} must be one of \"{}\"", field, fmt::join(known, "\", \"")));
}

// A variable for the template, unless the client gave it one.
void set_variable(json& body, const char* key, json value) {
  json& variables = body["chat_template_kwargs"];
  if (variables.is_null()) variables = json::object();
  if (variables.is_object()) variables.emplace(key, std::move(value));  // another type is refused later
}

// The two names that templates have for this switch; one that knows neither ignores them.
void set_switch(json& body, bool thinks) {
  for (const char* key : {"enable_thinking", "thinking"}) set_variable(body, key, thinks);
}

void set_effort(json& body, const std::string& effort) {
  if (effort.empty()) return;
  set_variable(body, "reasoning_effort", effort);
  set_switch(body, effort != "none" && effort != "minimal");
}

Status check_keys(const json& object, std::span<const std::string_view> known, std::string_view field) {
  if (!object.is_object()) return invalid_argument(fmt::format("{} must be an object", field));
  for (const auto& [key, value] : object.items())
    if (!value.is_null() && std::find(known.begin(), known.end(), key) == known.end())
      return unknown_key(known, key).in(field);
  return {};
}

Status take_budget(json& body, const json& thinking) {
  const json* const budget = find_field(thinking, "budget_tokens");
  if (!budget) return {};
  if (!budget->is_number_integer() || *budget < 1)
    return invalid_argument("\"thinking\": \"budget_tokens\" must be a whole number of at least 1");
  set_variable(body, "thinking_budget", *budget);
  return {};
}

// "thinking", an object with a "type".
Status take_switch(json& body, std::span<const std::string_view> known) {
  const json* const found = find_field(body, "thinking");
  if (!found) return {};
  const json thinking = *found;
  RETURN_IF_ERROR(check_keys(thinking, known, "\"thinking\""));
  ASSIGN_OR_RETURN(const std::string type, take_one(thinking, "type", kThinking, "\"thinking\": \"type\""));
  if (type.empty()) return invalid_argument("\"thinking\": \"type\" is missing");
  ASSIGN_OR_RETURN(const std::string display,
                   take_one(thinking, "display", kDisplays, "\"thinking\": \"display\""));
  RETURN_IF_ERROR(take_budget(body, thinking));
  if (type != "adaptive") set_switch(body, type == "enabled");
  set_variable(body, "thinking_mode", type);  // of MiniMax-M3
  // Where the template has no switch, the model may think all the same.
  const bool is_told = type != "disabled" && display != "omitted";
  if (!is_told && !find_field(body, "include_reasoning")) body["include_reasoning"] = false;
  body.erase("thinking");
  return {};
}

}  // namespace

Status take_chat_thinking(json& body) {
  constexpr std::string_view kKnown[] = {"type", "budget_tokens", "display", "clear_thinking"};
  const json* const thinking = find_field(body, "thinking");
  const json* const clears = thinking ? find_field(*thinking, "clear_thinking") : nullptr;
  if (clears && !clears->is_boolean())
    return invalid_argument("\"thinking\": \"clear_thinking\" must be true or false");
  if (clears) set_variable(body, "clear_thinking", json(*clears));
  return take_switch(body, kKnown);
}

Status take_effort(json& body) {
  ASSIGN_OR_RETURN(const std::string effort,
                   take_one(body, "reasoning_effort", kEfforts, "\"reasoning_effort\""));
  body.erase("reasoning_effort");
  set_effort(body, effort);
  return {};
}

Status take_reasoning(json& body) {
  constexpr std::string_view kKnown[] = {"effort", "summary", "generate_summary"};
  const json* const found = find_field(body, "reasoning");
  if (!found) return {};
  const json reasoning = *found;
  RETURN_IF_ERROR(check_keys(reasoning, kKnown, "\"reasoning\""));
  ASSIGN_OR_RETURN(const std::string effort,
                   take_one(reasoning, "effort", kEfforts, "\"reasoning\": \"effort\""));
  for (const char* key : {"summary", "generate_summary"})  // answers have the whole reasoning
    RETURN_IF_ERROR(take_one(reasoning, key, kSummaries, fmt::format("\"reasoning\": \"{}\"", key)).status());
  body.erase("reasoning");
  set_effort(body, effort);
  return {};
}

Status take_thinking(json& body) {
  constexpr std::string_view kKnown[] = {"type", "budget_tokens", "display"};
  RETURN_IF_ERROR(take_switch(body, kKnown));
  const auto config = body.find("output_config");
  if (config == body.end() || config->is_null()) return {};
  constexpr std::string_view kConfig[] = {"effort", "format"};
  RETURN_IF_ERROR(check_keys(*config, kConfig, "\"output_config\""));
  if (!find_field(*config, "effort")) return {};
  ASSIGN_OR_RETURN(const std::string effort,
                   take_one(*config, "effort", kEfforts, "\"output_config\": \"effort\""));
  config->erase("effort");
  if (config->empty()) body.erase(config);
  set_effort(body, effort);
  return {};
}

}  // namespace outrider
