// --speculative-config: how vLLM's users write speculation, a JSON object of their keys.
#pragma once

#include <string>

#include "base/status.h"
#include "start/settings.h"

namespace CLI {
class App;
}

namespace outrider {

// The flag itself, which fills the settings that other flags fill as well. `rule`: of the requests.
void add_speculative_config_option(CLI::App& app, ClusterSettings& settings, std::string& rule);

// Reads the object into the settings. Keys: model, method, num_speculative_tokens,
// draft_tensor_parallel_size, rejection_sample_method and quantization. An error names the key, and for a key
// of vLLM that has no counterpart what to use instead.
Status read_speculative_config(const std::string& text, ClusterSettings& settings, std::string& rule);

}  // namespace outrider
