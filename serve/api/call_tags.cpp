#include "serve/api/tagged_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

namespace outrider {
namespace {

using nlohmann::ordered_json;

// The special tokens of DeepSeek's models have full-width bars and a lower block as their blank.
#define OUTRIDER_DEEPSEEK(words) "<\xEF\xBD\x9C" words "\xEF\xBD\x9C>"
#define OUTRIDER_BLANK "\xE2\x96\x81"

constexpr CallTags kQwenXml{.begin = "<tool_call>",
                            .call = "<function=",
                            .name_end = ">",
                            .key = "<parameter=",
                            .key_end = ">",
                            .value = "",
                            .value_end = "</parameter>",
                            .call_end = "</function>",
                            .end = "</tool_call>",
                            .has_lines = true};
constexpr CallTags kSeed{.begin = "<seed:tool_call>",
                         .call = "<function=",
                         .name_end = ">",
                         .key = "<parameter=",
                         .key_end = ">",
                         .value = "",
                         .value_end = "</parameter>",
                         .call_end = "</function>",
                         .end = "</seed:tool_call>"};
constexpr CallTags kGlm{.begin = "<tool_call>",
                        .call = "",
                        .name_end = "",
                        .key = "<arg_key>",
                        .key_end = "</arg_key>",
                        .value = "<arg_value>",
                        .value_end = "</arg_value>",
                        .call_end = "</tool_call>",
                        .end = ""};
constexpr CallTags kMiniMax{.begin = "<minimax:tool_call>",
                            .call = "<invoke name=\"",
                            .name_end = "\">",
                            .key = "<parameter name=\"",
                            .key_end = "\">",
                            .value = "",
                            .value_end = "</parameter>",
                            .call_end = "</invoke>",
                            .end = "</minimax:tool_call>"};
// The mark of DSML stands behind the first bracket of each tag.
#define OUTRIDER_DSML "\uFF5CDSML\uFF5C"
constexpr CallTags dsml(std::string_view begin, std::string_view end) {
  return {.begin = begin,
          .call = "<" OUTRIDER_DSML "invoke name=\"",
          .name_end = "\">",
          .key = "<" OUTRIDER_DSML "parameter name=\"",
          .key_end = "\">",
          .value = "",
          .value_end = "</" OUTRIDER_DSML "parameter>",
          .call_end = "</" OUTRIDER_DSML "invoke>",
          .end = end,
          .is_typed = true};
}
constexpr CallTags kDsml = dsml("<" OUTRIDER_DSML "function_calls>", "</" OUTRIDER_DSML "function_calls>");
constexpr CallTags kDsmlTools = dsml("<" OUTRIDER_DSML "tool_calls>", "</" OUTRIDER_DSML "tool_calls>");
constexpr CallTags kDeepSeek{.begin = OUTRIDER_DEEPSEEK("tool" OUTRIDER_BLANK "calls" OUTRIDER_BLANK "begin"),
                             .call = OUTRIDER_DEEPSEEK("tool" OUTRIDER_BLANK "call" OUTRIDER_BLANK "begin"),
                             .name_end = OUTRIDER_DEEPSEEK("tool" OUTRIDER_BLANK "sep"),
                             .key = "",
                             .key_end = "",
                             .value = "",
                             .value_end = "",
                             .call_end = OUTRIDER_DEEPSEEK("tool" OUTRIDER_BLANK "call" OUTRIDER_BLANK "end"),
                             .end = OUTRIDER_DEEPSEEK("tool" OUTRIDER_BLANK "calls" OUTRIDER_BLANK "end")};
constexpr CallTags kKimi{.begin = "<|tool_calls_section_begin|>",
                         .call = "<|tool_call_begin|>",
                         .name_end = "<|tool_call_argument_begin|>",
                         .key = "",
                         .key_end = "",
                         .value = "",
                         .value_end = "",
                         .call_end = "<|tool_call_end|>",
                         .end = "<|tool_calls_section_end|>"};

constexpr CallTags loose(std::string_view begin, std::string_view call, std::string_view end,
                         Notation notation) {
  return {.begin = begin,
          .call = call,
          .name_end = "",
          .key = "",
          .key_end = "",
          .value = "",
          .value_end = "",
          .call_end = "",
          .end = end,
          .notation = notation};
}
constexpr CallTags kLfm = loose("<|tool_call_start|>", "", "<|tool_call_end|>", Notation::kPython);
constexpr CallTags kOlmo = loose("<function_calls>", "", "</function_calls>", Notation::kPython);
constexpr CallTags kGemma = loose("<|tool_call>", "call:", "<tool_call|>", Notation::kGemma);

constexpr JsonCalls kHermes{.begin = "<tool_call>", .end = "</tool_call>"};
constexpr JsonCalls kLlama{.begin = "", .end = "", .arguments = "parameters"};
constexpr JsonCalls kMistral{.begin = "[TOOL_CALLS]", .end = "", .is_list = true};
constexpr JsonCalls kGranite{.begin = "<|tool_call|>", .end = "", .is_list = true};
constexpr JsonCalls kPhi{.begin = "<|tool_call|>", .end = "<|/tool_call|>", .is_list = true};
constexpr JsonCalls kNemotron{.begin = "<TOOLCALL>", .end = "</TOOLCALL>", .is_list = true};
constexpr JsonCalls kToolCalls{.begin = "<tool_calls>", .end = "</tool_calls>", .is_list = true};
constexpr JsonCalls kToolCallLines{.begin = "<tool_calls>", .end = "</tool_calls>"};
constexpr JsonCalls kCommand{.begin = "<|START_ACTION|>",
                             .end = "<|END_ACTION|>",
                             .is_list = true,
                             .name = "tool_name",
                             .arguments = "parameters"};
constexpr JsonCalls kCommandPlus{.begin = "Action:\n```json\n",
                                 .end = "```",
                                 .is_list = true,
                                 .name = "tool_name",
                                 .arguments = "parameters"};
constexpr JsonCalls kFunctools{.begin = "functools", .end = "", .is_list = true};

uint8_t type_named(std::string_view name) {
  if (name == "string") return kText;
  if (name == "number" || name == "integer") return kNumber;
  if (name == "boolean") return kBoolean;
  if (name == "null") return kNull;
  return name == "object" || name == "array" ? kNested : 0;
}

// The types that a schema says itself. `add` takes the schemas in it, `follow` its reference.
template <class Add, class Follow>
uint8_t own_types(const ordered_json& schema, const Add& add, const Follow& follow) {
  uint8_t types = 0;
  if (const auto at = schema.find("type"); at != schema.end()) {
    if (at->is_string()) types |= type_named(at->get_ref<const std::string&>());
    if (at->is_array())
      for (const ordered_json& one : *at)
        if (one.is_string()) types |= type_named(one.get_ref<const std::string&>());
    return types;
  }
  if (const auto at = schema.find("enum"); at != schema.end() && at->is_array())
    for (const ordered_json& value : *at) types |= json_type_of(value);
  if (const auto at = schema.find("const"); at != schema.end()) types |= json_type_of(*at);
  for (const char* key : {"anyOf", "oneOf", "allOf"})
    if (const auto at = schema.find(key); at != schema.end() && at->is_array())
      for (const ordered_json& one : *at) add(one);
  if (const auto at = schema.find("$ref"); at != schema.end() && at->is_string())
    follow(at->get_ref<const std::string&>());
  if (schema.contains("properties") || schema.contains("items")) types |= kNested;
  return types;
}

}  // namespace

uint8_t json_type_of(const ordered_json& value) {
  return value.is_string()    ? kText
         : value.is_number()  ? kNumber
         : value.is_boolean() ? kBoolean
         : value.is_null()    ? kNull
                              : kNested;
}

size_t begun(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(mark.size() - 1, text.size()); n > 0; --n)
    if (text.ends_with(mark.substr(0, n))) return n;
  return 0;
}

