#include "cluster/simulation/hardware.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/nearest.h"

namespace outrider {
namespace {

constexpr std::array<GpuPreset, 3> kGpus = {{
    {"a100", 80e9, 2.039e12, 312e12, "NVIDIA A100 80GB SXM data sheet"},
    {"h100", 80e9, 3.35e12, 989e12, "NVIDIA H100 SXM data sheet"},
    {"h200", 141e9, 4.8e12, 989e12, "NVIDIA H200 SXM data sheet"},
}};
constexpr std::array<ModelPreset, 3> kModels = {{
    {"1b", 1.236e9, 16, 2048, 8, 64, "config.json of Llama-3.2-1B"},
    {"8b", 8.03e9, 32, 4096, 8, 128, "config.json of Llama-3.1-8B"},
    {"70b", 70.55e9, 80, 8192, 8, 128, "config.json of Llama-3.1-70B"},
}};

constexpr double kBytesPerWeight = 2;        // bf16
constexpr double kMemoryEfficiency = 0.8;    // of the data sheet's bandwidth, for weights read once
constexpr double kComputeEfficiency = 0.6;   // of the dense peak
constexpr double kLayerSeconds = 5e-6;       // kernels of a layer beyond what they read
constexpr double kAllReduceSeconds = 10e-6;  // small messages over NVLink; two a layer
constexpr double kMemoryForModel = 0.9;      // the rest is activations and buffers
// With these, 70b on 4 h100 decodes 65.7 tokens/s; published runs of that setting read about 66.

template <class Table>
Result<typename Table::value_type> find_preset(const Table& table, std::string_view name, const char* what) {
  const auto at = std::find_if(table.begin(), table.end(), [&](const auto& p) { return p.name == name; });
  if (at != table.end()) return *at;
  const auto near = std::min_element(table.begin(), table.end(), [&](const auto& a, const auto& b) {
    return edit_distance(a.name, name) < edit_distance(b.name, name);
  });
  return invalid_argument(
      fmt::format("there is no {} preset '{}'; did you mean '{}'?", what, name, near->name));
}

Result<int> parse_tp(std::string_view text) {
  int tp = 1;
  if (text.empty()) return tp;
  if (text.starts_with("tp")) text.remove_prefix(2);
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), tp);
  if (error != std::errc() || rest != text.data() + text.size() || (tp != 1 && tp != 2 && tp != 4 && tp != 8))
    return invalid_argument(fmt::format("tensor-parallel size '{}' must be tp1, tp2, tp4 or tp8", text));
  return tp;
}

}  // namespace

Result<HardwareCost> hardware_cost(std::string_view text) {
  const size_t one = text.find(':');
  const size_t two = one == std::string_view::npos ? one : text.find(':', one + 1);
  if (one == std::string_view::npos)
    return invalid_argument(fmt::format("hardware '{}': write GPU:MODEL[:tpN], e.g. h100:70b:tp4", text));
  ASSIGN_OR_RETURN(const GpuPreset gpu, find_preset(kGpus, text.substr(0, one), "GPU"));
  ASSIGN_OR_RETURN(
      const ModelPreset model,
      find_preset(kModels, text.substr(one + 1, two == text.npos ? two : two - one - 1), "model"));
  ASSIGN_OR_RETURN(const int tp, parse_tp(two == text.npos ? "" : text.substr(two + 1)));
  const double weights = model.parameters * kBytesPerWeight;
  const double room = gpu.memory_bytes * kMemoryForModel * tp - weights;
  if (room <= 0)
    return invalid_argument(
        fmt::format("hardware '{}': {:.0f} GB of weights do not fit in {} x {:.0f} GB; use a larger tp", text,
                    weights * 1e-9, tp, gpu.memory_bytes * kMemoryForModel * 1e-9));
  const double kv_token = 2.0 * model.layers * model.kv_heads * model.head_size * kBytesPerWeight;
  const double bandwidth = gpu.bytes_per_second * kMemoryEfficiency * tp;
  HardwareCost cost{
      .pass = {.base = weights / bandwidth,
               .per_row = 0,
               .per_context = kv_token / bandwidth,
               .compute_per_row = 2 * model.parameters / (gpu.flops * kComputeEfficiency * tp),
               .overhead = model.layers * (kLayerSeconds + (tp > 1 ? 2 * kAllReduceSeconds : 0))},
      .kv_tokens = room / kv_token,
      .description = {}};
  cost.description = fmt::format("{} on {} x {}: {:.2f} ms a plain step, room for {:.0f} KV tokens",
                                 model.name, tp, gpu.name, cost.pass.seconds(1, 0) * 1e3, cost.kv_tokens);
  return cost;
}

std::string list_hardware() {
  std::string out = "GPUs\n";
  for (const GpuPreset& gpu : kGpus)
    out += fmt::format("  {:<5} {:.0f} GB, {:.2f} TB/s, {:.0f} TFLOP/s bf16   [{}]\n", gpu.name,
                       gpu.memory_bytes * 1e-9, gpu.bytes_per_second * 1e-12, gpu.flops * 1e-12, gpu.source);
  out += "models (bf16)\n";
  for (const ModelPreset& model : kModels)
    out += fmt::format("  {:<5} {:.2f} G parameters, {} layers   [{}]\n", model.name, model.parameters * 1e-9,
                       model.layers, model.source);
  return out + fmt::format(
                   "efficiencies: {:.0f} % of bandwidth, {:.0f} % of peak, {:.0f} us a layer, {:.0f} us an "
                   "all-reduce\n",
                   kMemoryEfficiency * 100, kComputeEfficiency * 100, kLayerSeconds * 1e6,
                   kAllReduceSeconds * 1e6);
}

}  // namespace outrider
