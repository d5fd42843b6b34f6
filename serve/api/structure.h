// What a request says about the form of its answer: a grammar, or tools that the model may call.
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
  std::optional<ToolUse> tools;  // none: no tool may be called
};

// Whether one of the fields is there that read_structure() reads, with a value that asks for something.
bool asks_for_structure(const nlohmann::json& body);
// The body in the order in which it was written, in which JSON of a schema has its keys, too. Errors name the
// field in quotes.
Result<Structure> read_structure(ApiKind kind, const nlohmann::ordered_json& body);
// Those fields are read, and the rest is that of a request without.
void drop_structure(ApiKind kind, nlohmann::json& body);

}  // namespace outrider