const ordered_json* target_of(std::string_view reference, const ordered_json& root) {
  if (!reference.starts_with("#")) return nullptr;
  const ordered_json* at = &root;
  size_t from = 1;
  while (from < reference.size() && reference[from] == '/') {
    const size_t end = std::min(reference.find('/', from + 1), reference.size());
    const auto next = at->is_object() ? at->find(reference.substr(from + 1, end - from - 1)) : at->end();
    if (next == at->end()) return nullptr;
    at = &*next;
    from = end;
  }
  return from == reference.size() ? at : nullptr;
}

const CallTags* tags_of(ToolFormat format) {
  switch (format) {
    case ToolFormat::kQwenXml:
      return &kQwenXml;
    case ToolFormat::kSeed:
      return &kSeed;
    case ToolFormat::kGlm:
      return &kGlm;
    case ToolFormat::kMiniMax:
      return &kMiniMax;
    case ToolFormat::kDsml:
      return &kDsml;
    case ToolFormat::kDsmlTools:
      return &kDsmlTools;
    case ToolFormat::kDeepSeekV3:
    case ToolFormat::kDeepSeek:
      return &kDeepSeek;
    case ToolFormat::kLfm:
      return &kLfm;
    case ToolFormat::kOlmo:
      return &kOlmo;
    case ToolFormat::kGemma:
      return &kGemma;
    case ToolFormat::kKimi:
      return &kKimi;
    default:
      return nullptr;
  }
}

