#include "model_files/weight_map.h"

#include <fmt/format.h>

#include "model_files/family.h"
#include "model_files/mlp_map.h"
#include "model_files/quantization_config.h"
#include "model_files/tensor_parts.h"

namespace outrider {
namespace {

class Mapper {
 public:
  Mapper(const TensorFiles& files, const ModelConfig& config, const ShardPlan& plan)
      : config_(config), plan_(plan), whole_(config, {}), parts_(files, config, plan), mlps_(parts_) {}

  Result<WeightMap> map() const;
  Result<LayerSources> layer(const std::string& prefix, const LayerKind& kind) const;

 private:
  Status map_attention(const std::string& prefix, const LayerKind& kind, LayerSources& to) const;
  Status map_projections(const std::string& prefix, const LayerKind& kind, LayerSources& to) const;
  Status map_short_convolution(const std::string& prefix, LayerSources& to) const;
  Status map_delta_net(const std::string& prefix, LayerSources& to) const;
  Status map_delta_projections(const std::string& prefix, LayerSources& to) const;
  Status map_gated_queries(const std::string& prefix, LayerSources& to) const;
  Result<const TensorInfo*> taps_tensor(const std::string& name, int64_t channels, int64_t taps) const;
  Result<LatentSources> latent(const std::string& prefix) const;
  Status map_norms(const std::string& prefix, LayerSources& to) const;
  Result<LayerInputSources> layer_input(const std::string& prefix) const;
  Result<InputTableSources> input_table() const;

