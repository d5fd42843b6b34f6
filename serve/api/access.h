// Access control: clients with a key are admitted, web pages are not.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "serve/http/error_body.h"
#include "serve/http/server.h"

namespace outrider {

class ApiAccess {
 public:
  // `api_keys`: clients must send one, as a bearer token or as X-Api-Key; empty: no key is required.
  // `is_loopback`: the server listens on the loopback interface only.
  ApiAccess(std::vector<std::string> api_keys, bool is_loopback)
      : api_keys_(std::move(api_keys)), is_loopback_(is_loopback) {}

  // The reason for a refusal; empty: the request is admitted.
  std::optional<ApiError> refusal(const HttpRequest& request, bool needs_key) const;
  // The key by which clients take turns: their address and, if there are keys, the valid key. Other values
  // that a client may choose do not count.
  std::string turn_of(const HttpRequest& request) const;

 private:
  // Its index in api_keys_.
  std::optional<size_t> key_of(const HttpRequest& request) const;
  std::optional<size_t> find_key(std::string_view sent) const;

  const std::vector<std::string> api_keys_;
  const bool is_loopback_;
};

// Whether only this machine can reach the host.
bool is_loopback(const std::string& host);

}  // namespace outrider
