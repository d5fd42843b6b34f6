// The grammar of calls in XML (tagged_calls.h): parameters in the order of the schema, texts up to their end
// tag, other values as JSON of their schema.
#pragma once

#include <set>
#include <string>

#include "serve/api/tagged_calls.h"

namespace outrider {

// A piece of text in a Lark grammar; a special token by its id.
std::string lark_of(std::string_view text, const Tokenizer& tokenizer);

// Shared with other grammars of calls that are not JSON. `how`: "written as XML", for errors.
// An error if the rules of a tool are longer than a grammar may be.
Status check_rules(std::string_view rules);
// A value as JSON of its schema, whose references lead to definitions of `root`.
Result<std::string> json_value(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& root,
                               const char* how);
std::set<std::string> required_keys(const nlohmann::ordered_json& object);
// The part of a schema that has the arguments' keys.
Result<const nlohmann::ordered_json*> named_arguments(const nlohmann::ordered_json& schema, const char* how);

struct XmlCalls {
  ToolFormat format;
  bool are_several, may_have_text;
};

// The rule "calls", of calls of which each is a "body".
std::string xml_calls(const XmlCalls& calls, const Tokenizer& tokenizer);
// One call of a tool, as the rule "call_I". `schema`: of its arguments; null: any. An error: what XML cannot
// write.
Result<std::string> xml_call(size_t i, const std::string& name, const nlohmann::ordered_json& schema,
                             ToolFormat format, const Tokenizer& tokenizer);

}  // namespace outrider
