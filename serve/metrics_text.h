// /metrics in Prometheus' text format (version 0.0.4).
#pragma once

#include <string>

#include "serve/engine.h"

namespace outrider {

// `model` is the only label that a client may choose, escaped. `vllm_names`: the common ones a second time,
// with prefix "vllm:", for tools that know only those.
std::string metrics_text(const EngineNumbers& numbers, const std::string& model, bool vllm_names);

}  // namespace outrider
