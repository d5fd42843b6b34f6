// /metrics in Prometheus' text format (version 0.0.4).
#pragma once

#include <string>

#include "serve/engine/engine.h"
#include "serve/monitor/background_counts.h"
#include "serve/monitor/response_counts.h"
#include "serve/monitor/span_exporter.h"

namespace outrider {

struct MetricsContext {
  std::string model, policy;                  // as labels, escaped
  bool vllm_names = false;                    // also exports common metrics with prefix "vllm:"
  const ResponseCounts* responses = nullptr;  // null: not exported
  const BackgroundCounts* background = nullptr;  // the same
  const SpanCounts* spans = nullptr;             // the same
};

std::string metrics_text(const EngineNumbers& numbers, const MetricsContext& context);

}  // namespace outrider
