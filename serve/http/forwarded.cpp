#include "serve/http/forwarded.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/parse_number.h"
#include "base/shortened.h"
#include "base/trimmed.h"

namespace outrider {
namespace {

constexpr size_t kMaxHops = 32;  // limit for one X-Forwarded-For

// Empty: not an address. IPv4 within IPv6 (::ffff:1.2.3.4) counts as IPv4.
std::vector<uint8_t> bytes_of(const std::string& address) {
  std::vector<uint8_t> bytes(4);
  if (inet_pton(AF_INET, address.c_str(), bytes.data()) == 1) return bytes;
  bytes.resize(16);
  if (inet_pton(AF_INET6, address.substr(0, address.find('%')).c_str(), bytes.data()) != 1) return {};
  const bool is_mapped = std::all_of(bytes.begin(), bytes.begin() + 10, [](uint8_t b) { return b == 0; }) &&
                         bytes[10] == 0xff && bytes[11] == 0xff;
  if (is_mapped) bytes.erase(bytes.begin(), bytes.begin() + 12);
  return bytes;
}

// "1.2.3.4", "1.2.3.4:567", "::1" or "[::1]:567" without its port.
std::string without_port(std::string_view hop) {
  if (hop.starts_with('[')) return std::string(hop.substr(1, hop.find(']') - 1));
  if (std::count(hop.begin(), hop.end(), ':') == 1) hop = hop.substr(0, hop.find(':'));
  return std::string(hop);
}

}  // namespace

Result<TrustedProxies> TrustedProxies::parse(const std::vector<std::string>& proxies) {
  TrustedProxies out;
  for (const std::string& proxy : proxies) {
    const size_t slash = proxy.find('/');
    Network network{.address = bytes_of(proxy.substr(0, slash))};
    const int most = static_cast<int>(network.address.size()) * 8;
    const auto bits = slash == std::string::npos ? most : parse_number<int>(proxy.substr(slash + 1));
    if (network.address.empty() || !bits || *bits < 0 || *bits > most)
      return invalid_argument(
          fmt::format("--trusted-proxies {}: write addresses or networks, such as 127.0.0.1 or 10.0.0.0/8",
                      shortened(proxy)));
    network.bits = *bits;
    out.networks_.push_back(std::move(network));
  }
  return out;
}

bool TrustedProxies::has(const std::string& address) const {
  const std::vector<uint8_t> bytes = bytes_of(address);
  const auto is_in = [&](const Network& network) {
    if (bytes.size() != network.address.size()) return false;
    for (int bit = 0; bit < network.bits; ++bit) {
      const auto at = static_cast<size_t>(bit / 8);
      if (((bytes[at] ^ network.address[at]) >> (7 - bit % 8) & 1) != 0) return false;
    }
    return true;
  };
  return !bytes.empty() && std::any_of(networks_.begin(), networks_.end(), is_in);
}

std::string TrustedProxies::client(const std::string& peer, std::string_view forwarded_for) const {
  if (networks_.empty() || forwarded_for.empty() || !has(peer)) return peer;
  std::string client = peer;
  for (size_t hops = 0; hops < kMaxHops && !forwarded_for.empty() && has(client); ++hops) {
    const size_t comma = forwarded_for.rfind(',');
    const size_t begin = comma == std::string_view::npos ? 0 : comma + 1;
    const std::string hop = without_port(trimmed(forwarded_for.substr(begin)));
    if (bytes_of(hop).empty()) return client;  // "unknown" or invalid: earlier entries are useless
    client = hop;
    forwarded_for = forwarded_for.substr(0, begin == 0 ? 0 : begin - 1);
  }
  return client;
}

std::string turn_of_address(const std::string& address) {
  std::vector<uint8_t> bytes = bytes_of(address);
  if (bytes.size() != 16) return address;
  std::fill(bytes.begin() + 8, bytes.end(), uint8_t{0});
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(AF_INET6, bytes.data(), text, sizeof text);
  return text;
}

}  // namespace outrider
