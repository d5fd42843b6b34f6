// Sends the spans of requests to an OpenTelemetry collector, as OTLP/HTTP with JSON, on a thread of its own.
// A collector that is slow, hangs or is down delays no request: beyond a bounded queue requests are dropped
// from the trace and counted.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/status.h"
#include "serve/engine/engine.h"
#include "serve/monitor/request_spans.h"

namespace outrider {

struct OtlpTarget {
  std::string host, port, path;                 // path: with /v1/traces
  std::map<std::string, std::string> headers;   // of every POST
  std::map<std::string, std::string> resource;  // attributes, service.name among them
  std::chrono::milliseconds timeout{10'000};    // of a POST
};

struct OtlpChoice {
  std::optional<OtlpTarget> target;  // empty: no traces
  std::string warning;  // for the operator: why there are none, or what differs from what was asked
};

// From --otlp-endpoint, else from OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT. Also
// reads OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
// OTEL_EXPORTER_OTLP_HEADERS and OTEL_EXPORTER_OTLP_TIMEOUT, and for an endpoint of the environment
// OTEL_EXPORTER_OTLP_TRACES_PROTOCOL and OTEL_EXPORTER_OTLP_PROTOCOL. Only a wrong flag is an error: the
// variables may be meant for the other programs of a machine, so they never keep the server from starting.
// `environment`: the value of a variable; empty: unset.
Result<OtlpChoice> otlp_target(const std::string& flag,
                               const std::function<std::string(const char*)>& environment);

struct SpanCounts {
  std::atomic<int64_t> sent{0}, dropped{0};  // spans taken by the collector; requests that are in no trace
};

class SpanExporter {
 public:
  static constexpr size_t kMaxWaiting = 1024;   // requests; up to 17 MB, as their rounds are bounded
  static constexpr size_t kSpansOfPost = 2000;  // up to 2 MB; a larger request goes alone

  explicit SpanExporter(OtlpTarget target);
  ~SpanExporter();

  // Never waits. Thread-safe.
  void add(TracedRequest request);
  const SpanCounts& counts() const;
  // Sends what waits for at most half a second, and what one POST takes to be written out. What the collector
  // has not taken by then is counted and told as lost. Returns when the thread has ended. The destructor
  // calls it.
  void finish();

 private:
  struct State;
  const std::unique_ptr<State> state_;
  std::jthread thread_;
};

// A sink that passes everything on to `inner`, and gives the exporter the finished request.
std::shared_ptr<RequestSink> traced_sink(std::shared_ptr<RequestSink> inner, TracedRequest about,
                                         std::shared_ptr<SpanExporter> exporter);

}  // namespace outrider
