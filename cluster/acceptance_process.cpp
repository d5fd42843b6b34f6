#include "cluster/acceptance_process.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>

#include "base/hash.h"
#include "base/nearest.h"

namespace outrider {
namespace {

constexpr size_t kMaxTraceTokens = size_t{1} << 26;

// Uniform in [0, 1) for one token of one text.
double uniform(uint64_t seed, SequenceId sequence, int32_t position, uint64_t purpose) {
  const uint64_t bits = hash_combine(hash_combine(hash_combine(seed, purpose), sequence.value()),
                                     static_cast<uint64_t>(position));
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

Result<double> number(std::string_view text, std::string_view what) {
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size() || !std::isfinite(value))
    return invalid_argument(fmt::format("'{}' is not {}", text, what));
  return value;
}

struct RateOptions {
  double spread = 0, guess = AcceptanceProcess::kDefaultGuess;
  std::optional<double> hit;
};

Result<double> chance(std::string_view key, std::string_view text) {
  ASSIGN_OR_RETURN(const double value, number(text, "a chance"));
  if (value >= 0 && value <= 1) return value;
  return invalid_argument(fmt::format("{} {} is not in 0..1", key, value));
}

// Parses any subset of "spread=S,guess=G,hit=H".
Result<RateOptions> parse_options(std::string_view text) {
  constexpr std::array<std::string_view, 3> kKeys = {"spread", "guess", "hit"};
  RateOptions options;
  while (!text.empty()) {
    const std::string_view option = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), option.size() + 1));
    const std::string_view key = option.substr(0, option.find('='));
    const std::string_view value = option.substr(std::min(option.size(), key.size() + 1));
    if (key == "spread") {
      ASSIGN_OR_RETURN(options.spread, number(value, "a spread"));
    } else if (key == "guess") {
      ASSIGN_OR_RETURN(options.guess, chance(key, value));
    } else if (key == "hit") {
      ASSIGN_OR_RETURN(options.hit, chance(key, value));
    } else {
      const auto near = std::min_element(kKeys.begin(), kKeys.end(), [&](auto a, auto b) {
        return edit_distance(a, key) < edit_distance(b, key);
      });
      return invalid_argument(fmt::format("'{}' is not known; did you mean '{}='?", option, *near));
    }
  }
  return options;
}

}  // namespace

Result<AcceptanceProcess> AcceptanceProcess::of_rates(std::vector<double> rates, double spread,
                                                      uint64_t seed) {
  if (rates.empty()) return invalid_argument("no rate is given");
  for (const double rate : rates)
    if (!(rate >= 0 && rate <= 1)) return invalid_argument(fmt::format("rate {} is not in 0..1", rate));
  if (!(spread >= 0 && spread <= 0.5))
    return invalid_argument(fmt::format("spread {} is not in 0..0.5", spread));
  AcceptanceProcess process;
  process.rates_ = std::move(rates);
  process.spread_ = spread;
  process.seed_ = seed;
  process.description_ = fmt::format("rates:{}{}", fmt::join(process.rates_, "/"),
                                     spread > 0 ? fmt::format(",spread={}", spread) : "");
  return process;
}

// Solves sum of alpha^j, j = 0..gamma, by bisection: it grows with alpha.
Result<AcceptanceProcess> AcceptanceProcess::of_length(double tokens, int32_t gamma, uint64_t seed) {
  if (gamma < 1 || !(tokens >= 1 && tokens <= gamma + 1))
    return invalid_argument(
        fmt::format("{} tokens per round at draft length {} is outside 1..{}", tokens, gamma, gamma + 1));
  double low = 0, high = 1;
  for (int i = 0; i < 60; ++i) {
    const double alpha = (low + high) / 2;
    double sum = 0, power = 1;
    for (int j = 0; j <= gamma; ++j, power *= alpha) sum += power;
    (sum < tokens ? low : high) = alpha;
  }
  return of_rates({low}, 0, seed);
}

Result<AcceptanceProcess> AcceptanceProcess::of_trace(const std::string& path, uint64_t seed) {
  std::ifstream file(path);
  if (!file) return not_found(fmt::format("{}: cannot be opened", path));
  AcceptanceProcess process;
  process.seed_ = seed;
  process.description_ = "trace:" + path;
  std::string line;
  size_t total = 0;
  for (int at = 1; std::getline(file, line); ++at) {
    std::vector<bool> tokens;
    for (const char c : line.substr(0, line.find('#'))) {
      if (c == '0' || c == '1')
        tokens.push_back(c == '1');
      else if (c != ' ' && c != '\t' && c != '\r' && c != ',')
        return malformed(fmt::format("{}:{}: '{}' is neither 0 nor 1", path, at, c));
    }
    total += tokens.size();
    if (total > kMaxTraceTokens)
      return malformed(fmt::format("{}:{}: more than {} tokens", path, at, kMaxTraceTokens));
    if (!tokens.empty()) process.trace_.push_back(std::move(tokens));
  }
  if (process.trace_.empty()) return malformed(fmt::format("{}: holds no token", path));
  return process;
}

