#include "serve/api/access.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>

namespace outrider {
namespace {

// The duration must not reveal how much of a guess is right.
bool equal_in_constant_time(std::string_view secret, std::string_view guess) {
  unsigned difference = secret.size() == guess.size() ? 0 : 1;
  for (size_t i = 0; i < guess.size(); ++i)
    difference |= static_cast<unsigned char>(guess[i] ^ secret[i % secret.size()]);
  return difference == 0;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return out;
}

// A web page may post a form to any site, but JSON only where the server allows it.
bool is_json(const std::string& content_type) {
  std::string type = lower(content_type.substr(0, content_type.find(';')));
  type.erase(std::remove(type.begin(), type.end(), ' '), type.end());
  return type == "application/json";
}

// Protects against DNS rebinding: a page whose name was made to point to this machine sends that name as
// host.
bool is_local_name(const std::string& host) {
  const std::string name = lower(host.substr(0, host.rfind(':')));
  const bool is_address = name.starts_with('[') || name.find_first_not_of("0123456789.") == std::string::npos;
  return is_address || name == "localhost" || name.ends_with(".localhost");
}

}  // namespace

// Compares all keys, so that the duration does not reveal which one matched.
std::optional<size_t> ApiAccess::find_key(std::string_view sent) const {
  std::optional<size_t> found;
  for (size_t i = 0; i < api_keys_.size(); ++i)
    if (equal_in_constant_time(api_keys_[i], sent)) found = i;
  return found;
}

std::optional<size_t> ApiAccess::key_of(const HttpRequest& request) const {
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view sent = request.authorization;
  if (lower(sent.substr(0, kScheme.size())) == kScheme) return find_key(sent.substr(kScheme.size()));
  return find_key(request.api_key);  // the header of Anthropic's clients
}

std::string ApiAccess::turn_of(const HttpRequest& request) const {
  const auto key = key_of(request);
  return fmt::format("{}\n{}", turn_of_address(request.client), key ? static_cast<int64_t>(*key) : -1);
}

std::optional<ApiError> ApiAccess::refusal(const HttpRequest& request, bool needs_key) const {
  if (!api_keys_.empty() && needs_key && !key_of(request))
    return ApiError{.status = 401,
                    .message = "send the server's key as a header: Authorization: Bearer KEY",
                    .param = {},
                    .code = "invalid_api_key"};
  if (api_keys_.empty() && is_loopback_ && !is_local_name(request.host))
    return ApiError{.status = 403,
                    .message = fmt::format("the Host header says {}, but only this machine may ask: write "
                                           "localhost, or start the server with --api-key-file",
                                           request.host.substr(0, 100)),
                    .param = {},
                    .code = {}};
  if (request.method == "POST" && !is_json(request.content_type) &&
      !(request.content_type.empty() && request.body.empty()))
    return ApiError{.status = 415, .message = "send Content-Type: application/json", .param = {}, .code = {}};
  if (!request.content_encoding.empty() && lower(request.content_encoding) != "identity")
    return ApiError{.status = 415,
                    .message = fmt::format("Content-Encoding {} is not understood; send the body as it is",
                                           request.content_encoding.substr(0, 100)),
                    .param = {},
                    .code = {}};
  return std::nullopt;
}

bool is_loopback(const std::string& host) {
  in_addr address{};
  if (inet_pton(AF_INET, host.c_str(), &address) == 1) return ntohl(address.s_addr) >> 24 == 127;
  return host == "localhost" || host == "::1";
}

}  // namespace outrider
