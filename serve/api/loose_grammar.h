// The grammar of calls in notations like Python's (loose_arguments.h): arguments in the order of the schema.
// Texts are limited by "enum" alone. In Python objects and lists are JSON of their schema.
#pragma once

#include <string>

#include "serve/api/tagged_calls.h"

namespace outrider {

struct LooseCalls {
  ToolFormat format;
  bool are_several, may_have_text;
};

// The rule "calls", of calls of which each is a "body", and the rules that values need.
std::string loose_calls(const LooseCalls& calls, const Tokenizer& tokenizer);
// One call of a tool, as the rule "call_I". `schema`: of its arguments; null: any. An error: what the
// notation's grammar cannot say.
Result<std::string> loose_call(size_t i, const std::string& name, const nlohmann::ordered_json& schema,
                               ToolFormat format, const Tokenizer& tokenizer);

}  // namespace outrider
