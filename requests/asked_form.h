// The requested form of a text: JSON of a schema, a choice, an expression or a grammar; as fields of
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

// Takes the form from an object whose keys are in written order, which is the order of keys in JSON of a
// schema. Empty: no field asks for a form. Errors begin with the field's name in quotes.
Result<std::optional<AskedGrammar>> take_form(const nlohmann::ordered_json& object);

// The place of a schema: in "json_schema", as in chats, or beside the type.
enum class SchemaPlace { kNested, kBesideType };
// The value of field `name`: {"type": "text" (no form), "json_object" or "json_schema"}.
Result<std::optional<AskedGrammar>> read_format(const nlohmann::ordered_json& format, std::string_view name,
                                                SchemaPlace place);
// Sets `to` to `more`; an error if both are forms.
Status add_form(std::optional<AskedGrammar> more, std::optional<AskedGrammar>& to);

// The schema for the grammar library, for the same texts or fewer. Blanks are fixed, {"a": 1, "b": [2, 3]},
// as most models write them: if any number of blanks were allowed, a model could write blanks for ever, and
// fixed blanks need no draft. Keywords that forbid nothing and that the library does not know are removed
// ("format" with a name that JSON Schema does not define, "uniqueItems": false). An error, without a field's
// name: the library would write a whole number as another one.
Result<nlohmann::ordered_json> schema_for_library(nlohmann::ordered_json schema);

// Values as they were given; empty: absent. A text @FILE, except for an expression, stands for the contents
// of the file.
struct FormFlags {
  std::string response_format;  // the field's value, or the name of a type without parameters
  std::string json, regex, grammar;
  std::vector<std::string> choices;
};
// Errors name the flag, and a file that cannot be read.
Result<std::optional<AskedGrammar>> form_of(const FormFlags& flags);

}  // namespace outrider
