// Chooses the address by which the other hosts of a job reach this host best.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace outrider {

// An IPv4 address of a network interface. Host byte order.
struct HostAddress {
  uint32_t address = 0;
  uint32_t netmask = 0;
  bool operator==(const HostAddress&) const = default;
};

// Addresses of the interfaces that are up, in the system's order, without loopback.
std::vector<HostAddress> host_addresses();
// The addresses that this host's name resolves to. Other hosts usually know it by these, though some systems
// give 127.0.1.1. May be empty.
std::vector<HostAddress> addresses_of_host_name();

// Chooses from `mine`: an address that the host's name resolves to; else the first one in a network in which
// every other host has an address of its own (a container bridge has the same address everywhere); else the
// first one. Pure.
Result<HostAddress> choose_address(std::span<const HostAddress> mine,
                                   std::span<const HostAddress> of_host_name,
                                   std::span<const std::vector<HostAddress>> other_hosts);

// "10.0.0.1"
std::string to_string(const HostAddress& address);

}  // namespace outrider
