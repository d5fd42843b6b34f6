// The body of every error answer, in OpenAI's format.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace outrider {

struct ApiError {
  int status = 400;  // HTTP status
  std::string message;
  std::string param;  // the wrong field; empty: null
  std::string code;   // "model_not_found"; empty: null
};

// The field that a message is about, which it has in quotes; empty: none.
std::string param_of(const std::string& message);

// {"type": "error", "error": {"message", "type", "param", "code"}}. The inner type follows from the status;
// Anthropic's clients look for the outer one. Valid UTF-8.
std::string error_body(const ApiError& error);

}  // namespace outrider
