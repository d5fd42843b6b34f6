// From a hardware description to what a pass costs: a roofline with stated efficiencies. For deciding what to
// rent; a measured report is always better.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "cluster/simulation/forward_cost.h"

namespace outrider {

struct GpuPreset {
  std::string_view name;
  double memory_bytes, bytes_per_second, flops;  // dense bf16
  std::string_view source;
};
struct ModelPreset {
  std::string_view name;
  double parameters;
  int layers, hidden, kv_heads, head_size;
  std::string_view source;
};

struct HardwareCost {
  ForwardCost pass;
  double kv_tokens = 0;  // that fit beside the weights, on the whole group
  std::string description;
};

// "GPU:MODEL[:tpN]", e.g. "h100:70b:tp4"; weights and KV in bf16. Errors name the nearest known word, and say
// what does not fit.
Result<HardwareCost> hardware_cost(std::string_view text);
std::string list_hardware();

}  // namespace outrider
