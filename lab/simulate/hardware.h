// Computes the cost of a pass from a hardware description: a roofline with stated efficiencies. Meant for
// choosing hardware; measured costs are always better.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cluster/simulation/forward_cost.h"
#include "model_files/model_config.h"
#include "model_files/model_size.h"

namespace outrider {

struct GpuPreset {
  std::string_view name;
  double memory_bytes, bytes_per_second, flops;  // dense bf16
  bool is_cpu;                                   // a socket
  std::string_view source;
};
struct ModelPreset {
  std::string name, source;
  ModelConfig config;
  ModelSize size;
};

// A figure that a simulation uses, and its reliability.
struct CostSource {
  enum class Kind { kFitted, kDataSheet, kFlag, kAssumption };
  std::string figure, value;
  Kind kind = Kind::kAssumption;
  std::string from;
};
std::string_view name_of(CostSource::Kind kind);  // "fitted", "data sheet", "flag", "assumption"

constexpr double kLayerSeconds = 5e-6;  // kernels of a layer beyond what they read

struct HardwareCost {
  ForwardCost pass;
  ModelPreset model;
  double kv_tokens = 0;  // that fit beside weights and activations, on the whole group
  std::string description;

  int devices = 1;
  bool is_cpu = false;
  int layers = 0;
  // Bytes of each device; where only a part of a socket is used, of that part.
  double usable_bytes = 0, weight_bytes = 0, activation_bytes = 0, kv_token_bytes = 0;
  double text_bytes = 0;  // recurrent states of a text, on a device
  double bytes_per_second = 0, flops = 0;  // as reached
  std::vector<CostSource> sources;
};

// "GPU:MODEL[:tpN]", e.g. "h100:70b:tp4", or "CPU:MODEL[:1/K]", a K-th of a socket; weights and KV in bf16.
// MODEL is a preset, or a directory with a config.json if it contains a '/'. Errors name the nearest known
// word, and the part that does not fit.
Result<HardwareCost> hardware_cost(std::string_view text);
std::string list_hardware();

}  // namespace outrider
