// The requested form of an answer: a grammar, or tools that the model may call.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "requests/request_params.h"
#include "serve/api/tool_format.h"

namespace outrider {

enum class ApiKind : int;

struct Structure {
  std::optional<AskedGrammar> grammar;
  std::optional<ToolUse> tools;  // empty: no tool may be called
};

// Whether a field of read_structure() is present with a value that asks for something.
bool asks_for_structure(const nlohmann::json& body);
// `body`: in the order in which it was written, which is the order of keys in JSON of a schema. Errors name
// the field in quotes.
Result<Structure> read_structure(ApiKind kind, const nlohmann::ordered_json& body);
// Removes those fields; the remaining body is that of a request without structure.
void drop_structure(ApiKind kind, nlohmann::json& body);

}  // namespace outrider
