// The text of --emulate-link.
#include <algorithm>
#include <charconv>
#include <span>
#include <utility>
#include <vector>

#include "comm/emulated_link.h"

namespace outrider {
namespace {

struct Unit {
  std::string_view name;
  double value;
};
constexpr Unit kTimes[] = {{"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
constexpr Unit kRates[] = {{"kbit", 1e3 / 8}, {"mbit", 1e6 / 8}, {"gbit", 1e9 / 8}};
constexpr Unit kShares[] = {{"", 1}, {"%", 0.01}};
constexpr Unit kCounts[] = {{"", 1}};

// A number with one of `units`; empty: not a quantity.
std::optional<double> parse_quantity(std::string_view text, std::span<const Unit> units) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number >= 0 && number <= 1e9)) return std::nullopt;
  const std::string_view rest(end, static_cast<size_t>(text.data() + text.size() - end));
  for (const Unit& unit : units)
    if (rest == unit.name) return number * unit.value;
  return std::nullopt;
}

Status parse_links(std::string_view value, LinkEmulation& link) {
  if (value != "draft" && value != "target" && value != "all")
    return invalid_argument(fmt::format("links={}: choose draft, target or all", value));
  link.drafters = value != "target";
  link.target = value != "draft";
  return {};
}

Status parse_partition(std::string_view value, LinkEmulation& link) {
  const size_t dots = value.find("..");
  const auto from = parse_quantity(value.substr(0, dots), kTimes);
  const auto to = dots == std::string_view::npos ? from : parse_quantity(value.substr(dots + 2), kTimes);
  if (!from || !to || *from >= *to || *to > 3600e9)
    return invalid_argument(fmt::format("partition={}: write for example partition=5s..35s", value));
  link.partition_from = std::chrono::nanoseconds(static_cast<int64_t>(*from));
  link.partition_to = std::chrono::nanoseconds(static_cast<int64_t>(*to));
  return {};
}

Status parse_key(std::string_view key, std::string_view value, LinkEmulation& link) {
  const auto read = [&](std::span<const Unit> units, const char* example, double most) -> Result<double> {
    const auto number = parse_quantity(value, units);
    if (number && *number <= most) return *number;
    return invalid_argument(fmt::format("{}={}: write for example {}={}", key, value, key, example));
  };
  const std::pair<std::string_view, double*> shares[] = {{"loss", &link.loss},
                                                         {"duplicate", &link.duplicate},
                                                         {"corrupt", &link.corrupt},
                                                         {"reorder", &link.reorder}};
  for (const auto& [name, share] : shares) {
    if (key != name) continue;
    ASSIGN_OR_RETURN(*share, read(kShares, "0.1", 1));
    return {};
  }
  if (key == "delay") {
    ASSIGN_OR_RETURN(const double ns, read(kTimes, "1ms", 3600e9));
    link.delay = std::chrono::nanoseconds(static_cast<int64_t>(ns));
    return {};
  }
  if (key == "rate") {
    ASSIGN_OR_RETURN(link.bytes_per_second, read(kRates, "1gbit", 1e18));
    return link.bytes_per_second > 0 ? Status() : invalid_argument("rate=0: nothing would ever arrive");
  }
  if (key == "seed") {
    ASSIGN_OR_RETURN(const double seed, read(kCounts, "1", 1e9));
    link.seed = static_cast<uint64_t>(seed);
    return {};
  }
  if (key == "links") return parse_links(value, link);
  if (key == "partition") return parse_partition(value, link);
  return invalid_argument(fmt::format(
      "'{}' is not a key; choose delay, rate, loss, duplicate, corrupt, reorder, partition, links or seed",
      key));
}

}  // namespace

Result<LinkEmulation> parse_link_emulation(std::string_view text) {
  LinkEmulation link;
  std::vector<std::string_view> seen;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos)
      return invalid_argument(fmt::format("'{}': write KEY=VALUE, for example delay=1ms,rate=1gbit", item));
    const std::string_view key = item.substr(0, equals);
    RETURN_IF_ERROR(parse_key(key, item.substr(equals + 1), link));
    if (std::find(seen.begin(), seen.end(), key) != seen.end())
      return invalid_argument(fmt::format("{} is there twice; keep one", key));
    seen.push_back(key);
  }
  for (const std::string_view key : seen)
    if (!link.drafters && key != "delay" && key != "rate" && key != "links" && key != "seed")
      return invalid_argument(fmt::format(
          "{} with links=target: faults only happen to links of draft workers; use delay and rate, "
          "or links=all",
          key));
  return link;
}

}  // namespace outrider
