// The address of a client behind trusted proxies.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace outrider {

class TrustedProxies {
 public:
  // Addresses and networks, "127.0.0.1" or "10.0.0.0/8", of IPv4 and IPv6. Errors name --trusted-proxies.
  static Result<TrustedProxies> parse(const std::vector<std::string>& proxies);

  // The client's address for a connection from `peer`. Only the part of X-Forwarded-For that trusted proxies
  // wrote is used: the result is its last address that is not a trusted proxy. If `peer` is not trusted, it
  // is `peer`.
  std::string client(const std::string& peer, std::string_view forwarded_for) const;

 private:
  struct Network {
    std::vector<uint8_t> address;  // 4 bytes or 16
    int bits = 0;
  };
  bool has(const std::string& address) const;

  std::vector<Network> networks_;
};

// The key by which clients take turns: the address; of IPv6 the first 64 bits, since one client may own all
// addresses below them.
std::string turn_of_address(const std::string& address);

}  // namespace outrider
