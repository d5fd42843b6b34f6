// Who may ask: those with the key, and no web pages.
#pragma once

#include <optional>
#include <string>

#include "serve/api/error_body.h"
#include "serve/http/server.h"

namespace outrider {

class ApiAccess {
 public:
  // `api_key`: empty, or what clients must send as a bearer token. `is_loopback`: the server listens there
  // alone.
  ApiAccess(std::string api_key, bool is_loopback)
      : api_key_(std::move(api_key)), is_loopback_(is_loopback) {}

  // Why a request is refused; nothing if it is not.
  std::optional<ApiError> refusal(const HttpRequest& request, bool needs_key) const;

 private:
  bool has_key(const HttpRequest& request) const;

  const std::string api_key_;
  const bool is_loopback_;
};

}  // namespace outrider
