#include "lab/serve_bench/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>

#include "base/hash.h"
#include "base/parse_number.h"
#include "requests/published_lines.h"

namespace outrider {
namespace {

// Common in English, so that vocabularies have a token for each.
constexpr const char* kWords[] = {"the", "little", "dog",  "was", "very",   "happy", "and",  "went",
                                  "to",  "play",   "with", "his", "friend", "in",    "park", "one",
                                  "day", "she",    "saw",  "a",   "big",    "tree",  "they", "said",
                                  "it",  "would",  "be",   "fun", "then",   "mom",   "gave", "her"};

double uniform(uint64_t seed, uint64_t index) {
  return (static_cast<double>(hash_combine(seed, index) >> 11) + 0.5) * 0x1p-53;
}

// Seconds of "2023-11-16 18:15:46.6805900" since some midnight; traces go over few days.
Result<double> seconds_of(std::string_view stamp) {
  const auto part = [&](size_t at, size_t size) {
    return stamp.size() >= at + size ? parse_number<double>(stamp.substr(at, size)) : std::nullopt;
  };
  const auto day = part(8, 2), hour = part(11, 2), minute = part(14, 2);
  const auto second = stamp.size() > 17 ? parse_number<double>(stamp.substr(17)) : std::nullopt;
  if (!day || !hour || !minute || !second)
    return malformed(
        fmt::format("'{}' is no time stamp such as 2023-11-16 18:15:46.68", stamp.substr(0, 40)));
  return ((*day * 24 + *hour) * 60 + *minute) * 60 + *second;
}

int64_t scaled(int64_t tokens, double scale, int64_t most) {
  const int64_t out = std::max<int64_t>(1, std::llround(static_cast<double>(tokens) * scale));
  return most > 0 ? std::min(out, most) : out;
}

Result<std::vector<ArrivalShape>> read_trace(const WorkloadOptions& options, size_t count) {
  std::ifstream file(options.trace);
  std::string line;
  if (!file || !std::getline(file, line) || !is_trace_header(line))
    return invalid_argument(fmt::format(
        "--trace {}: name a file that begins with TIMESTAMP,ContextTokens,GeneratedTokens", options.trace));
  std::vector<ArrivalShape> out;
  for (size_t number = 2; out.size() < count && std::getline(file, line); ++number) {
    const std::string where = fmt::format("--trace {}:{}", options.trace, number);
    const auto lengths = trace_line(line);
    if (!lengths.ok()) return lengths.status().in(where);
    const auto at = seconds_of(std::string_view(line).substr(0, line.find(',')));
    if (!at.ok()) return at.status().in(where);
    out.push_back(
        {.at_s = *at,
         .prompt_tokens = scaled(lengths->prompt_tokens, options.length_scale, options.max_prompt_tokens),
         .output_tokens = scaled(lengths->output_tokens, options.length_scale, options.max_output_tokens)});
  }
  if (out.size() < count)
    return invalid_argument(fmt::format("--trace {}: has {} requests, not {}; lower --rates or --duration",
                                        options.trace, out.size(), count));
  const double first = out.front().at_s;
  for (ArrivalShape& arrival : out) arrival.at_s -= first;
  return out;
}

}  // namespace

Result<std::vector<ArrivalShape>> arrivals_of(const WorkloadOptions& options, size_t count) {
  std::vector<ArrivalShape> out;
  if (!options.trace.empty()) {
    ASSIGN_OR_RETURN(out, read_trace(options, count));
  } else {
    double at = 0;
    for (size_t i = 0; i < count; ++i) {
      out.push_back(
          {.at_s = at, .prompt_tokens = options.prompt_tokens, .output_tokens = options.output_tokens});
      at -= std::log(uniform(options.seed, i));
    }
  }
  const double span = out.empty() ? 0 : out.back().at_s;
  if (span > 0)
    for (ArrivalShape& arrival : out) arrival.at_s *= static_cast<double>(count - 1) / span;
  return out;
}

std::string prompt_of(const WorkloadOptions& options, size_t index, int64_t tokens) {
  const uint64_t own = hash_combine(options.seed + 1, index);
  const uint64_t group =
      hash_combine(options.seed + 2, own) % static_cast<uint64_t>(std::max(options.prefix_groups, 1));
  std::string text;
  for (int64_t i = 0; i < tokens; ++i) {
    const uint64_t from = i < options.prefix_tokens ? hash_combine(options.seed + 3, group) : own;
    if (i > 0) text += ' ';
    text += kWords[hash_combine(from, static_cast<uint64_t>(i)) % std::size(kWords)];
  }
  return text;
}

}  // namespace outrider
