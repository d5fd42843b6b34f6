#include "cluster/host_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/log.h"

namespace outrider {
namespace {

uint32_t ipv4_of(const sockaddr* address) {
  return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
}

bool is_loopback(uint32_t address) { return address >> 24 == 127; }

// Whether `theirs` is another address in the network of `mine`.
bool is_neighbour(const HostAddress& mine, const HostAddress& theirs) {
  return mine.netmask == theirs.netmask && mine.address != theirs.address &&
         (mine.address & mine.netmask) == (theirs.address & theirs.netmask);
}

}  // namespace

std::vector<HostAddress> host_addresses() {
  std::vector<HostAddress> found;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return found;
  for (const ifaddrs* it = interfaces; it != nullptr; it = it->ifa_next) {
    if (it->ifa_addr == nullptr || it->ifa_netmask == nullptr || it->ifa_addr->sa_family != AF_INET) continue;
    const uint32_t address = ipv4_of(it->ifa_addr);
    if ((it->ifa_flags & IFF_UP) != 0 && !is_loopback(address))
      found.push_back({address, ipv4_of(it->ifa_netmask)});
  }
  freeifaddrs(interfaces);
  return found;
}

std::vector<HostAddress> addresses_of_host_name() {
  std::array<char, 256> name{};
  std::vector<HostAddress> found;
  addrinfo hints{}, *addresses = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  if (gethostname(name.data(), name.size() - 1) != 0 ||
      getaddrinfo(name.data(), nullptr, &hints, &addresses) != 0)
    return found;
  for (const addrinfo* it = addresses; it != nullptr; it = it->ai_next)
    found.push_back({ipv4_of(it->ai_addr), 0});
  freeaddrinfo(addresses);
  return found;
}

Result<HostAddress> choose_address(std::span<const HostAddress> mine,
                                   std::span<const HostAddress> of_host_name,
                                   std::span<const std::vector<HostAddress>> other_hosts) {
  if (mine.empty())
    return unavailable("this host has no IPv4 address but loopback; bring up a network interface");
  for (const HostAddress& named : of_host_name)
    for (const HostAddress& address : mine)
      if (address.address == named.address) return address;
  for (const HostAddress& address : mine)
    if (std::ranges::all_of(other_hosts, [&](const auto& host) {
          return std::ranges::any_of(
              host, [&](const HostAddress& theirs) { return is_neighbour(address, theirs); });
        }))
      return address;
  return mine.front();
}

std::string to_string(const HostAddress& address) {
  const uint32_t a = address.address;
  return fmt::format("{}.{}.{}.{}", a >> 24, a >> 16 & 255, a >> 8 & 255, a & 255);
}

}  // namespace outrider
