#include "serve/http/error_body.h"

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/shortened.h"

namespace outrider {
namespace {

std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "unavailable_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

nlohmann::json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::json() : nlohmann::json(text);
}

}  // namespace

std::string param_of(const std::string& message) {
  const size_t begin = message.find('"');
  const size_t end = begin == std::string::npos ? begin : message.find('"', begin + 1);
  return end == std::string::npos ? "" : message.substr(begin + 1, end - begin - 1);
}

// Values of a request may be megabytes. Messages shorten them; as a safeguard the whole message is cut here.
std::string error_body(const ApiError& error) {
  constexpr size_t kMaxMessage = 2000, kMaxParam = 100;
  return json_text(nlohmann::json{{"type", "error"},
                                  {"error",
                                   {{"message", shortened(error.message, kMaxMessage)},
                                    {"type", error_type(error.status)},
                                    {"param", text_or_null(shortened(error.param, kMaxParam))},
                                    {"code", text_or_null(error.code)}}}});
}

}  // namespace outrider