Result<AcceptanceProcess> AcceptanceProcess::parse(std::string_view text, uint64_t seed) {
  const size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (kind == "trace") return of_trace(std::string(rest), seed);
  if (kind == "length") {
    const size_t slash = rest.find('/');
    ASSIGN_OR_RETURN(const double tokens, number(rest.substr(0, slash), "a number of tokens per round"));
    double gamma = 5;
    if (slash != std::string_view::npos) {
      ASSIGN_OR_RETURN(gamma, number(rest.substr(slash + 1), "a draft length"));
    }
    return of_length(tokens, static_cast<int32_t>(gamma), seed);
  }
  if (kind != "rates")
    return invalid_argument(
        fmt::format("'{}': write rates:0.8/0.7[,spread=S][,guess=G|hit=H], "
                    "length:TOKENS[/GAMMA] or trace:FILE",
                    text));
  RateOptions options;
  if (const size_t comma = rest.find(','); comma != std::string_view::npos) {
    ASSIGN_OR_RETURN(options, parse_options(rest.substr(comma + 1)));
    rest = rest.substr(0, comma);
  }
  std::vector<double> rates;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find('/'));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    ASSIGN_OR_RETURN(const double rate, number(item, "a rate"));
    rates.push_back(rate);
  }
  ASSIGN_OR_RETURN(AcceptanceProcess process, of_rates(std::move(rates), options.spread, seed));
  process.guess_ = options.guess;
  process.hit_ = options.hit;
  if (options.hit)
    process.description_ += fmt::format(",hit={}", *options.hit);
  else if (options.guess != kDefaultGuess)
    process.description_ += fmt::format(",guess={}", options.guess);
  return process;
}

double AcceptanceProcess::rate(SequenceId sequence, int32_t position, int32_t place) const {
  if (!trace_.empty()) {
    const auto& line = trace_[static_cast<size_t>(sequence.value()) % trace_.size()];
    return line[static_cast<size_t>(position) % line.size()] ? 1 : 0;
  }
  const double mean = rates_[std::min(static_cast<size_t>(place), rates_.size() - 1)];
  if (spread_ == 0) return mean;
  const double reach = std::min({spread_, mean, 1 - mean});  // symmetric, so the mean stays
  return mean + reach * (2 * uniform(seed_, sequence, position, 1) - 1);
}

bool AcceptanceProcess::accepts(SequenceId sequence, int32_t position, int32_t place) const {
  return uniform(seed_, sequence, position, 0) < rate(sequence, position, place);
}

int32_t AcceptanceProcess::next_guess(SequenceId sequence, int32_t base, int32_t accepted,
                                      int32_t drafted) const {
  constexpr int32_t kNever = 1 << 20;
  const int32_t position = base + accepted;
  const double chance = uniform(seed_, sequence, position, 2);
  if (hit_) return chance >= *hit_ ? kNever : accepted < drafted ? 1 : 0;
  if (accepted == drafted && accepts(sequence, position, accepted)) return 0;
  if (guess_ >= 1) return 1;
  const double wrong = std::log1p(-chance) / std::log1p(-guess_);
  return 1 + static_cast<int32_t>(std::min<double>(wrong, kNever));
}

void AcceptanceProcess::accepted_path(SequenceId sequence, int32_t base, DraftTreeView tree,
                                      std::vector<int32_t>& path) const {
  path.clear();
  std::vector<int32_t> children;
  for (int32_t depth = 0;; ++depth) {
    children_of(tree, path.empty() ? kTreeRoot : path.back(), children);
    if (children.empty()) return;
    const bool first = accepts(sequence, base + depth, depth);
    const int32_t rank = first ? 0 : next_guess(sequence, base, depth, depth + 1);
    if (static_cast<size_t>(rank) >= children.size()) return;
    path.push_back(children[static_cast<size_t>(rank)]);
  }
}

int32_t AcceptanceProcess::accepted_count(SequenceId sequence, int32_t base, int32_t drafted) const {
  int32_t count = 0;
  while (count < drafted && accepts(sequence, base + count, count)) ++count;
  return count;
}

}  // namespace outrider
