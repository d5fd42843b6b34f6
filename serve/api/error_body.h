// The body of every answer that is an error, as OpenAI's clients read it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace outrider {

struct ApiError {
  int status = 400;  // of HTTP
  std::string message;
  std::string param;  // the field that is wrong; empty: null
  std::string code;   // "model_not_found"; empty: null
};

// The field that a message is about, which stands in quotes; empty: none.
std::string param_of(const std::string& message);

// {"type": "error", "error": {"message", "type", "param", "code"}}; the inner type follows from the status,
// the outer one is what Anthropic's clients look for. Valid UTF-8.
std::string error_body(const ApiError& error);

}  // namespace outrider
