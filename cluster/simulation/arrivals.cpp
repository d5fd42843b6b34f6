#include "cluster/simulation/arrivals.h"

#include <cmath>
#include <fstream>
#include <optional>
#include <random>

#include "base/parse_number.h"

namespace outrider {
namespace {

std::optional<double> number(std::string_view text) {
  const auto value = parse_number<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

Status bad(std::string_view text, std::string_view why) {
  return invalid_argument(
      fmt::format("arrivals '{}': {}; write burst, closed:CLIENTS[/THINK], poisson:RATE, gamma:RATE/CV or "
                  "azure:FILE[/SPEEDUP]",
                  text, why));
}

// "2023-11-16 18:15:46.6805900" -> seconds of its day.
std::optional<double> time_of_day(std::string_view stamp) {
  if (stamp.size() < 19 || stamp[13] != ':' || stamp[16] != ':') return std::nullopt;
  const auto hours = number(stamp.substr(11, 2)), minutes = number(stamp.substr(14, 2)),
             seconds = number(stamp.substr(17));
  if (!hours || !minutes || !seconds) return std::nullopt;
  return (*hours * 60 + *minutes) * 60 + *seconds;
}

Result<Arrivals> read_azure(const std::string& path, double speedup, int32_t requests) {
  std::ifstream file(path);
  if (!file) return not_found(fmt::format("{}: cannot be opened", path));
  Arrivals arrivals;
  std::string line;
  std::optional<double> first;
  for (int at = 1; std::getline(file, line) && static_cast<int32_t>(arrivals.requests.size()) < requests;
       ++at) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || line.starts_with("TIMESTAMP")) continue;
    const size_t one = line.find(','), two = line.find(',', one + 1);
    const auto when = time_of_day(std::string_view(line).substr(0, one));
    const auto prompt =
        one < two ? number(std::string_view(line).substr(one + 1, two - one - 1)) : std::nullopt;
    const auto output = two < line.size() ? number(std::string_view(line).substr(two + 1)) : std::nullopt;
    if (!when || !prompt || !output)
      return malformed(
          fmt::format("{}:{}: '{}' is not TIMESTAMP,ContextTokens,GeneratedTokens", path, at, line));
    if (!first) first = *when;
    double since = *when - *first;
    if (since < 0) since += 24 * 3600;  // midnight
    arrivals.requests.push_back({.arrival_s = since / speedup,
                                 .prompt_tokens = std::max(1, static_cast<int32_t>(*prompt)),
                                 .output_tokens = std::max(1, static_cast<int32_t>(*output))});
  }
  if (arrivals.requests.empty()) return malformed(fmt::format("{}: holds no request", path));
  return arrivals;
}

// "N[/THINK]".
Status close_loop(std::string_view text, std::string_view rest, Arrivals& arrivals) {
  constexpr double kMaxClients = 1e6, kMaxThink = 1e6;
  if (rest.empty())
    return bad(text, "a closed loop has a number of clients, closed:8; all requests at once are a burst");
  const size_t slash = rest.find('/');
  const auto clients = number(rest.substr(0, slash));
  const auto think = slash == rest.npos ? std::optional<double>(0) : number(rest.substr(slash + 1));
  if (!clients || *clients < 1 || *clients > kMaxClients || *clients != std::floor(*clients))
    return bad(text, fmt::format("the number of clients must be 1 to {}", kMaxClients));
  if (!think || *think < 0 || *think > kMaxThink)
    return bad(text, fmt::format("the time to think must be 0 to {} seconds", kMaxThink));
  arrivals.clients = static_cast<int32_t>(*clients);
  arrivals.think_s = *think;
  return {};
}

}  // namespace

Result<Arrivals> make_arrivals(std::string_view text, int32_t requests, int32_t prompt_tokens,
                               int32_t output_tokens, uint64_t seed) {
  const size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  const std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  const size_t slash = rest.rfind('/');
  if (kind == "azure") {
    const auto speedup =
        slash == std::string_view::npos ? std::optional<double>() : number(rest.substr(slash + 1));
    if (speedup && *speedup <= 0) return bad(text, "the speed-up must be positive");
    return read_azure(std::string(speedup ? rest.substr(0, slash) : rest), speedup.value_or(1), requests);
  }
  const SimulatedRequest one{.prompt_tokens = prompt_tokens, .output_tokens = output_tokens};
  Arrivals arrivals;
  arrivals.requests.assign(static_cast<size_t>(requests), one);
  if (kind == "burst" && rest.empty()) return arrivals;
  if (kind == "closed") {
    RETURN_IF_ERROR(close_loop(text, rest, arrivals));
    return arrivals;
  }
  if (kind != "poisson" && kind != "gamma") return bad(text, "unknown kind");
  const auto rate = number(rest.substr(0, slash));
  double variation = 1;  // of a Poisson process
  if (kind == "gamma") {
    const auto given = slash == std::string_view::npos ? std::nullopt : number(rest.substr(slash + 1));
    if (!given || *given <= 0) return bad(text, "the coefficient of variation must be positive");
    variation = *given;
  }
  // Slower ones leave the 292 years of a clock of nanoseconds.
  constexpr double kMinRate = 1e-6, kMaxRate = 1e9;
  if (!rate || *rate < kMinRate || *rate > kMaxRate)
    return bad(text, fmt::format("the rate must be {} to {} requests per second", kMinRate, kMaxRate));
  const double shape = 1 / (variation * variation);
  std::mt19937_64 random(seed);
  std::gamma_distribution<double> gap(shape, 1 / (shape * *rate));
  double at = 0;
  for (SimulatedRequest& arrival : arrivals.requests) {
    arrival.arrival_s = at;
    at += gap(random);
  }
  return arrivals;
}

}  // namespace outrider
