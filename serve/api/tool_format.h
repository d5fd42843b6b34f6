// Tools, and how the models of a family write calls of them: what a chat template shows a model, and what is
// read out of its text.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transformer/grammar/grammar_compiler.h"
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
  kHermes,   // <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>, any number (Hermes, Qwen)
  kLlama,    // the whole text is {"name": ..., "parameters": {...}} (Llama 3)
  kMistral,  // [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], or [TOOL_CALLS]NAME{...}
};

// By what the template itself writes. Nothing: it has no tools, or writes them in a way that is not known
// here.
std::optional<ToolFormat> tool_format_of(std::string_view chat_template);

// What begins calls in a text; empty: the text itself.
std::string_view call_begin(ToolFormat format);

// The text of an answer that calls as it must: where calls are required, and where a tool is strict. Nothing:
// any text will do.
std::optional<GrammarSpec> tool_grammar(const ToolUse& use, ToolFormat format, const Tokenizer& tokenizer);

}  // namespace outrider