const JsonCalls* json_calls_of(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHermes:
      return &kHermes;
    case ToolFormat::kLlama:
      return &kLlama;
    case ToolFormat::kMistral:
    case ToolFormat::kMistralNamed:
    case ToolFormat::kMistralIds:
      return &kMistral;
    case ToolFormat::kGranite:
      return &kGranite;
    case ToolFormat::kPhi:
      return &kPhi;
    case ToolFormat::kNemotron:
      return &kNemotron;
    case ToolFormat::kToolCalls:
      return &kToolCalls;
    case ToolFormat::kToolCallLines:
      return &kToolCallLines;
    case ToolFormat::kCommand:
      return &kCommand;
    case ToolFormat::kCommandPlus:
      return &kCommandPlus;
    case ToolFormat::kFunctools:
      return &kFunctools;
    default:
      return nullptr;
  }
}

uint8_t types_of_value(const ordered_json& schema, const ordered_json& root) {
  constexpr size_t kMaxSchemas = 1024;
  constexpr int kMaxReferences = 64;  // each takes a search, and they may be circular
  std::vector<const ordered_json*> found;
  std::unordered_set<const ordered_json*> seen;
  const auto add = [&](const ordered_json& one) {
    if (one.is_object() && found.size() < kMaxSchemas && seen.insert(&one).second) found.push_back(&one);
  };
  int references = 0;
  const auto follow = [&](const std::string& reference) {
    if (references++ >= kMaxReferences) return;
    if (const ordered_json* const target = target_of(reference, root)) add(*target);
  };
  add(schema);
  uint8_t types = 0;
  for (size_t i = 0; i < found.size(); ++i) types |= own_types(*found[i], add, follow);
  return types;
}

uint8_t types_of(const ordered_json& parameters, std::string_view key) {
  const ordered_json* from = &parameters;
  if (const auto at = parameters.find("$ref"); at != parameters.end() && at->is_string())
    from = target_of(at->get_ref<const std::string&>(), parameters);
  if (!from || !from->is_object()) return 0;
  const auto properties = from->find("properties");
  if (properties == from->end() || !properties->is_object()) return 0;
  const auto at = properties->find(key);
  return at == properties->end() ? 0 : types_of_value(*at, parameters);
}

}  // namespace outrider
