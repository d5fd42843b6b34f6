#include "serve/monitor/trace_parent.h"

#include <algorithm>

namespace outrider {
namespace {

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_zero(std::string_view id) { return id.find_first_not_of('0') == std::string_view::npos; }

}  // namespace

std::optional<TraceParent> parse_traceparent(std::string_view traceparent, std::string_view tracestate) {
  constexpr size_t kLength = 55;  // 00-<32>-<16>-<2>
  constexpr size_t kMaxState = 512;
  while (!traceparent.empty() && traceparent.front() == ' ') traceparent.remove_prefix(1);
  while (!traceparent.empty() && traceparent.back() == ' ') traceparent.remove_suffix(1);
  if (traceparent.size() < kLength) return std::nullopt;
  const std::string_view version = traceparent.substr(0, 2), trace = traceparent.substr(3, 32),
                         span = traceparent.substr(36, 16), flags = traceparent.substr(53, 2);
  if (traceparent[2] != '-' || traceparent[35] != '-' || traceparent[52] != '-') return std::nullopt;
  if (!is_hex(version) || !is_hex(trace) || !is_hex(span) || !is_hex(flags)) return std::nullopt;
  if (version == "ff" || is_zero(trace) || is_zero(span)) return std::nullopt;
  if (traceparent.size() > kLength && (version == "00" || traceparent[kLength] != '-')) return std::nullopt;
  const char last = flags[1];
  const int digit = last <= '9' ? last - '0' : last - 'a' + 10;
  return TraceParent{.trace_id = std::string(trace),
                     .span_id = std::string(span),
                     .state = tracestate.size() <= kMaxState ? std::string(tracestate) : std::string(),
                     .is_sampled = digit % 2 == 1};
}

}  // namespace outrider
