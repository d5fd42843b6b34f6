// Tools, and how the models of a family write calls of them: what a chat template shows a model, and what is
// read out of its text.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "requests/request_params.h"
#include "transformer/tokenizer/tokenizer.h"

namespace outrider {

struct Tool {
  std::string name;
  nlohmann::ordered_json parameters;  // a JSON schema
  bool strict = false;                // calls must fit it
};

struct ToolUse {
  enum class Choice : uint8_t { kNone, kAuto, kRequired };
  nlohmann::ordered_json definitions;  // of chats, as they came
  std::vector<Tool> tools;
  Choice choice = Choice::kAuto;
  std::string named;        // not empty: with kRequired, the one to be called
  bool is_parallel = true;  // several calls in one answer
};

enum class ToolFormat : uint8_t {
  kHermes,        // <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>, any number (Hermes, Qwen)
  kLlama,         // the whole text is {"name": ..., "parameters": {...}} (Llama 3)
  kMistral,       // [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]
  kMistralNamed,  // [TOOL_CALLS]NAME[ARGS]{...}, any number
  kMistralIds,    // [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...}, any number
};

// How calls are read out of a text.
struct ToolReading {
  ToolFormat format = ToolFormat::kHermes;
  std::vector<std::string> names;  // of the tools that were offered
};

// By what the template itself writes. An error: it has no tools, or writes calls in a way that is not known
// here, which is named where that can be told.
Result<ToolFormat> tool_format_of(std::string_view chat_template);

// What begins calls in a text; empty: the text itself.
std::string_view call_begin(ToolFormat format);

// The text of an answer that calls as it must: where calls are required, where a tool is strict, and where a
// text that does not call has a form of its own. Nothing: any text will do. Errors name "tools", or the field
// of the form.
Result<std::optional<AskedGrammar>> tool_grammar(const ToolUse& use, const std::optional<AskedGrammar>& form,
                                                 ToolFormat format, const Tokenizer& tokenizer);

}  // namespace outrider
