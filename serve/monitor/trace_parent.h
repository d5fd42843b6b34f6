// The trace that a request belongs to: W3C Trace Context, headers traceparent and tracestate.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace outrider {

struct TraceParent {
  std::string trace_id, span_id;  // 32 and 16 lower-case hexadecimal digits
  std::string state;              // tracestate, passed on as it is
  bool is_sampled = false;
};

// Empty: the header is absent or not valid, so the request begins a trace of its own. Later versions of the
// format are read as far as version 00 goes.
std::optional<TraceParent> parse_traceparent(std::string_view traceparent, std::string_view tracestate);

}  // namespace outrider