  const ModelConfig& config_;
  const ShardPlan& plan_;
  const ShardPlan whole_;  // of one rank
  const TensorParts parts_;
  const MlpMapper mlps_;
  const FamilyTraits& traits_ = traits_of(config_.family);
};

// Updates the properties of the whole map from one matrix.
void add_facts(const MatrixSource& source, WeightMap& map) {
  for (const TensorPart& part : source.parts) {
    const bool is_codes = part.scales || part.coded;
    map.has_codes |= is_codes;
    map.all_bf16 &= is_codes || part.tensor->dtype == Dtype::kBF16;
  }
}

void add_facts(WeightMap& map) {
  map.all_bf16 = true;
  for (const MatrixSource* source : map.vocabulary_matrices()) add_facts(*source, map);
  for (const MatrixSource* source : map.layer_matrices()) add_facts(*source, map);
}

Status Mapper::map_projections(const std::string& prefix, const LayerKind& kind, LayerSources& to) const {
  const int64_t d = config_.head_dim, q_size = config_.q_size(), kv_size = config_.kv_size();
  const IndexRange q{plan_.query_heads.begin * d, plan_.query_heads.end * d};
  const IndexRange kv{plan_.kv_heads.begin * d, plan_.kv_heads.end * d};
  struct Projection {
    const char* name;
    int64_t size, offset;  // of the fused one
    IndexRange rows;
  };
  for (const Projection& p : {Projection{"q_proj", q_size, 0, q}, Projection{"k_proj", kv_size, q_size, kv},
                              Projection{"v_proj", kv_size, q_size + kv_size, kv}}) {
    if (p.offset > 0 && kind.kv_of >= 0) break;
    if (p.offset > q_size && kind.values_are_keys) break;
    if (config_.attention_gate && p.offset == 0) {
      RETURN_IF_ERROR(map_gated_queries(prefix, to));
      continue;
    }
    ASSIGN_OR_RETURN(TensorPart part,
                     traits_.fused_projections
                         ? parts_.stacked(prefix + "qkv_proj.weight", q_size + 2 * kv_size, p.offset, p.rows)
                         : parts_.stacked(prefix + p.name + ".weight", p.size, 0, p.rows));
    to.qkv.parts.push_back(part);
    if (!config_.qkv_bias) continue;
    ASSIGN_OR_RETURN(TensorPart bias, parts_.vector(prefix + p.name + ".bias", p.size, p.rows));
    to.qkv_bias.push_back(bias);
  }
  if (!config_.attention_gate) return {};
  for (int64_t h = plan_.query_heads.begin; h < plan_.query_heads.end; ++h) {
    ASSIGN_OR_RETURN(TensorPart gate,
                     parts_.stacked(prefix + "q_proj.weight", 2 * q_size, (2 * h + 1) * d, {0, d}));
    to.qkv.parts.push_back(gate);
  }
  return {};
}

// Rows of q_proj are, head by head, those of the query and those of the gate. The gates come behind the
// values (map_projections).
Status Mapper::map_gated_queries(const std::string& prefix, LayerSources& to) const {
  const int64_t d = config_.head_dim;
  for (int64_t h = plan_.query_heads.begin; h < plan_.query_heads.end; ++h) {
    ASSIGN_OR_RETURN(TensorPart part,
                     parts_.stacked(prefix + "q_proj.weight", 2 * config_.q_size(), 2 * h * d, {0, d}));
    to.qkv.parts.push_back(part);
  }
  return {};
}

// Rows of kv_b_proj are, head by head, those that make keys and those that make values. The former are read
// as the columns that they are to a query.
Result<LatentSources> Mapper::latent(const std::string& prefix) const {
  const LatentConfig& c = *config_.latent;
  const int64_t hidden = config_.hidden_size, heads = config_.num_heads, each = c.nope_dim + c.value_dim;
  const IndexRange all{0, hidden}, own = plan_.query_heads;
  LatentSources to;
  if (c.q_rank > 0) {
    ASSIGN_OR_RETURN(TensorPart q_a,
                     parts_.matrix(prefix + "q_a_proj.weight", {c.q_rank, hidden}, {0, c.q_rank}, all));
    to.q_a = {{q_a}, {}};
    ASSIGN_OR_RETURN(TensorPart norm,
                     parts_.vector(prefix + "q_a_layernorm.weight", c.q_rank, {0, c.q_rank}));
    to.q_norm = {norm};
  }
  const int64_t inputs = c.q_rank > 0 ? c.q_rank : hidden;
  ASSIGN_OR_RETURN(TensorPart q,
                   parts_.matrix(prefix + (c.q_rank > 0 ? "q_b_proj.weight" : "q_proj.weight"),
                                 {heads * c.query_dim(), inputs},
                                 {own.begin * c.query_dim(), own.end * c.query_dim()}, {0, inputs}));
  to.q = {{q}, {}};
  const int64_t width = c.kv_rank + c.rope_dim;
  ASSIGN_OR_RETURN(TensorPart kv_a,
                   parts_.matrix(prefix + "kv_a_proj_with_mqa.weight", {width, hidden}, {0, width}, all));
  to.kv_a = {{kv_a}, {}};
  ASSIGN_OR_RETURN(TensorPart norm,
                   parts_.vector(prefix + "kv_a_layernorm.weight", c.kv_rank, {0, c.kv_rank}));
  to.kv_norm = {norm};
  if (parts_.files().find(prefix + "k_b_proj.0.weight")) {  // GGUF has both halves, and keys as columns
    for (int64_t h = own.begin; h < own.end; ++h) {
      ASSIGN_OR_RETURN(TensorPart key,
                       parts_.matrix(fmt::format("{}k_b_proj.{}.weight", prefix, h), {c.kv_rank, c.nope_dim},
                                     {0, c.kv_rank}, {0, c.nope_dim}));
      ASSIGN_OR_RETURN(TensorPart value,
                       parts_.matrix(fmt::format("{}v_b_proj.{}.weight", prefix, h), {c.value_dim, c.kv_rank},
                                     {0, c.value_dim}, {0, c.kv_rank}));
      to.key_up.push_back({{key}, {}});
      to.value_up.push_back({{value}, {}});
    }
    return to;
  }
  ASSIGN_OR_RETURN(const TensorPart up, parts_.matrix(prefix + "kv_b_proj.weight", {heads * each, c.kv_rank},
                                                      {0, heads * each}, {0, c.kv_rank}));
  if (up.scales) return unsupported(up.tensor->name + " is quantised by outrider; use the original model");
  for (int64_t h = own.begin; h < own.end; ++h) {
    TensorPart key = up, value = up;
    key.rows = {0, c.kv_rank};
    key.columns = {0, c.nope_dim};
    key.apart = ElementsApart{.first = h * each * c.kv_rank, .row = 1, .column = c.kv_rank};
    value.rows = {h * each + c.nope_dim, (h + 1) * each};
    to.key_up.push_back({{key}, {}});
    to.value_up.push_back({{value}, {}});
  }
  return to;
}

// Weights of a convolution: [channels, 1, taps], in GGUF [channels, taps].
Result<const TensorInfo*> Mapper::taps_tensor(const std::string& name, int64_t channels, int64_t taps) const {
  const TensorInfo* const found = parts_.files().find(name);
  const bool is_flat = found != nullptr && found->shape.size() == 2;
  ASSIGN_OR_RETURN(const TensorInfo* info,
                   parts_.files().require(name, is_flat ? std::vector<int64_t>{channels, taps}
                                                        : std::vector<int64_t>{channels, 1, taps}));
  if (!is_weight_dtype(info->dtype))
    return unsupported(
        fmt::format("tensor {} is {}; weights must be F32, BF16 or F16", name, dtype_name(info->dtype)));
  return info;
}

// Rows of in_proj are B, then C, then x.
Status Mapper::map_short_convolution(const std::string& prefix, LayerSources& to) const {
  const int64_t hidden = config_.hidden_size, taps = config_.conv_taps;
  const IndexRange own = plan_.conv_channels;
  for (const int64_t first : {int64_t{0}, hidden, 2 * hidden}) {
    ASSIGN_OR_RETURN(TensorPart part, parts_.stacked(prefix + "in_proj.weight", 3 * hidden, first, own));
    to.qkv.parts.push_back(part);
  }
  ASSIGN_OR_RETURN(const TensorInfo* info, taps_tensor(prefix + "conv.weight", hidden, taps));
  for (int64_t tap = 0; tap < taps; ++tap)
    to.conv.push_back({.tensor = info,
                       .rows = {0, 1},
                       .columns = own,
                       .apart = ElementsApart{.first = tap, .column = taps}});
  ASSIGN_OR_RETURN(TensorPart out, parts_.matrix(prefix + "out_proj.weight", {hidden, hidden}, {0, hidden},
                                                 own, whole_.conv_leaf_ends));
  to.o = {{out}, plan_.conv_leaf_ends};
  return {};
}

// Into [q | k | v | b | a | gate] of this rank's heads.
Status Mapper::map_delta_projections(const std::string& prefix, LayerSources& to) const {
  const DeltaNetConfig& c = *config_.delta_net;
  const DeltaNetPart& own = *plan_.delta_net;
  const auto add = [&](const char* name, int64_t stored, int64_t offset, IndexRange rows) -> Status {
    ASSIGN_OR_RETURN(TensorPart part, parts_.stacked(prefix + name + ".weight", stored, offset, rows));
    to.qkv.parts.push_back(part);
    return {};
  };
  const int64_t values_each = c.value_heads / c.key_heads;
  const bool fuses_qkvz = parts_.files().find(prefix + "in_proj_qkvz.weight") != nullptr,
             fuses_ba = parts_.files().find(prefix + "in_proj_ba.weight") != nullptr;
  if ((fuses_qkvz || fuses_ba) && traits_.delta_nets != DeltaNets::kFused)
    return unsupported(
        fmt::format("{}in_proj_qkvz and in_proj_ba are not tensors of {}", prefix, traits_.architecture));
  // Fused tensors are stored key head by key head: [q | k | v | gate] and [b | a].
  const int64_t stride = 2 * (c.key_dim + values_each * c.value_dim), fused = c.key_heads * stride;
  for (const int64_t part : {0, 1})  // queries, keys
    for (const int64_t key : own.keys)
      RETURN_IF_ERROR(fuses_qkvz ? add("in_proj_qkvz", fused, key * stride + part * c.key_dim, {0, c.key_dim})
                                 : add("in_proj_qkv", c.channels(), part * c.key_size() + key * c.key_dim,
                                       {0, c.key_dim}));
  const auto rows_of_values = [&](int64_t size) {
    return IndexRange{own.values.begin * size, own.values.end * size};
  };
  const auto add_fused_values = [&](int64_t first) -> Status {
    for (int64_t value = own.values.begin; value < own.values.end; ++value)
      RETURN_IF_ERROR(add("in_proj_qkvz", fused,
                          value / values_each * stride + first + value % values_each * c.value_dim,
                          {0, c.value_dim}));
    return {};
  };
  RETURN_IF_ERROR(fuses_qkvz
                      ? add_fused_values(2 * c.key_dim)
                      : add("in_proj_qkv", c.channels(), 2 * c.key_size(), rows_of_values(c.value_dim)));
  for (const int64_t part : {0, 1}) {  // b, a
    if (!fuses_ba) {
      RETURN_IF_ERROR(add(part == 0 ? "in_proj_b" : "in_proj_a", c.value_heads, 0, own.values));
      continue;
    }
    for (int64_t value = own.values.begin; value < own.values.end; ++value)
      RETURN_IF_ERROR(add("in_proj_ba", 2 * c.value_heads,
                          (2 * (value / values_each) + part) * values_each + value % values_each, {0, 1}));
  }
  if (fuses_qkvz) {
    RETURN_IF_ERROR(add_fused_values(2 * c.key_dim + values_each * c.value_dim));
  } else {
    RETURN_IF_ERROR(add("in_proj_z", c.value_size(), 0, rows_of_values(c.value_dim)));
  }
  if (!to.qkv.parts.empty()) return {};
  return add("in_proj_qkvz", fused, 0, {0, 0});  // a rank without heads has no rows
}

Status Mapper::map_delta_net(const std::string& prefix, LayerSources& to) const {
  const DeltaNetConfig& c = *config_.delta_net;
  const DeltaNetPart& own = *plan_.delta_net;
  const int64_t hidden = config_.hidden_size;
  const IndexRange columns{own.values.begin * c.value_dim, own.values.end * c.value_dim};
  RETURN_IF_ERROR(map_delta_projections(prefix, to));
  ASSIGN_OR_RETURN(const TensorInfo* taps, taps_tensor(prefix + "conv1d.weight", c.channels(), c.taps));
  for (int64_t tap = 0; tap < c.taps; ++tap) {
    const auto add = [&](IndexRange channels) {
      to.conv.push_back({.tensor = taps,
                         .rows = {0, 1},
                         .columns = channels,
                         .apart = ElementsApart{.first = tap, .column = c.taps}});
    };
    for (const int64_t first : {int64_t{0}, c.key_size()})
      for (const int64_t key : own.keys) add({first + key * c.key_dim, first + (key + 1) * c.key_dim});
    add({2 * c.key_size() + columns.begin, 2 * c.key_size() + columns.end});
  }
  DeltaNetSources& net = to.delta_net.emplace();
  net.is_rate = parts_.files().find(prefix + "A") != nullptr;  // GGUF
  ASSIGN_OR_RETURN(TensorPart decay,
                   parts_.vector(prefix + (net.is_rate ? "A" : "A_log"), c.value_heads, own.values));
  net.decay = {decay};
  ASSIGN_OR_RETURN(TensorPart dt_bias, parts_.vector(prefix + "dt_bias", c.value_heads, own.values));
  net.dt_bias = {dt_bias};
  ASSIGN_OR_RETURN(TensorPart norm, parts_.vector(prefix + "norm.weight", c.value_dim, {0, c.value_dim}));
  net.norm = {norm};
  ASSIGN_OR_RETURN(TensorPart out, parts_.matrix(prefix + "out_proj.weight", {hidden, c.value_size()},
                                                 {0, hidden}, columns, whole_.delta_net->leaf_ends));
  to.o = {{out}, own.leaf_ends};
  return {};
}

Status Mapper::map_attention(const std::string& prefix, const LayerKind& kind, LayerSources& to) const {
  const int64_t d = config_.head_dim, hidden = config_.hidden_size, out = config_.output_dim();
  const IndexRange q{plan_.query_heads.begin * d, plan_.query_heads.end * d};
  const IndexRange kv{plan_.kv_heads.begin * d, plan_.kv_heads.end * d};
  const IndexRange all{0, hidden};
  if (config_.latent) {
    ASSIGN_OR_RETURN(to.latent, latent(prefix));
  } else {
    RETURN_IF_ERROR(map_projections(prefix, kind, to));
  }
  ASSIGN_OR_RETURN(
      TensorPart o_part,
      parts_.matrix(prefix + std::string(traits_.names.o) + ".weight", {hidden, config_.num_heads * out}, all,
                    {plan_.query_heads.begin * out, plan_.query_heads.end * out},
                    whole_.attention_leaf_ends));
  to.o = {{o_part}, plan_.attention_leaf_ends};
  if (config_.o_bias) {
    ASSIGN_OR_RETURN(TensorPart bias,
                     parts_.vector(prefix + std::string(traits_.names.o) + ".bias", hidden, all));
    to.o_bias = {bias};
  }
  if (config_.attention_sinks) {
    ASSIGN_OR_RETURN(TensorPart sinks, parts_.vector(prefix + "sinks", config_.num_heads, plan_.query_heads));
    to.sinks = {sinks};
  }
  if (config_.qk_norm != QkNorm::kNone) {
    const bool whole = config_.qk_norm == QkNorm::kWhole;
    ASSIGN_OR_RETURN(TensorPart q_norm,
                     parts_.vector(prefix + std::string(traits_.q_norm) + ".weight",
                                   whole ? config_.q_size() : d, whole ? q : IndexRange{0, d}));
    to.q_norm = {q_norm};
    if (kind.kv_of >= 0) return {};
    ASSIGN_OR_RETURN(TensorPart k_norm,
                     parts_.vector(prefix + std::string(traits_.k_norm) + ".weight",
                                   whole ? config_.kv_size() : d, whole ? kv : IndexRange{0, d}));
    to.k_norm = {k_norm};
  }
  return {};
}

Status Mapper::map_norms(const std::string& prefix, LayerSources& to) const {
  const bool before = config_.norm_place != NormPlace::kAfter,
             after = config_.norm_place != NormPlace::kBefore;
  const auto add = [&](std::string_view name, VectorSource& norm) -> Status {
    ASSIGN_OR_RETURN(TensorPart part, parts_.vector(prefix + std::string(name) + ".weight",
                                                    config_.hidden_size, {0, config_.hidden_size}));
    norm = {part};
    return {};
  };
  if (before) RETURN_IF_ERROR(add(traits_.names.attention_norm, to.attention_norm));
  if (before) RETURN_IF_ERROR(add(after ? "pre_feedforward_layernorm" : traits_.names.mlp_norm, to.mlp_norm));
  if (after) RETURN_IF_ERROR(add("post_attention_layernorm", to.attention_out_norm));
  if (after) RETURN_IF_ERROR(add("post_feedforward_layernorm", to.mlp_out_norm));
  return {};
}

Result<LayerInputSources> Mapper::layer_input(const std::string& prefix) const {
  const int64_t hidden = config_.hidden_size, size = config_.layer_input_size;
  LayerInputSources to;
  ASSIGN_OR_RETURN(TensorPart gate, parts_.matrix(prefix + "per_layer_input_gate.weight", {size, hidden},
                                                  {0, size}, {0, hidden}));
  to.gate = {{gate}, {}};
  ASSIGN_OR_RETURN(TensorPart out, parts_.matrix(prefix + "per_layer_projection.weight", {hidden, size},
                                                 {0, hidden}, {0, size}));
  to.out = {{out}, {}};
  ASSIGN_OR_RETURN(TensorPart norm,
                   parts_.vector(prefix + "post_per_layer_input_norm.weight", hidden, {0, hidden}));
  to.norm = {norm};
  return to;
}

Result<InputTableSources> Mapper::input_table() const {
  const int64_t hidden = config_.hidden_size, size = config_.layer_input_size,
                all = config_.num_layers * size;
  InputTableSources to;
  ASSIGN_OR_RETURN(TensorPart table, parts_.matrix("model.embed_tokens_per_layer.weight",
                                                   {config_.vocab_size, all}, plan_.vocab, {0, all}));
  to.table = {{table}, {}};
  ASSIGN_OR_RETURN(TensorPart projection, parts_.matrix("model.per_layer_model_projection.weight",
                                                        {all, hidden}, {0, all}, {0, hidden}));
  to.projection = {{projection}, {}};
  ASSIGN_OR_RETURN(TensorPart norm, parts_.vector("model.per_layer_projection_norm.weight", size, {0, size}));
  to.norm = {norm};
  return to;
}

Result<LayerSources> Mapper::layer(const std::string& prefix, const LayerKind& kind) const {
  if (kind.has_own_sizes()) {
    const ModelConfig sized = config_.sized_for(kind);
    LayerKind rest = kind;
    rest.head_dim = rest.kv_heads = rest.intermediate_size = 0;
    return map_layer(parts_.files(), sized, ShardPlan(sized, plan_.shard), prefix, rest);
  }
  LayerSources to;
  RETURN_IF_ERROR(map_norms(prefix, to));
  switch (kind.mixer) {
    case Mixer::kAttention:
      RETURN_IF_ERROR(map_attention(prefix + "self_attn.", kind, to));
      break;
    case Mixer::kShortConv:
      RETURN_IF_ERROR(map_short_convolution(prefix + "conv.", to));
      break;
    case Mixer::kDeltaNet:
      RETURN_IF_ERROR(map_delta_net(prefix + "linear_attn.", to));
      break;
  }
  if (config_.layer_input_size > 0) {
    ASSIGN_OR_RETURN(to.input, layer_input(prefix));
  }
  if (config_.scales_layers) {
    ASSIGN_OR_RETURN(TensorPart scale, parts_.vector(prefix + "layer_scalar", 1, {0, 1}));
    to.scale = {scale};
  }
  if (kind.has_experts) {
    ASSIGN_OR_RETURN(to.mlp, mlps_.mixture(prefix));
  } else {
    ASSIGN_OR_RETURN(to.mlp, mlps_.dense_mlp(prefix + std::string(traits_.names.mlp)));
  }
  return to;
}

Result<WeightMap> Mapper::map() const {
  const int64_t hidden = config_.hidden_size;
  const std::vector<int64_t> table{config_.vocab_size, hidden};
  const IndexRange all{0, hidden};
  WeightMap map;
  ASSIGN_OR_RETURN(TensorPart embedding, parts_.matrix("model.embed_tokens.weight", table, plan_.vocab, all));
  if (config_.tie_word_embeddings) {
    map.head = {{embedding}, {}};
  } else {
    map.embedding = MatrixSource{{embedding}, {}};
    ASSIGN_OR_RETURN(TensorPart head, parts_.matrix("lm_head.weight", table, plan_.vocab, all));
    map.head = {{head}, {}};
  }
  if (config_.layer_input_size > 0) {
    ASSIGN_OR_RETURN(map.inputs, input_table());
  }
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    ASSIGN_OR_RETURN(LayerSources sources, layer(fmt::format("model.layers.{}.", i), config_.layer(i)));
    map.layers.push_back(std::move(sources));
  }
  ASSIGN_OR_RETURN(TensorPart final_norm,
                   parts_.vector("model." + std::string(traits_.names.final_norm) + ".weight", hidden, all));
  map.final_norm = {final_norm};
  add_facts(map);
  if (config_.quantization && !map.has_codes)
    return invalid_argument(fmt::format(
        "config.json: \"quantization_config\" names {}, but no matrix of the model is stored so; if the "
        "weights are bf16, fp16 or fp32, remove it",
        config_.quantization->name()));
  return map;
}

}  // namespace

Result<WeightMap> map_weights(const TensorFiles& files, const ModelConfig& config, const ShardPlan& plan) {
  return Mapper(files, config, plan).map();
}

Result<LayerSources> map_layer(const TensorFiles& files, const ModelConfig& config, const ShardPlan& plan,
                               const std::string& prefix, const LayerKind& kind) {
  return Mapper(files, config, plan).layer(prefix, kind);
}

}  // namespace outrider
