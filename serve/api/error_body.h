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

// {"error": {"message", "type", "param", "code"}}; the type follows from the status. Valid UTF-8.
std::string error_body(const ApiError& error);

}  // namespace outrider
