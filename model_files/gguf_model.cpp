#include "model_files/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "model_files/family.h"
#include "model_files/gguf_architecture.h"

namespace outrider {
namespace {

using nlohmann::json;

// Names within a layer, up to the last dot: "blk.3.attn_q.weight" is
// "model.layers.3.self_attn.q_proj.weight".
constexpr auto kParts = std::to_array<std::pair<std::string_view, std::string_view>>(
    {{"post_attention_norm", "post_attention_layernorm"},
     {"post_ffw_norm", "post_feedforward_layernorm"},
     {"attn_q", "self_attn.q_proj"},
     {"attn_k", "self_attn.k_proj"},
     {"attn_v", "self_attn.v_proj"},
     {"attn_q_a", "self_attn.q_a_proj"},
     {"attn_q_a_norm", "self_attn.q_a_layernorm"},
     {"attn_q_b", "self_attn.q_b_proj"},
     {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
     {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
     {"attn_kv_b", "self_attn.kv_b_proj"},
     {"shortconv.in_proj", "conv.in_proj"},
     {"shortconv.conv", "conv.conv"},
     {"shortconv.out_proj", "conv.out_proj"},
     {"attn_gate", "linear_attn.in_proj_z"},
     {"ssm_in", "linear_attn.in_proj_qkvz"},
     {"ssm_ba", "linear_attn.in_proj_ba"},
     {"ssm_beta", "linear_attn.in_proj_b"},
     {"ssm_alpha", "linear_attn.in_proj_a"},
     {"ssm_conv1d", "linear_attn.conv1d"},
     {"ssm_norm", "linear_attn.norm"},
     {"ssm_out", "linear_attn.out_proj"},
     {"ssm_a", "linear_attn.A"},
     {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
     {"inp_gate", "per_layer_input_gate"},
     {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
     {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
     {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
     {"proj", "per_layer_projection"},
     {"post_norm", "post_per_layer_input_norm"},
     // The tensors of a multi-token prediction module, which are stored as a layer behind the last.
     {"nextn.eh_proj", "eh_proj"},
     {"nextn.embed_tokens", "embed_tokens"},
     {"nextn.enorm", "enorm"},
     {"nextn.hnorm", "hnorm"},
     {"nextn.shared_head_head", "shared_head.head"},
     {"nextn.shared_head_norm", "shared_head.norm"}});

class TensorsOfGguf {
 public:
  TensorsOfGguf(const GgufArchitecture& architecture, const json& config, const std::string& file)
      : architecture_(architecture), traits_(traits_of(architecture.family)), config_(config), file_(file) {}

  Status add(TensorInfo tensor);
  const std::vector<TensorInfo>& tensors() const { return out_; }
  std::vector<TensorInfo> take() { return std::move(out_); }

 private:
  // A tensor of layer `layer`: `part` and `kind` are what its name ends with, "attn_q" and ".weight".
  Status add_of_layer(TensorInfo tensor, const std::string& layer, std::string_view part,
                      const std::string& kind);
  Status add_each(const TensorInfo& tensor, const std::string& before, const std::string& behind);
  Status add_rows(const TensorInfo& tensor, std::span<const std::pair<std::string, int64_t>> parts);
  // Queries, keys and values in one tensor.
  Status add_projections(const TensorInfo& tensor, const std::string& layer, const std::string& kind);
  Status add_experts(const TensorInfo& tensor, const std::string& layer, std::string_view part,
                     const std::string& kind);
  void put(TensorInfo tensor, std::string name);
  std::string expert_name(std::string_view part) const;

  const GgufArchitecture& architecture_;
  const FamilyTraits& traits_;
  const json& config_;
  const std::string& file_;
  std::vector<TensorInfo> out_;
};

void TensorsOfGguf::put(TensorInfo tensor, std::string name) {
  if (tensor.gguf_name.empty()) tensor.gguf_name = std::move(tensor.name);
  tensor.name = std::move(name);
  const bool is_rotated =
      tensor.name.find(".q_proj.") != tensor.name.npos || tensor.name.find(".k_proj.") != tensor.name.npos;
  if (is_rotated && architecture_.pairs_rows) tensor.paired_rows = config_["head_dim"];
  out_.push_back(std::move(tensor));
}

// Entries of the outermost dimension, each a tensor: BEFORE.3.BEHIND.
Status TensorsOfGguf::add_each(const TensorInfo& tensor, const std::string& before,
                               const std::string& behind) {
  if (tensor.shape.size() < 2)
    return malformed(fmt::format("{}: {} has one dimension", file_, printable(tensor.name)));
  const auto count = static_cast<size_t>(tensor.shape[0]), bytes = tensor.data.size() / count;
  for (size_t i = 0; i < count; ++i) {
    TensorInfo one{.name = {},
                   .dtype = tensor.dtype,
                   .shape = {tensor.shape.begin() + 1, tensor.shape.end()},
                   .data = tensor.data.subspan(i * bytes, bytes),
                   .gguf_name = tensor.name};
    put(std::move(one), fmt::format("{}{}{}", before, i, behind));
  }
  return {};
}

// Adds a tensor for each name, cut from consecutive rows of the outermost dimension.
Status TensorsOfGguf::add_rows(const TensorInfo& tensor,
                               std::span<const std::pair<std::string, int64_t>> parts) {
  int64_t rows = 0;
  for (const auto& [name, size] : parts) rows += size;
  if (tensor.shape[0] != rows)
    return malformed(
        fmt::format("{}: {} has {} rows, not {}", file_, printable(tensor.name), tensor.shape[0], rows));
  const size_t width = tensor.data.size() / static_cast<size_t>(rows);
  size_t at = 0;
  for (const auto& [name, size] : parts) {
    TensorInfo part{
        .name = {}, .dtype = tensor.dtype, .shape = tensor.shape, .data = {}, .gguf_name = tensor.name};
    part.shape[0] = size;
    part.data = tensor.data.subspan(at, static_cast<size_t>(size) * width);
    at += part.data.size();
    put(std::move(part), name);
  }
  return {};
}

// Keys are not checked here. A file with latent attention has no size of all heads, and no such tensor.
Status TensorsOfGguf::add_projections(const TensorInfo& tensor, const std::string& layer,
                                      const std::string& kind) {
  const int64_t queries = config_["num_attention_heads"],
                keys = config_.value("num_key_value_heads", queries),
                head = config_.value("head_dim", int64_t{0}), rows = tensor.shape[0];
  const auto fits = [&](int64_t heads) { return heads > 0 && heads <= rows / head; };
  if (head < 1 || !fits(queries) || !fits(keys))
    return malformed(fmt::format("{}: {} has {} rows, which are not {} query and {} key heads", file_,
                                 printable(tensor.name), rows, queries, keys));
  const std::array<std::pair<std::string, int64_t>, 3> parts{
      {{layer + "self_attn.q_proj" + kind, queries * head},
       {layer + "self_attn.k_proj" + kind, keys * head},
       {layer + "self_attn.v_proj" + kind, keys * head}}};
  return add_rows(tensor, parts);
}

// "ffn_gate_exps" is w1 of Mixtral, and gate_proj of others.
std::string TensorsOfGguf::expert_name(std::string_view part) const {
  const ExpertNames& names = *traits_.experts;
  if (part.starts_with("ffn_gate")) return names.packed ? "gate_proj" : std::string(names.gate);
  if (part.starts_with("ffn_up")) return names.packed ? "up_proj" : std::string(names.up);
  return names.packed ? "down_proj" : std::string(names.down);
}

Status TensorsOfGguf::add_experts(const TensorInfo& tensor, const std::string& layer, std::string_view part,
                                  const std::string& kind) {
  const std::string experts = layer + std::string(traits_.experts->block) + "experts.";
  if (part != "ffn_gate_up_exps") return add_each(tensor, experts, "." + expert_name(part) + kind);
  if (tensor.shape.size() < 2 || tensor.shape[1] % 2 != 0)
    return malformed(fmt::format("{}: {} is no gates and ups", file_, printable(tensor.name)));
  const auto count = static_cast<size_t>(tensor.shape[0]), bytes = tensor.data.size() / count;
  for (size_t i = 0; i < count; ++i) {
    TensorInfo one{.name = tensor.name,
                   .dtype = tensor.dtype,
                   .shape = {tensor.shape.begin() + 1, tensor.shape.end()},
                   .data = tensor.data.subspan(i * bytes, bytes)};
    const std::string own = fmt::format("{}{}.", experts, i);
    const int64_t half = tensor.shape[1] / 2;
    const std::array<std::pair<std::string, int64_t>, 2> parts{
        {{own + expert_name("ffn_gate") + kind, half}, {own + expert_name("ffn_up") + kind, half}}};
    RETURN_IF_ERROR(add_rows(one, parts));
  }
  return {};
}

Status TensorsOfGguf::add_of_layer(TensorInfo tensor, const std::string& layer, std::string_view part,
                                   const std::string& kind) {
  if (part == "ffn_norm") {
    const bool around = traits_.norm_place == NormPlace::kAround;
    put(std::move(tensor),
        layer + (around ? "pre_feedforward_layernorm" : std::string(traits_.names.mlp_norm)) + kind);
    return {};
  }
  if (part == "attn_q_norm" || part == "attn_k_norm") {
    const std::string_view norm = part == "attn_q_norm" ? traits_.q_norm : traits_.k_norm;
    put(std::move(tensor), layer + "self_attn." + std::string(norm) + kind);
    return {};
  }
  if (traits_.varied_layers && kind == ".scale" && (part == "ffn_gate_inp" || part == "ffn_down_exps")) {
    put(std::move(tensor), layer + (part == "ffn_gate_inp" ? "router.scale" : "router.per_expert_scale"));
    return {};
  }
  if (part == "layer_output_scale") {
    put(std::move(tensor), layer + "layer_scalar");
    return {};
  }
  if (part == "attn_sinks") {
    put(std::move(tensor), layer + "self_attn.sinks");
    return {};
  }
  if (traits_.delta_nets != DeltaNets::kNone && (part == "attn_qkv" || part == "ssm_dt")) {
    put(std::move(tensor),
        layer + "linear_attn." + (part == "attn_qkv" ? "in_proj_qkv" + kind : std::string("dt_bias")));
    return {};
  }
  if (part == "attn_qkv" && !traits_.fused_projections) return add_projections(tensor, layer, kind);
  if (traits_.fused_projections && (part == "attn_qkv" || part == "ffn_up")) {
    put(std::move(tensor), layer + (part == "ffn_up" ? "mlp.gate_up_proj" : "self_attn.qkv_proj") + kind);
    return {};
  }
  if (part == "attn_k_b" || part == "attn_v_b")
    return add_each(tensor, layer + "self_attn." + (part == "attn_k_b" ? "k_b_proj." : "v_b_proj."), kind);
  if (const ExpertNames* names = traits_.experts) {
    const std::string block = layer + std::string(names->block);
    if (part == "ffn_gate_inp") {
      put(std::move(tensor), block + std::string(names->router) + kind);
      return {};
    }
    if (part == "exp_probs_b") {
      put(std::move(tensor), block + std::string(names->correction));
      return {};
    }
    if (part == "ffn_gate_exps" || part == "ffn_up_exps" || part == "ffn_down_exps" ||
        part == "ffn_gate_up_exps")
      return add_experts(tensor, layer, part, kind);
    if (part == "ffn_gate_shexp" || part == "ffn_up_shexp" || part == "ffn_down_shexp") {
      const std::string projection(part.substr(4, part.size() - 4 - std::string_view("_shexp").size()));
      put(std::move(tensor), block + std::string(names->shared) + projection + "_proj" + kind);
      return {};
    }
    // "ffn_gate.3": one expert, as the first files of Mixtral have them.
    if (const size_t dot = part.find('.'); dot != part.npos && part.starts_with("ffn_")) {
      put(std::move(tensor), fmt::format("{}experts.{}.{}{}", block, part.substr(dot + 1),
                                         expert_name(part.substr(0, dot)), kind));
      return {};
    }
    if (part == "ffn_gate_inp_shexp" && tensor.shape.size() == 1)
      tensor.shape.insert(tensor.shape.begin(), 1);
  }
  const TensorNames& own = traits_.names;
  const std::string attention = "self_attn.", mlp(own.mlp);
  for (const auto& [from, to] : {std::pair<std::string_view, std::string>{"attn_norm", own.attention_norm},
                                 {"attn_output", attention + std::string(own.o)},
                                 {"ffn_gate", mlp + std::string(own.gate)},
                                 {"ffn_up", mlp + std::string(own.up)},
                                 {"ffn_down", mlp + std::string(own.down)}})
    if (from == part) {
      put(std::move(tensor), layer + to + kind);
      return {};
    }
  for (const auto& [from, to] : kParts)
    if (from == part) {
      put(std::move(tensor), layer + std::string(to) + kind);
      return {};
    }
  out_.push_back(std::move(tensor));  // a name that is not known stays, and is not read
  return {};
}

Status TensorsOfGguf::add(TensorInfo tensor) {
  for (const char* of_config : {kGgufRopeFactors, kGgufShortFactors, kGgufLongFactors})
    if (tensor.name == of_config) return {};
  const std::string final_norm = "model." + std::string(traits_.names.final_norm) + ".weight";
  const bool is_lfm2 = traits_.short_convolutions;  // whose norm is named after the embedding
  for (const auto& [from, to] :
       {std::pair<std::string_view, std::string>{"token_embd.weight", "model.embed_tokens.weight"},
        {"output_norm.weight", final_norm},
        {is_lfm2 ? "token_embd_norm.weight" : "output_norm.weight", final_norm},
        {"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
        {"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"},
        {"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"},
        {"output.weight", "lm_head.weight"}})
    if (tensor.name == from) {
      put(std::move(tensor), to);
      return {};
    }
  constexpr std::string_view kLayer = "blk.";
  const size_t layer_end = tensor.name.find('.', kLayer.size());
  const bool has_kind = !tensor.name.ends_with(".ssm_a");
  const size_t part_end = has_kind ? tensor.name.rfind('.') : tensor.name.size();
  if (!tensor.name.starts_with(kLayer) || layer_end == tensor.name.npos || part_end <= layer_end) {
    out_.push_back(std::move(tensor));
    return {};
  }
  const std::string name = tensor.name;
  const std::string layer =
      fmt::format("model.layers.{}.", name.substr(kLayer.size(), layer_end - kLayer.size()));
  const std::string_view part = std::string_view(name).substr(layer_end + 1, part_end - layer_end - 1);
  if (part == "attn_rot_embd") return {};  // frequencies, of the first files
  return add_of_layer(std::move(tensor), layer, part, name.substr(part_end));
}

}  // namespace

Result<std::vector<TensorInfo>> gguf_tensors(GgufContent content, const std::string& name) {
  ASSIGN_OR_RETURN(const json config, gguf_config(content, name));
  ASSIGN_OR_RETURN(const GgufArchitecture* architecture, gguf_architecture_of(content, name));
  TensorsOfGguf tensors(*architecture, config, name);
  for (TensorInfo& tensor : content.tensors) RETURN_IF_ERROR(tensors.add(std::move(tensor)));
  std::vector<TensorInfo> out = tensors.take();
  std::sort(out.begin(), out.end(), [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(
      out.begin(), out.end(), [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; });
  if (twice != out.end())
    return malformed(fmt::format("{}: two tensors are {}", name, printable(twice->name)));
  return out;
}

std::string gguf_tensor_name(std::string_view name, const GgufContent& content) {
  const auto architecture = gguf_architecture_of(content, "");
  const auto config = gguf_config(content, "");
  if (!architecture.ok() || !config.ok()) return std::string(name);
  constexpr std::string_view kLayers = "model.layers.";
  const size_t end = name.starts_with(kLayers) ? name.find('.', kLayers.size()) : name.npos;
  std::vector<std::string> candidates{
      "token_embd",           "output_norm",          "token_embd_norm",    "output",
      "per_layer_token_embd", "per_layer_model_proj", "per_layer_proj_norm"};
  if (end != name.npos) {
    const auto layer = fmt::format("blk.{}.", name.substr(kLayers.size(), end - kLayers.size()));
    candidates.clear();
    for (const char* part : {"attn_norm", "attn_output", "attn_qkv", "attn_q_norm", "attn_k_norm",
                             "attn_sinks", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_inp",
                             "exp_probs_b", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", "ssm_dt"})
      candidates.push_back(layer + part);
    for (const auto& [part, to] : kParts) candidates.push_back(layer + std::string(part));
  }
  // The names that these would get here.
  const std::string file;
  for (const std::string& candidate : candidates)
    for (const char* kind : {".weight", ".bias"}) {
      TensorsOfGguf one(**architecture, *config, file);
      const Status added =
          one.add({.name = candidate + kind, .dtype = Dtype::kF32, .shape = {1, 1}, .data = {}});
      if (added.ok() && !one.tensors().empty() && one.tensors().front().name == name) return candidate + kind;
    }
  return std::string(name);
}

bool gguf_values_in_turns(const GgufContent& content) {
  const auto architecture = gguf_architecture_of(content, "");
  return architecture.ok() && (*architecture)->values_in_turns;
}

bool gguf_norms_hold_one(const GgufContent& content) {
  const auto architecture = gguf_architecture_of(content, "");
  return architecture.ok() && (*architecture)->norms_hold_one;
}

}  // namespace outrider
