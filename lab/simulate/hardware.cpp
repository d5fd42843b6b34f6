#include "lab/simulate/hardware.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

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

// Those of Llama 3.
ModelConfig llama(int64_t layers, int64_t hidden, int64_t heads, int64_t ffn, bool tied) {
  return {.hidden_size = hidden,
          .num_layers = layers,
          .num_heads = heads,
          .num_kv_heads = 8,
          .head_dim = hidden / heads,
          .intermediate_size = ffn,
          .vocab_size = 128256,
          .tie_word_embeddings = tied};
}

ModelConfig deepseek_v2_lite() {
  ModelConfig config{
      .family = ModelFamily::kDeepseekV2,
      .hidden_size = 2048,
      .num_layers = 27,
      .num_heads = 16,
      .num_kv_heads = 1,
      .head_dim = 576,
      .latent = LatentConfig{.kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128},
      .intermediate_size = 10944,
      .vocab_size = 102400,
      .layers = std::vector<LayerKind>(27, LayerKind{.has_experts = true}),
      .experts = ExpertConfig{
          .count = 64, .chosen = 6, .intermediate_size = 1408, .shared_intermediate_size = 2 * 1408}};
  config.layers.front().has_experts = false;
  return config;
}

std::vector<ModelPreset> known_models() {
  std::vector<ModelPreset> models{
      {"1b", "config.json of Llama-3.2-1B", llama(16, 2048, 32, 8192, true), {}},
      {"8b", "config.json of Llama-3.1-8B", llama(32, 4096, 32, 14336, false), {}},
      {"v2-lite", "config.json of DeepSeek-V2-Lite", deepseek_v2_lite(), {}},
      {"70b", "config.json of Llama-3.1-70B", llama(80, 8192, 64, 28672, false), {}},
  };
  for (ModelPreset& model : models) model.size = size_of(model.config);
  return models;
}

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

Result<ModelPreset> find_model(std::string_view name) {
  if (name.find('/') == name.npos) return find_preset(known_models(), name, "model");
  ASSIGN_OR_RETURN(ModelConfig config, read_model_config(name));
  const ModelSize size = size_of(config);
  return ModelPreset{std::string(name), fmt::format("config.json of {}", name), std::move(config), size};
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
double activation_bytes(const ModelConfig& c, int tp) {
  int64_t inner = c.intermediate_size;
  if (c.experts)
    inner = std::max(inner,
                     c.experts->count * c.experts->intermediate_size + c.experts->shared_intermediate_size);
  const double columns = 6.0 * static_cast<double>(c.hidden_size) * kBytesPerWeight +
                         2.0 * static_cast<double>(inner) / tp * kBytesPerWeight +
                         4.0 * static_cast<double>(c.vocab_size) / tp;
  return kRowsOfAPass * columns;
}

std::string shape_text(const ModelPreset& model) {
  const double giga = 1e-9;
  std::string text = fmt::format("{:.4g} G parameters", static_cast<double>(model.size.parameters) * giga);
  if (model.size.experts > 0)
    text +=
        fmt::format(", {:.3g} G of them read for a token", static_cast<double>(model.size.active()) * giga);
  text += fmt::format(", {} layers", model.config.num_layers);
  if (model.config.latent)
    text += fmt::format(", {} numbers cached of a token in each", model.config.head_dim);
  return text;
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
      {fmt::format("{} shape", model.name), shape_text(model), Kind::kDataSheet, model.source},
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
  const size_t one = text.find(':'), last = text.rfind(':');
  if (one == std::string_view::npos)
    return invalid_argument(fmt::format("hardware '{}': write GPU:MODEL[:tpN], e.g. h100:70b:tp4", text));
  const bool has_size = last != one;
  ASSIGN_OR_RETURN(const GpuPreset gpu, find_preset(kGpus, text.substr(0, one), "GPU"));
  ASSIGN_OR_RETURN(const ModelPreset model,
                   find_model(text.substr(one + 1, has_size ? last - one - 1 : text.npos)));
  ASSIGN_OR_RETURN(const Size size, parse_size(has_size ? text.substr(last + 1) : "", gpu.is_cpu));
  const auto bytes = [](int64_t numbers) { return static_cast<double>(numbers) * kBytesPerWeight; };
  const double weights = bytes(model.size.parameters), experts = bytes(model.size.of_experts);
  // A CPU keeps a latent twice, in the order of keys and in that of values.
  const double kv_token = bytes(model.size.kv_numbers) * (model.size.shares_kv && gpu.is_cpu ? 2 : 1);
  const double kv_of_device = kv_token / (model.size.shares_kv ? 1 : size.devices);
  // Rows of short convolutions and gated delta nets lie in the cache and are not read by later tokens.
  const double not_read = bytes(model.size.row_numbers) / size.devices;
  const double used = size.devices * size.part;
  const double bandwidth = gpu.bytes_per_second * kMemoryEfficiency * used;
  const double flops = gpu.flops * kComputeEfficiency * used;
  const auto layers = static_cast<int>(model.config.num_layers);
  HardwareCost cost{
      .pass = {.base = (weights - experts) / bandwidth,
               .per_row = 0,
               .per_context = (kv_of_device - not_read) * size.devices / bandwidth,
               .compute_per_row = 2 * static_cast<double>(model.size.active()) / flops,
               .overhead = layers * (kLayerSeconds + (size.devices > 1 ? 2 * kAllReduceSeconds : 0)),
               .all_experts = experts / bandwidth,
               .share_of_row = model.size.experts > 0 ? static_cast<double>(model.size.chosen) /
                                                            static_cast<double>(model.size.experts)
                                                      : 0},
      .model = model,
      .description = {},
      .devices = size.devices,
      .is_cpu = gpu.is_cpu,
      .layers = layers,
      .usable_bytes = gpu.memory_bytes * kMemoryForModel * size.part,
      .weight_bytes = weights / size.devices,
      .activation_bytes = activation_bytes(model.config, size.devices),
      .kv_token_bytes = kv_of_device,
      .text_bytes = sizeof(float) * static_cast<double>(model.size.state_numbers) / size.devices,
      .bytes_per_second = bandwidth / size.devices,
      .flops = flops / size.devices,
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
  for (const ModelPreset& model : known_models())
    out += fmt::format("  {:<8} {}   [{}]\n", model.name, shape_text(model), model.source);
  out += "  DIR      any model directory, told by a '/': of its config.json\n";
  return out + fmt::format(
                   "efficiencies: {:.0f} % of bandwidth, {:.0f} % of peak, {:.0f} us a layer, {:.0f} us an "
                   "all-reduce\n",
                   kMemoryEfficiency * 100, kComputeEfficiency * 100, kLayerSeconds * 1e6,
                   kAllReduceSeconds * 1e6);
}

}  // namespace outrider
