#include "cluster/host_address.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

constexpr HostAddress address(uint32_t a, uint32_t b, uint32_t c, uint32_t d, int prefix = 24) {
  return {a << 24 | b << 16 | c << 8 | d, ~uint32_t{0} << (32 - prefix)};
}

using Addresses = std::vector<HostAddress>;
constexpr HostAddress kBridge = address(172, 17, 0, 1, 16);  // of containers: the same on every host

std::string choose(const Addresses& mine, const Addresses& of_host_name,
                   const std::vector<Addresses>& others) {
  const auto chosen = choose_address(mine, of_host_name, others);
  return chosen.ok() ? to_string(*chosen) : chosen.status().message();
}

TEST(ChooseAddress, TheHostNamesAddressComesFirst) {
  const Addresses mine{kBridge, address(10, 0, 0, 1), address(192, 168, 5, 1)};
  EXPECT_EQ(choose(mine, {address(192, 168, 5, 1)}, {{address(10, 0, 0, 2)}}), "192.168.5.1");
}

TEST(ChooseAddress, AHostNameOfLoopbackOrOfSomebodyElseIsIgnored) {
  const Addresses mine{address(10, 0, 0, 1)};
  EXPECT_EQ(choose(mine, {address(127, 0, 1, 1), address(10, 0, 0, 9)}, {{address(10, 0, 0, 2)}}),
            "10.0.0.1");
}

TEST(ChooseAddress, ABridgeThatEveryHostHasIsNotTheNetworkBetweenThem) {
  const Addresses mine{kBridge, address(10, 0, 0, 1)};
  EXPECT_EQ(choose(mine, {}, {{kBridge, address(10, 0, 0, 2)}, {kBridge, address(10, 0, 0, 3)}}), "10.0.0.1");
}

TEST(ChooseAddress, TheNetworkMustReachEveryHost) {
  const Addresses mine{address(192, 168, 1, 1), address(10, 0, 0, 1)};
  const Addresses near{address(192, 168, 1, 2), address(10, 0, 0, 2)}, far{address(10, 0, 0, 3)};
  EXPECT_EQ(choose(mine, {}, {near}), "192.168.1.1");
  EXPECT_EQ(choose(mine, {}, {near, far}), "10.0.0.1");
}

TEST(ChooseAddress, HostsBehindARouterGetTheFirst) {
  EXPECT_EQ(choose({address(10, 1, 0, 1), address(10, 2, 0, 1)}, {}, {{address(10, 3, 0, 1)}}), "10.1.0.1");
}

TEST(ChooseAddress, WithoutANetworkThereIsNone) {
  EXPECT_EQ(choose({}, {address(10, 0, 0, 1)}, {{address(10, 0, 0, 2)}}),
            "this host has no IPv4 address but loopback; bring up a network interface");
}

TEST(HostAddresses, NeverHaveLoopback) {
  for (const HostAddress& mine : host_addresses()) EXPECT_NE(mine.address >> 24, 127u) << to_string(mine);
}

}  // namespace
}  // namespace outrider
