#include "cluster/simulation/hardware.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/nearest.h"
#include "base/parse_number.h"

namespace outrider {
namespace {

// CPUs stand here by the socket. The Xeon: 8 channels of DDR5-4800; 56 cores at 2.0 GHz with 2048 bf16
// operations a cycle in AMX.
constexpr std::array<GpuPreset, 4> kGpus = {{
    {"a100", 80e9, 2.039e12, 312e12, false, "NVIDIA A100 80GB SXM data sheet"},
    {"h100", 80e9, 3.35e12, 989e12, false, "NVIDIA H100 SXM data sheet"},
    {"h200", 141e9, 4.8e12, 989e12, false, "NVIDIA H200 SXM data sheet"},
    {"xeon8480", 512e9, 307.2e9, 229e12, true, "Intel Xeon Platinum 8480+ data sheet"},
}};
constexpr std::array<ModelPreset, 3> kModels = {{
    {"1b", 1.236e9, 16, 2048, 8, 64, 8192, 128256, "config.json of Llama-3.2-1B"},
    {"8b", 8.03e9, 32, 4096, 8, 128, 14336, 128256, "config.json of Llama-3.1-8B"},
    {"70b", 70.55e9, 80, 8192, 8, 128, 28672, 128256, "config.json of Llama-3.1-70B"},
}};

constexpr double kBytesPerWeight = 2;        // bf16
constexpr double kMemoryEfficiency = 0.8;    // of the data sheet's bandwidth, for weights read once
constexpr double kComputeEfficiency = 0.6;   // of the dense peak
constexpr double kAllReduceSeconds = 10e-6;  // small messages over NVLink; two a layer
constexpr double kMemoryForModel = 0.9;      // the rest: the driver, workspaces and buffers
constexpr double kRowsOfAPass = 512;         // that activations have room for
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

// A whole number behind `prefix`, or nothing.
std::optional<int> number_after(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return std::nullopt;
  text.remove_prefix(prefix.size());
  return parse_number<int>(text);
}

// Devices of a group, and the part of each that is used.
struct Size {
  int devices = 1;
  double part = 1;
};

Result<Size> parse_size(std::string_view text, bool is_cpu) {
  if (text.empty()) return Size{};
  if (is_cpu) {
    const auto parts = number_after(text, "1/");
    if (!parts || *parts < 1 || *parts > 64)
      return invalid_argument(fmt::format("'{}' must be the part of a socket, 1/1 to 1/64", text));
    return Size{.part = 1.0 / *parts};
  }
  const auto tp = number_after(text, text.starts_with("tp") ? "tp" : "");
  if (!tp || (*tp != 1 && *tp != 2 && *tp != 4 && *tp != 8))
    return invalid_argument(fmt::format("tensor-parallel size '{}' must be tp1, tp2, tp4 or tp8", text));
  return Size{.devices = *tp};
}

// Bytes on one device, for a pass of many rows: the residual stream and its norms and projections whole, the
// MLP's inner columns and the logits as shards.
double activation_bytes(const ModelPreset& model, int tp) {
  const double columns = 6.0 * model.hidden * kBytesPerWeight +
                         2.0 * model.intermediate / tp * kBytesPerWeight + 4.0 * model.vocabulary / tp;
  return kRowsOfAPass * columns;
}

std::vector<CostSource> sources_of(const GpuPreset& gpu, const ModelPreset& model, const Size& size) {
  using Kind = CostSource::Kind;
  const std::string device(gpu.name);
  std::vector<CostSource> out{
      {device + " memory bandwidth", fmt::format("{:.4g} GB/s", gpu.bytes_per_second * 1e-9),
       Kind::kDataSheet, std::string(gpu.source)},
      {device + " bf16 peak", fmt::format("{:.4g} TFLOP/s", gpu.flops * 1e-12), Kind::kDataSheet,
       std::string(gpu.source)},
      {device + " memory", fmt::format("{:.4g} GB", gpu.memory_bytes * 1e-9),
       gpu.is_cpu ? Kind::kAssumption : Kind::kDataSheet,
       gpu.is_cpu ? "as servers have it" : std::string(gpu.source)},
      {fmt::format("{} shape", model.name),
       fmt::format("{:.4g} G parameters, {} layers", model.parameters * 1e-9, model.layers), Kind::kDataSheet,
       std::string(model.source)},
      {device + " efficiency",
       fmt::format("{:.0f} % of the bandwidth, {:.0f} % of the peak, {:.0f} us a layer",
                   kMemoryEfficiency * 100, kComputeEfficiency * 100, kLayerSeconds * 1e6),
       Kind::kAssumption, "of this program"}};
  if (size.devices > 1)
    out.push_back({"all-reduce", fmt::format("{:.0f} us, two a layer", kAllReduceSeconds * 1e6),
                   Kind::kAssumption, "of this program"});
  if (size.part < 1)
    out.push_back({device + " in parts", fmt::format("{:.3g} of bandwidth and peak each", size.part),
                   Kind::kAssumption, "of this program"});
  return out;
}

}  // namespace

std::string_view name_of(CostSource::Kind kind) {
  constexpr std::array<std::string_view, 4> kNames = {"fitted", "data sheet", "flag", "assumption"};
  return kNames[static_cast<size_t>(kind)];
}

Result<HardwareCost> hardware_cost(std::string_view text) {
  const size_t one = text.find(':');
  const size_t two = one == std::string_view::npos ? one : text.find(':', one + 1);
  if (one == std::string_view::npos)
    return invalid_argument(fmt::format("hardware '{}': write GPU:MODEL[:tpN], e.g. h100:70b:tp4", text));
  ASSIGN_OR_RETURN(const GpuPreset gpu, find_preset(kGpus, text.substr(0, one), "GPU"));
  ASSIGN_OR_RETURN(
      const ModelPreset model,
      find_preset(kModels, text.substr(one + 1, two == text.npos ? two : two - one - 1), "model"));
  ASSIGN_OR_RETURN(const Size size, parse_size(two == text.npos ? "" : text.substr(two + 1), gpu.is_cpu));
  const double weights = model.parameters * kBytesPerWeight;
  const double kv_token = 2.0 * model.layers * model.kv_heads * model.head_size * kBytesPerWeight;
  const double used = size.devices * size.part;
  const double bandwidth = gpu.bytes_per_second * kMemoryEfficiency * used;
  HardwareCost cost{
      .pass = {.base = weights / bandwidth,
               .per_row = 0,
               .per_context = kv_token / bandwidth,
               .compute_per_row = 2 * model.parameters / (gpu.flops * kComputeEfficiency * used),
               .overhead = model.layers * (kLayerSeconds + (size.devices > 1 ? 2 * kAllReduceSeconds : 0))},
      .model = model,
      .description = {},
      .devices = size.devices,
      .is_cpu = gpu.is_cpu,
      .layers = model.layers,
      .usable_bytes = gpu.memory_bytes * kMemoryForModel * size.part,
      .weight_bytes = weights / size.devices,
      .activation_bytes = activation_bytes(model, size.devices),
      .kv_token_bytes = kv_token / size.devices,
      .sources = sources_of(gpu, model, size)};
  const double room = cost.usable_bytes - cost.weight_bytes - cost.activation_bytes;
  if (room <= 0)
    return invalid_argument(fmt::format(
        "hardware '{}': {:.0f} GB of weights do not fit in {} x {:.0f} GB; use {}", text, weights * 1e-9,
        size.devices, cost.usable_bytes * 1e-9, gpu.is_cpu ? "a larger part of the socket" : "a larger tp"));
  cost.kv_tokens = room / cost.kv_token_bytes;
  cost.description = fmt::format("{} on {:g} x {}: {:.2f} ms a plain step, room for {:.0f} KV tokens",
                                 model.name, used, gpu.name, cost.pass.seconds(1, 0) * 1e3, cost.kv_tokens);
  return cost;
}

std::string list_hardware() {
  std::string out = "GPUs, and sockets of CPUs\n";
  for (const GpuPreset& gpu : kGpus)
    out += fmt::format("  {:<8} {:.0f} GB, {:.2f} TB/s, {:.0f} TFLOP/s bf16   [{}]\n", gpu.name,
                       gpu.memory_bytes * 1e-9, gpu.bytes_per_second * 1e-12, gpu.flops * 1e-12, gpu.source);
  out += "models (bf16)\n";
  for (const ModelPreset& model : kModels)
    out += fmt::format("  {:<8} {:.2f} G parameters, {} layers   [{}]\n", model.name, model.parameters * 1e-9,
                       model.layers, model.source);
  return out + fmt::format(
                   "efficiencies: {:.0f} % of bandwidth, {:.0f} % of peak, {:.0f} us a layer, {:.0f} us an "
                   "all-reduce\n",
                   kMemoryEfficiency * 100, kComputeEfficiency * 100, kLayerSeconds * 1e6,
                   kAllReduceSeconds * 1e6);
}

}  // namespace outrider
