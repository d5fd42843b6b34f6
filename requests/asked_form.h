// The form that a text is asked to have, JSON of a schema, a choice, an expression or a grammar: as fields of
// requests, which are OpenAI's and vLLM's, and as flags.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "requests/request_params.h"

namespace outrider {

constexpr std::array<std::string_view, 6> kFormFields = {"response_format", "structured_outputs",
                                                         "guided_json",     "guided_regex",
                                                         "guided_choice",   "guided_grammar"};

// Of an object in the order in which it was written, in which JSON of a schema has its keys, too. Empty: none
// of the fields asks for a form. Errors begin with the field's name in quotes.
Result<std::optional<AskedGrammar>> take_form(const nlohmann::ordered_json& object);

// Whether a schema stands in "json_schema", as in chats, or beside the type.
enum class SchemaPlace { kNested, kBesideType };
// {"type": "text" (which is no form), "json_object" or "json_schema"}, the value of field `name`.
Result<std::optional<AskedGrammar>> read_format(const nlohmann::ordered_json& format, std::string_view name,
                                                SchemaPlace place);
// `more`, if there is no other.
Status add_form(std::optional<AskedGrammar> more, std::optional<AskedGrammar>& to);

// A schema as the grammar library takes it, for the same texts or fewer. JSON has its blanks fixed, {"a": 1,
// "b": [2, 3]}, as most models write it: a model may go on with blanks for ever, where any number is allowed,
// and what is fixed is drafted for nothing. Keywords go that forbid nothing and that the library does not
// know ("format" of a name without a meaning in JSON Schema, "uniqueItems": false). An error, without a
// field's name: a whole number that the library would write as another.
Result<nlohmann::ordered_json> schema_for_library(nlohmann::ordered_json schema);

// As they were written; empty: absent. A text @FILE, but for an expression, is what the file has.
struct FormFlags {
  std::string response_format;  // the field's value, or the name of a type without parameters
  std::string json, regex, grammar;
  std::vector<std::string> choices;
};
// Errors name the flag, and a file that cannot be read.
Result<std::optional<AskedGrammar>> form_of(const FormFlags& flags);

}  // namespace outrider
