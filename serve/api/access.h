// Who may ask: those with the key, and no web pages.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "serve/api/error_body.h"
#include "serve/http/server.h"

namespace outrider {

class ApiAccess {
 public:
  // `api_keys`: clients must send one of them, as a bearer token or as X-Api-Key; none: they need not.
  // `is_loopback`: the server listens there alone.
  ApiAccess(std::vector<std::string> api_keys, bool is_loopback)
      : api_keys_(std::move(api_keys)), is_loopback_(is_loopback) {}

  // Why a request is refused; nothing if it is not.
  std::optional<ApiError> refusal(const HttpRequest& request, bool needs_key) const;
  // Which clients take turns with each other: by their address and, where there are keys, by the key that
  // fitted. Nothing else that a client may send at will counts.
  std::string turn_of(const HttpRequest& request) const;

 private:
  // Its place among api_keys_.
  std::optional<size_t> key_of(const HttpRequest& request) const;
  std::optional<size_t> find_key(std::string_view sent) const;

  const std::vector<std::string> api_keys_;
  const bool is_loopback_;
};

}  // namespace outrider
