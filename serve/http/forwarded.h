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

  // The address of the client of a connection from `peer`. X-Forwarded-For is believed as far as trusted
  // proxies wrote it: the last of its addresses that is no such proxy. Without a trusted peer it is `peer`.
  std::string client(const std::string& peer, std::string_view forwarded_for) const;

 private:
  struct Network {
    std::vector<uint8_t> address;  // 4 bytes or 16
    int bits = 0;
  };
  bool has(const std::string& address) const;

  std::vector<Network> networks_;
};

// Whose turn it is where clients take turns: the address, of IPv6 the first 64 bits, which one client may
// have all of.
std::string turn_of_address(const std::string& address);

}  // namespace outrider
