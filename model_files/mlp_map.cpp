#include "model_files/mlp_map.h"

#include <fmt/format.h>

#include "model_files/mxfp4_codes.h"

namespace outrider {

Result<MlpSources> MlpMapper::mlp(const std::array<std::string, 3>& names, int64_t size) const {
  const int64_t hidden = config_.hidden_size;
  const MlpCut cut(size, plan_.shard), whole(size, {});
  const bool is_fused = names[0] == names[1];
  const int64_t rows = is_fused ? 2 * size : size;
  MlpSources to;
  ASSIGN_OR_RETURN(TensorPart gate, parts_.stacked(names[0] + ".weight", rows, 0, cut.columns));
  ASSIGN_OR_RETURN(TensorPart up,
                   parts_.stacked(names[1] + ".weight", rows, is_fused ? size : 0, cut.columns));
  to.gate_up = {{gate, up}, {}};
  ASSIGN_OR_RETURN(TensorPart down, parts_.matrix(names[2] + ".weight", {hidden, size}, {0, hidden},
                                                  cut.columns, whole.leaf_ends));
  to.down = {{down}, cut.leaf_ends};
  return to;
}

Result<MlpSources> MlpMapper::dense_mlp(const std::string& prefix) const {
  const int64_t hidden = config_.hidden_size, intermediate = config_.intermediate_size;
  if (traits_.fused_projections)
    return mlp({prefix + "gate_up_proj", prefix + "gate_up_proj", prefix + "down_proj"}, intermediate);
  const TensorNames& own = traits_.names;
  const std::array<std::string, 3> names{prefix + std::string(own.gate), prefix + std::string(own.up),
                                         prefix + std::string(own.down)};
  ASSIGN_OR_RETURN(MlpSources to, mlp(names, intermediate));
  if (config_.mlp_bias) {
    ASSIGN_OR_RETURN(TensorPart gate_bias,
                     parts_.vector(names[0] + ".bias", intermediate, plan_.mlp_columns));
    ASSIGN_OR_RETURN(TensorPart up_bias, parts_.vector(names[1] + ".bias", intermediate, plan_.mlp_columns));
    to.gate_up_bias = {gate_bias, up_bias};
    ASSIGN_OR_RETURN(TensorPart down_bias, parts_.vector(names[2] + ".bias", hidden, {0, hidden}));
    to.down_bias = {down_bias};
  }
  return to;
}

Result<MlpSources> MlpMapper::expert(const std::string& prefix, int64_t index) const {
  const ExpertNames& names = *traits_.experts;
  const std::string own = fmt::format("{}{}.", prefix, index);
  const int64_t size = config_.experts->intermediate_size;
  if (!names.packed)
    return mlp({own + std::string(names.gate), own + std::string(names.up), own + std::string(names.down)},
               size);
  const std::array<std::string, 3> projections{own + "gate_proj", own + "up_proj", own + "down_proj"};
  ASSIGN_OR_RETURN(MlpSources to, mlp(projections, size));
  if (!names.biases) return to;
  const MlpCut cut(size, plan_.shard);
  for (const std::string& name : {projections[0], projections[1]}) {
    ASSIGN_OR_RETURN(TensorPart bias, parts_.vector(name + ".bias", size, cut.columns));
    to.gate_up_bias.push_back(bias);
  }
  ASSIGN_OR_RETURN(TensorPart bias,
                   parts_.vector(projections[2] + ".bias", config_.hidden_size, {0, config_.hidden_size}));
  to.down_bias = {bias};
  return to;
}

Result<TensorPart> MlpMapper::packed_matrix(const Packed& of, EveryOther every, IndexRange rows,
                                            IndexRange columns) const {
  const int64_t experts = config_.experts->count;
  if (config_.quantization && files_.find(of.name + kMxfp4Blocks)) {
    ASSIGN_OR_RETURN(const auto coded, find_mxfp4(files_, *config_.quantization, of.name,
                                                  {.experts = experts,
                                                   .rows = of.outputs,
                                                   .expert = of.expert,
                                                   .first = every.first,
                                                   .step = every.step},
                                                  of.inputs));
    return TensorPart{.tensor = coded->tensors()[0], .rows = rows, .columns = columns, .coded = coded};
  }
  ASSIGN_OR_RETURN(const TensorInfo* info, files_.require(of.name, {experts, of.inputs, of.outputs}));
  if (!is_weight_dtype(info->dtype))
    return unsupported(
        fmt::format("tensor {} is {}; weights must be F32, BF16 or F16", of.name, dtype_name(info->dtype)));
  return TensorPart{.tensor = info,
                    .rows = rows,
                    .columns = columns,
                    .apart = ElementsApart{.first = of.expert * of.inputs * of.outputs + every.first,
                                           .row = every.step,
                                           .column = of.outputs}};
}

Result<TensorPart> MlpMapper::packed_bias(const Packed& of, EveryOther every, IndexRange part) const {
  const std::string name = of.name + "_bias";
  ASSIGN_OR_RETURN(const TensorInfo* info, files_.require(name, {config_.experts->count, of.outputs}));
  if (!is_weight_dtype(info->dtype))
    return unsupported(
        fmt::format("tensor {} is {}; weights must be F32, BF16 or F16", name, dtype_name(info->dtype)));
  return TensorPart{
      .tensor = info,
      .rows = {0, 1},
      .columns = part,
      .apart = ElementsApart{.first = of.expert * of.outputs + every.first, .column = every.step}};
}

// In gate_up_proj, output 2i is gate i and output 2i + 1 is up i.
Result<MlpSources> MlpMapper::packed_expert(const std::string& prefix, int64_t index) const {
  const int64_t hidden = config_.hidden_size, size = config_.experts->intermediate_size;
  const MlpCut cut(size, plan_.shard);
  const Packed gate_up{prefix + std::string(traits_.experts->gate), index, 2 * size, hidden};
  const Packed down{prefix + std::string(traits_.experts->down), index, hidden, size};
  MlpSources to;
  for (const int64_t first : {0, 1}) {
    ASSIGN_OR_RETURN(TensorPart part, packed_matrix(gate_up, {first, 2}, cut.columns, {0, hidden}));
    to.gate_up.parts.push_back(part);
    ASSIGN_OR_RETURN(TensorPart bias, packed_bias(gate_up, {first, 2}, cut.columns));
    to.gate_up_bias.push_back(bias);
  }
  ASSIGN_OR_RETURN(TensorPart part, packed_matrix(down, {}, {0, hidden}, cut.columns));
  to.down = {{part}, cut.leaf_ends};
  ASSIGN_OR_RETURN(TensorPart bias, packed_bias(down, {}, {0, hidden}));
  to.down_bias = {bias};
  return to;
}

// gate_up_proj is [experts, 2 * size, hidden], gates first, and down_proj [experts, hidden, size], as
// transformers 5 holds them.
Result<MlpSources> MlpMapper::stacked_expert(const std::string& prefix, int64_t index) const {
  const int64_t hidden = config_.hidden_size, size = config_.experts->intermediate_size,
                experts = config_.experts->count;
  const MlpCut cut(size, plan_.shard);
  // Rows of an expert in a tensor [experts, outputs, inputs], from its row `first` on.
  const auto part = [&](const std::string& name, int64_t outputs, int64_t inputs, int64_t first,
                        IndexRange rows, IndexRange columns) -> Result<TensorPart> {
    ASSIGN_OR_RETURN(const TensorInfo* info, files_.require(name, {experts, outputs, inputs}));
    if (!is_weight_dtype(info->dtype))
      return unsupported(
          fmt::format("tensor {} is {}; weights must be F32, BF16 or F16", name, dtype_name(info->dtype)));
    return TensorPart{
        .tensor = info,
        .rows = rows,
        .columns = columns,
        .apart = ElementsApart{.first = (index * outputs + first) * inputs, .row = inputs, .column = 1}};
  };
  MlpSources to;
  for (const int64_t first : {int64_t{0}, size}) {
    ASSIGN_OR_RETURN(TensorPart some,
                     part(prefix + "gate_up_proj", 2 * size, hidden, first, cut.columns, {0, hidden}));
    to.gate_up.parts.push_back(some);
  }
  ASSIGN_OR_RETURN(TensorPart down, part(prefix + "down_proj", hidden, size, 0, {0, hidden}, cut.columns));
  to.down = {{down}, cut.leaf_ends};
  return to;
}

Result<BesideSources> MlpMapper::beside(const std::string& layer_prefix) const {
  const int64_t hidden = config_.hidden_size;
  BesideSources to;
  ASSIGN_OR_RETURN(to.mlp, dense_mlp(layer_prefix + std::string(traits_.names.mlp)));
  struct Vector {
    const char* name;
    int64_t size;
    VectorSource& source;
  };
  for (const Vector& v : {Vector{"post_feedforward_layernorm_1.weight", hidden, to.mlp_out_norm},
                          Vector{"pre_feedforward_layernorm_2.weight", hidden, to.experts_norm},
                          Vector{"post_feedforward_layernorm_2.weight", hidden, to.experts_out_norm},
                          Vector{"router.scale", hidden, to.router_scale},
                          Vector{"router.per_expert_scale", config_.experts->count, to.expert_scales}}) {
    ASSIGN_OR_RETURN(TensorPart part, parts_.vector(layer_prefix + v.name, v.size, {0, v.size}));
    v.source = {part};
  }
  return to;
}

Result<ExpertSources> MlpMapper::mixture(const std::string& layer_prefix) const {
  const ExpertConfig& config = *config_.experts;
  const ExpertNames& names = *traits_.experts;
  const int64_t hidden = config_.hidden_size;
  const std::string prefix = layer_prefix + std::string(names.block);
  ExpertSources to;
  const std::string router_name = prefix + std::string(names.router);
  ASSIGN_OR_RETURN(TensorPart router, parts_.matrix(router_name + ".weight", {config.count, hidden},
                                                    {0, config.count}, {0, hidden}));
  if (router.coded || router.scales)
    return unsupported(
        fmt::format("{} is quantised, and decides which experts are read; quantise the original "
                    "again, without it",
                    router.tensor->name));
  to.router = {{router}, {}};
  if (names.biases) {
    ASSIGN_OR_RETURN(TensorPart bias, parts_.vector(router_name + ".bias", config.count, {0, config.count}));
    to.router_bias = {bias};
  }
  if (config.corrected) {
    const std::string name = prefix + std::string(names.correction);
    const TensorInfo* info = files_.find(name);
    const bool is_row = info != nullptr && info->shape.size() == 2;  // of a matrix, as Ernie's files have it
    ASSIGN_OR_RETURN(TensorPart correction,
                     is_row ? parts_.matrix(name, {1, config.count}, {0, 1}, {0, config.count})
                            : parts_.vector(name, config.count, {0, config.count}));
    to.correction = {correction};
  }
  if (config.beside_mlp) {
    ASSIGN_OR_RETURN(to.beside, beside(layer_prefix));
  }
  const bool is_packed = names.packed && !files_.find(prefix + "experts.0.gate_proj.weight");
  const bool is_stacked = !names.packed && files_.find(prefix + "experts.gate_up_proj");
  for (int64_t i = 0; i < config.count; ++i) {
    ASSIGN_OR_RETURN(MlpSources sources, is_packed    ? packed_expert(prefix + "experts.", i)
                                         : is_stacked ? stacked_expert(prefix + "experts.", i)
                                                      : expert(prefix + "experts.", i));
    to.experts.push_back(std::move(sources));
  }
  if (names.has_shared && config.shared_intermediate_size > 0) {
    const std::string shared = prefix + std::string(names.shared);
    ASSIGN_OR_RETURN(to.shared, mlp({shared + "gate_proj", shared + "up_proj", shared + "down_proj"},
                                    config.shared_intermediate_size));
    if (!names.shared_is_gated) return to;
    ASSIGN_OR_RETURN(TensorPart gate,
                     parts_.matrix(prefix + "shared_expert_gate.weight", {1, hidden}, {0, 1}, {0, hidden}));
    if (gate.coded || gate.scales)
      return unsupported(
          fmt::format("{} is quantised; quantise the original again, without it", gate.tensor->name));
    to.shared_gate = {gate};
  }
  return to;
}

}  // namespace outrider
