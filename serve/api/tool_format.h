// Tools, and the formats in which families of models write tool calls: what a chat template shows to a model,
// and how calls are parsed from its text.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "requests/request_params.h"
#include "text/tokenizer/tokenizer.h"

namespace outrider {

struct Tool {
  std::string name;
  nlohmann::ordered_json parameters;  // a JSON schema
  bool strict = false;                // calls must fit the schema
};

struct ToolUse {
  enum class Choice : uint8_t { kNone, kAuto, kRequired };
  nlohmann::ordered_json definitions;  // of chats, as they came
  std::vector<Tool> tools;
  Choice choice = Choice::kAuto;
  std::string named;        // not empty: with kRequired, the tool that must be called
  bool is_parallel = true;  // several calls in one answer
};

enum class ToolFormat : uint8_t {
  kHermes,        // <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>, any number (Hermes, Qwen)
  kLlama,         // the whole text is {"name": ..., "parameters": {...}} (Llama 3)
  kMistral,       // [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]
  kMistralNamed,  // [TOOL_CALLS]NAME[ARGS]{...}, any number
  kMistralIds,    // [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...}, any number
  kGranite,       // <|tool_call|>[{"name": ..., "arguments": {...}}, ...] (Granite 3)
  kPhi,           // the same, and <|/tool_call|> (Phi-4-mini)
  kNemotron,      // <TOOLCALL>[{"name": ..., "arguments": {...}}, ...]</TOOLCALL> (Nemotron Nano 2)
  kToolCalls,  // <tool_calls>[{"name": ..., "arguments": {...}}, ...]</tool_calls> (Hunyuan, Apriel, Jamba)
  kToolCallLines,  // <tool_calls>, a line for each {"name": ..., "arguments": {...}}, </tool_calls>
                   // (MiniMax-M1)
  kCommand,        // <|START_ACTION|>[{"tool_call_id": ..., "tool_name": ..., "parameters": {...}},
             // ...]<|END_ACTION|> (Command R7B, A)
  kCommandPlus,  // Action: and a block of JSON with "tool_name" and "parameters" (Command R, R+)
  kFunctools,    // functools[{"name": ..., "arguments": {...}}, ...] (FireFunction, Phi-4-mini in vLLM)
  // The following ones: tagged_calls.h.
  kQwenXml,     // <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n... (Qwen3-Coder)
  kSeed,        // <seed:tool_call>\n<function=NAME>\n<parameter=KEY>VALUE</parameter>\n... (Seed-OSS)
  kGlm,         // <tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n... (GLM-4.5)
  kMiniMax,     // <minimax:tool_call>\n<invoke name="NAME">\n<parameter name="KEY">VALUE</parameter>\n...
  kDsml,        // as MiniMax-M2 with <...DSML...function_calls>, and string="true" or "false" behind a KEY
                // (DeepSeek V3.2)
  kDsmlTools,   // the same with tool_calls (DeepSeek V4)
  kDeepSeekV3,  // function SEPARATOR NAME\n```json\n{...}\n``` between special tokens (V3, R1)
  kDeepSeek,    // NAME SEPARATOR {...} between special tokens (V3.1)
  kChannels,    // <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|> (gpt-oss,
                // channel_parser.h)
  kLfm,         // <|tool_call_start|>[NAME(KEY="VALUE", ...), ...]<|tool_call_end|> (LFM2)
  kOlmo,        // <function_calls>\nNAME(KEY="VALUE", ...)\n...</function_calls> (OLMo 3)
  kGemma,       // <|tool_call>call:NAME{KEY:<|"|>VALUE<|"|>,...}<tool_call|>, any number (Gemma 4)
  kKimi,        // functions.NAME:NUMBER SEPARATOR {...} between special tokens (K2)
};

// Parsing of calls from a text.
struct ToolReading {
  ToolFormat format = ToolFormat::kHermes;
  std::vector<std::string> names;  // of the offered tools
  std::vector<nlohmann::ordered_json> parameters = {};  // their schemas, for values without types
  bool has_grammar = false;                             // which says what a call is; other text is none
};

// Derived from the template's own output format. An error: the template has no tools, or an unknown call
// format, which is named if it can be recognised.
Result<ToolFormat> tool_format_of(std::string_view chat_template);

// Calls that are JSON objects. Null: the format writes them in another way.
struct JsonCalls {
  std::string_view begin, end;                              // without `begin` the whole text is a call
  bool is_list = false;                                     // of objects, separated by commas
  std::string_view name = "name", arguments = "arguments";  // keys
};
const JsonCalls* json_calls_of(ToolFormat format);

// The text that begins calls; empty: calls have no marker.
std::string_view call_begin(ToolFormat format);
// All marks of calls, some of which are special tokens.
std::vector<std::string_view> call_marks(ToolFormat format);

// The grammar of an answer whose calls must be well-formed: if calls are required, if a tool is strict, or if
// a text without calls has a form of its own. Empty: any text is allowed. Errors name "tools", or the field
// of the form.
Result<std::optional<AskedGrammar>> tool_grammar(const ToolUse& use, const std::optional<AskedGrammar>& form,
                                                 ToolFormat format, const Tokenizer& tokenizer);

}  // namespace outrider
