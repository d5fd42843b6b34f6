#include "transformer/files/weight_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <set>

#include "base/bfloat16.h"
#include "transformer/files/family.h"
#include "transformer/files/gguf_codes.h"
#include "transformer/files/mxfp4_codes.h"
#include "transformer/files/published_codes.h"
#include "transformer/files/quantized_file.h"

namespace outrider {
namespace {

class Mapper {
 public:
  Mapper(const TensorFiles& files, const ModelConfig& config, const ShardPlan& plan)
      : files_(files), config_(config), plan_(plan), whole_(config, {}) {}

  Result<WeightMap> map() const;

 private:
  // model_leaf_ends: of the whole contraction, where tensor parallelism cuts it.
  Result<TensorPart> matrix(const std::string& name, std::vector<int64_t> shape, IndexRange rows,
                            IndexRange columns, const std::vector<int64_t>& model_leaf_ends = {}) const;
  Result<TensorPart> codes(const TensorInfo& stored, const std::vector<int64_t>& shape,
                           std::vector<int64_t> model_leaf_ends) const;
  Result<TensorPart> vector(const std::string& name, int64_t size, IndexRange part) const;
  // Rows of one of several matrices that lie one behind the other in a stored one.
  Result<TensorPart> stacked(const std::string& name, int64_t stored_rows, int64_t offset,
                             IndexRange rows) const;
  Result<LayerSources> layer(int64_t index) const;
  Status map_attention(const std::string& prefix, LayerSources& to) const;
  Status map_projections(const std::string& prefix, LayerSources& to) const;
  Result<LatentSources> latent(const std::string& prefix) const;
  Status map_norms(const std::string& prefix, LayerSources& to) const;
  // gate, up, down: names of the projections; size: of the intermediate activations.
  Result<MlpSources> mlp(const std::array<std::string, 3>& names, int64_t size) const;
  Result<MlpSources> dense_mlp(const std::string& prefix) const;
  Result<ExpertSources> mixture(const std::string& layer_prefix) const;
  Result<MlpSources> expert(const std::string& prefix, int64_t index) const;
  // One of the experts that share tensors.
  struct Packed {
    std::string name;
    int64_t expert, outputs, inputs;  // of the whole tensor
  };
  struct EveryOther {
    int64_t first = 0, step = 1;
  };
  Result<MlpSources> packed_expert(const std::string& prefix, int64_t index) const;
  // Of the outputs that `every` names, `rows`; of its inputs, `columns`.
  Result<TensorPart> packed_matrix(const Packed& of, EveryOther every, IndexRange rows,
                                   IndexRange columns) const;
  Result<TensorPart> packed_bias(const Packed& of, EveryOther every, IndexRange part) const;

  const TensorFiles& files_;
  const ModelConfig& config_;
  const ShardPlan& plan_;
  const ShardPlan whole_;  // of one rank
  const FamilyTraits& traits_ = traits_of(config_.family);
};

Result<TensorPart> Mapper::codes(const TensorInfo& stored, const std::vector<int64_t>& shape,
                                 std::vector<int64_t> model_leaf_ends) const {
  const WeightType type = *stored_type(stored.dtype);
  if (model_leaf_ends.empty()) model_leaf_ends = {shape[1]};
  const std::vector<int64_t> scales_shape{shape[0],
                                          count_groups(type, model_leaf_ends, model_leaf_ends.size())};
  const std::vector<int64_t> stored_shape{shape[0], stored_columns(type, shape[1])};
  const TensorInfo* scales = files_.find(stored.name + kScalesSuffix);
  if (stored.shape != stored_shape || !scales || scales->dtype != Dtype::kBF16 ||
      scales->shape != scales_shape)
    return malformed(
        fmt::format("{} is {} but not as `outrider quantize` writes it: [{}, {}] with BF16 [{}, {}] in "
                    "{}{}; quantise the original again",
                    stored.name, dtype_name(stored.dtype), stored_shape[0], stored_shape[1], scales_shape[0],
                    scales_shape[1], stored.name, kScalesSuffix));
  const auto leaves = static_cast<size_t>(model_leaf_ends.size() > 1 ? shard_leaves(plan_.shard).begin : 0);
  return TensorPart{
      .tensor = &stored, .scales = scales, .first_group = count_groups(type, model_leaf_ends, leaves)};
}

Result<TensorPart> Mapper::matrix(const std::string& name, std::vector<int64_t> shape, IndexRange rows,
                                  IndexRange columns, const std::vector<int64_t>& model_leaf_ends) const {
  constexpr std::string_view kWeight = ".weight";
  if (config_.quantization && shape.size() == 2) {
    const std::string module = name.substr(0, name.size() - kWeight.size());
    ASSIGN_OR_RETURN(const auto coded,
                     find_published_codes(files_, *config_.quantization, module, shape[0], shape[1]));
    if (coded)
      return TensorPart{.tensor = coded->tensors()[0], .rows = rows, .columns = columns, .coded = coded};
  }
  if (const TensorInfo* stored = files_.find(name);
      stored && shape.size() == 2 && is_gguf_block(stored->dtype)) {
    if (stored->shape != shape)
      return invalid_argument(fmt::format("{}: {} has shape [{}], but its keys ask for [{}]",
                                          files_.file_of(name), name, fmt::join(stored->shape, ", "),
                                          fmt::join(shape, ", ")));
    return TensorPart{.tensor = stored, .rows = rows, .columns = columns, .coded = gguf_codes(*stored)};
  }
  if (const TensorInfo* stored = files_.find(name);
      !config_.quantization && stored && shape.size() == 2 && stored_type(stored->dtype)) {
    ASSIGN_OR_RETURN(TensorPart part, codes(*stored, shape, model_leaf_ends));
    part.rows = rows;
    part.columns = columns;
    return part;
  }
  ASSIGN_OR_RETURN(const TensorInfo* info, files_.require(name, shape));
  if (!is_weight_dtype(info->dtype))
    return unsupported(
        fmt::format("tensor {} is {}; weights must be F32, BF16 or F16", name, dtype_name(info->dtype)));
  return TensorPart{.tensor = info, .rows = rows, .columns = columns};
}

Result<TensorPart> Mapper::vector(const std::string& name, int64_t size, IndexRange part) const {
  return matrix(name, {size}, {0, 1}, part);
}

// What a matrix says of the whole map.
void add_facts(const MatrixSource& source, WeightMap& map) {
  for (const TensorPart& part : source.parts) {
    const bool is_codes = part.scales || part.coded;
    map.has_codes |= is_codes;
    map.all_bf16 &= is_codes || part.tensor->dtype == Dtype::kBF16;
  }
}

void add_facts(WeightMap& map) {
  map.all_bf16 = true;
  add_facts(map.head, map);
  if (map.embedding) add_facts(*map.embedding, map);
  for (const LayerSources& l : map.layers)
    for (const MatrixSource* source : l.matrices()) add_facts(*source, map);
}

Result<TensorPart> Mapper::stacked(const std::string& name, int64_t stored_rows, int64_t offset,
                                   IndexRange rows) const {
  return matrix(name, {stored_rows, config_.hidden_size}, {offset + rows.begin, offset + rows.end},
                {0, config_.hidden_size});
}

Status Mapper::map_projections(const std::string& prefix, LayerSources& to) const {
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
    ASSIGN_OR_RETURN(TensorPart part,
                     traits_.fused_projections
                         ? stacked(prefix + "qkv_proj.weight", q_size + 2 * kv_size, p.offset, p.rows)
                         : stacked(prefix + p.name + ".weight", p.size, 0, p.rows));
    to.qkv.parts.push_back(part);
    if (!config_.qkv_bias) continue;
    ASSIGN_OR_RETURN(TensorPart bias, vector(prefix + p.name + ".bias", p.size, p.rows));
    to.qkv_bias.push_back(bias);
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
                     matrix(prefix + "q_a_proj.weight", {c.q_rank, hidden}, {0, c.q_rank}, all));
    to.q_a = {{q_a}, {}};
    ASSIGN_OR_RETURN(TensorPart norm, vector(prefix + "q_a_layernorm.weight", c.q_rank, {0, c.q_rank}));
    to.q_norm = {norm};
  }
  const int64_t inputs = c.q_rank > 0 ? c.q_rank : hidden;
  ASSIGN_OR_RETURN(TensorPart q, matrix(prefix + (c.q_rank > 0 ? "q_b_proj.weight" : "q_proj.weight"),
                                        {heads * c.query_dim(), inputs},
                                        {own.begin * c.query_dim(), own.end * c.query_dim()}, {0, inputs}));
  to.q = {{q}, {}};
  const int64_t width = c.kv_rank + c.rope_dim;
  ASSIGN_OR_RETURN(TensorPart kv_a,
                   matrix(prefix + "kv_a_proj_with_mqa.weight", {width, hidden}, {0, width}, all));
  to.kv_a = {{kv_a}, {}};
  ASSIGN_OR_RETURN(TensorPart norm, vector(prefix + "kv_a_layernorm.weight", c.kv_rank, {0, c.kv_rank}));
  to.kv_norm = {norm};
  ASSIGN_OR_RETURN(const TensorPart up, matrix(prefix + "kv_b_proj.weight", {heads * each, c.kv_rank},
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

Status Mapper::map_attention(const std::string& prefix, LayerSources& to) const {
  const int64_t d = config_.head_dim, hidden = config_.hidden_size, out = config_.output_dim();
  const IndexRange q{plan_.query_heads.begin * d, plan_.query_heads.end * d};
  const IndexRange kv{plan_.kv_heads.begin * d, plan_.kv_heads.end * d};
  const IndexRange all{0, hidden};
  if (config_.latent) {
    ASSIGN_OR_RETURN(to.latent, latent(prefix));
  } else {
    RETURN_IF_ERROR(map_projections(prefix, to));
  }
  ASSIGN_OR_RETURN(TensorPart o_part, matrix(prefix + "o_proj.weight", {hidden, config_.num_heads * out}, all,
                                             {plan_.query_heads.begin * out, plan_.query_heads.end * out},
                                             whole_.attention_leaf_ends));
  to.o = {{o_part}, plan_.attention_leaf_ends};
  if (config_.o_bias) {
    ASSIGN_OR_RETURN(TensorPart bias, vector(prefix + "o_proj.bias", hidden, all));
    to.o_bias = {bias};
  }
  if (config_.attention_sinks) {
    ASSIGN_OR_RETURN(TensorPart sinks, vector(prefix + "sinks", config_.num_heads, plan_.query_heads));
    to.sinks = {sinks};
  }
  if (config_.qk_norm != QkNorm::kNone) {
    const bool whole = config_.qk_norm == QkNorm::kWhole;
    ASSIGN_OR_RETURN(TensorPart q_norm, vector(prefix + "q_norm.weight", whole ? config_.q_size() : d,
                                               whole ? q : IndexRange{0, d}));
    ASSIGN_OR_RETURN(TensorPart k_norm, vector(prefix + "k_norm.weight", whole ? config_.kv_size() : d,
                                               whole ? kv : IndexRange{0, d}));
    to.q_norm = {q_norm};
    to.k_norm = {k_norm};
  }
  return {};
}

Status Mapper::map_norms(const std::string& prefix, LayerSources& to) const {
  const bool before = config_.norm_place != NormPlace::kAfter,
             after = config_.norm_place != NormPlace::kBefore;
  const auto add = [&](const char* name, VectorSource& norm) -> Status {
    ASSIGN_OR_RETURN(TensorPart part,
                     vector(prefix + name + ".weight", config_.hidden_size, {0, config_.hidden_size}));
    norm = {part};
    return {};
  };
  if (before) RETURN_IF_ERROR(add("input_layernorm", to.attention_norm));
  if (before)
    RETURN_IF_ERROR(add(after ? "pre_feedforward_layernorm" : "post_attention_layernorm", to.mlp_norm));
  if (after) RETURN_IF_ERROR(add("post_attention_layernorm", to.attention_out_norm));
  if (after) RETURN_IF_ERROR(add("post_feedforward_layernorm", to.mlp_out_norm));
  return {};
}

Result<MlpSources> Mapper::mlp(const std::array<std::string, 3>& names, int64_t size) const {
  const int64_t hidden = config_.hidden_size;
  const MlpCut cut(size, plan_.shard), whole(size, {});
  const bool is_fused = names[0] == names[1];
  const int64_t rows = is_fused ? 2 * size : size;
  MlpSources to;
  ASSIGN_OR_RETURN(TensorPart gate, stacked(names[0] + ".weight", rows, 0, cut.columns));
  ASSIGN_OR_RETURN(TensorPart up, stacked(names[1] + ".weight", rows, is_fused ? size : 0, cut.columns));
  to.gate_up = {{gate, up}, {}};
  ASSIGN_OR_RETURN(TensorPart down,
                   matrix(names[2] + ".weight", {hidden, size}, {0, hidden}, cut.columns, whole.leaf_ends));
  to.down = {{down}, cut.leaf_ends};
  return to;
}

Result<MlpSources> Mapper::dense_mlp(const std::string& prefix) const {
  const int64_t hidden = config_.hidden_size, intermediate = config_.intermediate_size;
  if (traits_.fused_projections)
    return mlp({prefix + "gate_up_proj", prefix + "gate_up_proj", prefix + "down_proj"}, intermediate);
  const std::array<std::string, 3> names{prefix + "gate_proj", prefix + "up_proj", prefix + "down_proj"};
  ASSIGN_OR_RETURN(MlpSources to, mlp(names, intermediate));
  if (config_.mlp_bias) {
    ASSIGN_OR_RETURN(TensorPart gate_bias, vector(names[0] + ".bias", intermediate, plan_.mlp_columns));
    ASSIGN_OR_RETURN(TensorPart up_bias, vector(names[1] + ".bias", intermediate, plan_.mlp_columns));
    to.gate_up_bias = {gate_bias, up_bias};
    ASSIGN_OR_RETURN(TensorPart down_bias, vector(names[2] + ".bias", hidden, {0, hidden}));
    to.down_bias = {down_bias};
  }
  return to;
}

Result<MlpSources> Mapper::expert(const std::string& prefix, int64_t index) const {
  const ExpertNames& names = *traits_.experts;
  const std::string own = fmt::format("{}{}.", prefix, index);
  return mlp({own + std::string(names.gate), own + std::string(names.up), own + std::string(names.down)},
             config_.experts->intermediate_size);
}

Result<TensorPart> Mapper::packed_matrix(const Packed& of, EveryOther every, IndexRange rows,
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

Result<TensorPart> Mapper::packed_bias(const Packed& of, EveryOther every, IndexRange part) const {
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

// Of gate_up_proj, output 2i is gate i and output 2i + 1 is up i.
Result<MlpSources> Mapper::packed_expert(const std::string& prefix, int64_t index) const {
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

Result<ExpertSources> Mapper::mixture(const std::string& layer_prefix) const {
  const ExpertConfig& config = *config_.experts;
  const ExpertNames& names = *traits_.experts;
  const int64_t hidden = config_.hidden_size;
  const std::string prefix = layer_prefix + std::string(names.block);
  ExpertSources to;
  const std::string router_name = prefix + std::string(names.router);
  ASSIGN_OR_RETURN(TensorPart router,
                   matrix(router_name + ".weight", {config.count, hidden}, {0, config.count}, {0, hidden}));
  if (router.coded || router.scales)
    return unsupported(
        fmt::format("{} is quantised, and decides which experts are read; quantise the original "
                    "again, without it",
                    router.tensor->name));
  to.router = {{router}, {}};
  if (names.biases) {
    ASSIGN_OR_RETURN(TensorPart bias, vector(router_name + ".bias", config.count, {0, config.count}));
    to.router_bias = {bias};
  }
  if (config.corrected) {
    ASSIGN_OR_RETURN(TensorPart correction,
                     vector(router_name + ".e_score_correction_bias", config.count, {0, config.count}));
    to.correction = {correction};
  }
  for (int64_t i = 0; i < config.count; ++i) {
    ASSIGN_OR_RETURN(MlpSources sources,
                     names.packed ? packed_expert(prefix + "experts.", i) : expert(prefix + "experts.", i));
    to.experts.push_back(std::move(sources));
  }
  if (names.has_shared) {
    const std::string shared = prefix + std::string(names.shared);
    ASSIGN_OR_RETURN(to.shared, mlp({shared + "gate_proj", shared + "up_proj", shared + "down_proj"},
                                    config.shared_intermediate_size));
    if (!names.shared_is_gated) return to;
    ASSIGN_OR_RETURN(TensorPart gate,
                     matrix(prefix + "shared_expert_gate.weight", {1, hidden}, {0, 1}, {0, hidden}));
    if (gate.coded || gate.scales)
      return unsupported(
          fmt::format("{} is quantised; quantise the original again, without it", gate.tensor->name));
    to.shared_gate = {gate};
  }
  return to;
}

Result<LayerSources> Mapper::layer(int64_t index) const {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  LayerSources to;
  RETURN_IF_ERROR(map_norms(prefix, to));
  RETURN_IF_ERROR(map_attention(prefix + "self_attn.", to));
  if (config_.layer(index).has_experts) {
    ASSIGN_OR_RETURN(to.mlp, mixture(prefix));
  } else {
    ASSIGN_OR_RETURN(to.mlp, dense_mlp(prefix + "mlp."));
  }
  return to;
}

Result<WeightMap> Mapper::map() const {
  const int64_t hidden = config_.hidden_size;
  const std::vector<int64_t> table{config_.vocab_size, hidden};
  const IndexRange all{0, hidden};
  WeightMap map;
  ASSIGN_OR_RETURN(TensorPart embedding, matrix("model.embed_tokens.weight", table, plan_.vocab, all));
  if (config_.tie_word_embeddings) {
    map.head = {{embedding}, {}};
  } else {
    map.embedding = MatrixSource{{embedding}, {}};
    ASSIGN_OR_RETURN(TensorPart head, matrix("lm_head.weight", table, plan_.vocab, all));
    map.head = {{head}, {}};
  }
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    ASSIGN_OR_RETURN(LayerSources sources, layer(i));
    map.layers.push_back(std::move(sources));
  }
  ASSIGN_OR_RETURN(TensorPart final_norm, vector("model.norm.weight", hidden, all));
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

int64_t TensorPart::bytes(int64_t row_count) const {
  if (coded)
    return static_cast<int64_t>(static_cast<double>(coded->code_bytes()) * static_cast<double>(row_count) /
                                static_cast<double>(coded->n()) * static_cast<double>(columns.size()) /
                                static_cast<double>(coded->k()));
  const int64_t bits =
      tensor->dtype == Dtype::kU8 ? weight_bits(WeightType::kInt4) : dtype_bits(tensor->dtype);
  return row_count * columns.size() * bits / 8;
}

int64_t MatrixSource::bytes() const {
  int64_t sum = 0;
  for (const TensorPart& part : parts) sum += part.bytes(part.rows.size());
  return sum;
}

int64_t MatrixSource::n() const {
  int64_t rows = 0;
  for (const TensorPart& part : parts) rows += part.rows.size();
  return rows;
}

int64_t WeightMap::matrix_bytes() const {
  int64_t sum = head.bytes() + (embedding ? embedding->bytes() : 0);
  for (const LayerSources& layer : layers)
    for (const MatrixSource* matrix : layer.matrices()) sum += matrix->bytes();
  return sum;
}

std::vector<const MatrixSource*> LayerSources::attention_matrices() const {
  if (!latent) return {&qkv, &o};
  std::vector<const MatrixSource*> all{&latent->q, &latent->kv_a};
  if (!latent->q_a.parts.empty()) all.push_back(&latent->q_a);
  for (const MatrixSource& matrix : latent->key_up) all.push_back(&matrix);
  for (const MatrixSource& matrix : latent->value_up) all.push_back(&matrix);
  all.push_back(&o);
  return all;
}

std::vector<const MatrixSource*> LayerSources::matrices() const {
  std::vector<const MatrixSource*> all = attention_matrices();
  const auto add = [&](const MlpSources& m) { all.insert(all.end(), {&m.gate_up, &m.down}); };
  if (const ExpertSources* experts = mixture()) {
    for (const MlpSources& expert : experts->experts) add(expert);
    if (experts->shared) add(*experts->shared);
  } else {
    add(dense());
  }
  return all;
}

float tensor_element(const TensorInfo& tensor, int64_t index) {
  const std::byte* data = tensor.data.data();
  if (tensor.dtype == Dtype::kF32) {
    float value;
    std::memcpy(&value, data + index * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, data + index * 2, 2);
  return tensor.dtype == Dtype::kBF16 ? to_float(bf16{bits}) : half_to_float(bits);
}

std::vector<float> read_vector(const VectorSource& source) {
  std::vector<float> values;
  for (const TensorPart& part : source)
    for (int64_t i = part.columns.begin; i < part.columns.end; ++i)
      values.push_back(
          tensor_element(*part.tensor, part.apart ? part.apart->at(0, i) : stored_row(*part.tensor, i)));
  return values;
}

Result<WeightMap> map_weights(const TensorFiles& files, const ModelConfig& config, const ShardPlan& plan) {
  return Mapper(files, config, plan).map();
}

namespace {

void add_used(const std::vector<TensorPart>& parts, std::set<const TensorInfo*>& used) {
  for (const TensorPart& part : parts) {
    used.insert(part.tensor);
    used.insert(part.scales);
    if (part.coded) used.insert(part.coded->tensors().begin(), part.coded->tensors().end());
  }
}

std::set<const TensorInfo*> used_tensors(const WeightMap& map) {
  std::set<const TensorInfo*> used;
  add_used(map.head.parts, used);
  if (map.embedding) add_used(map.embedding->parts, used);
  add_used(map.final_norm, used);
  for (const LayerSources& l : map.layers) {
    for (const MatrixSource* matrix : l.matrices()) add_used(matrix->parts, used);
    for (const VectorSource* vector : {&l.attention_norm, &l.mlp_norm, &l.attention_out_norm, &l.mlp_out_norm,
                                       &l.q_norm, &l.k_norm, &l.qkv_bias, &l.sinks, &l.o_bias})
      add_used(*vector, used);
    if (l.latent) {
      add_used(l.latent->q_norm, used);
      add_used(l.latent->kv_norm, used);
    }
    const auto add_biases = [&](const MlpSources& m) {
      add_used(m.gate_up_bias, used);
      add_used(m.down_bias, used);
    };
    if (const ExpertSources* mixture = l.mixture()) {
      add_used(mixture->router.parts, used);
      add_used(mixture->router_bias, used);
      add_used(mixture->correction, used);
      add_used(mixture->shared_gate, used);
      for (const MlpSources& expert : mixture->experts) add_biases(expert);
    } else {
      add_biases(l.dense());
    }
  }
  return used;
}

// Scales, zero points, packed codes and their layouts, as GPTQ, AWQ, compressed-tensors, bitsandbytes, FP8
// checkpoints and `outrider quantize` name them.
bool is_of_quantised_weights(const TensorInfo& tensor) {
  constexpr std::array kEndings = std::to_array<std::string_view>({".qweight",
                                                                   ".qzeros",
                                                                   ".scales",
                                                                   ".g_idx",
                                                                   ".weight_scale",
                                                                   ".weight_scale_inv",
                                                                   ".weight_scale_2",
                                                                   ".weight_global_scale",
                                                                   ".weight_packed",
                                                                   ".weight_shape",
                                                                   ".weight_zero_point",
                                                                   ".weight_g_idx",
                                                                   ".input_scale",
                                                                   ".input_global_scale",
                                                                   ".input_zero_point",
                                                                   ".output_scale",
                                                                   ".k_scale",
                                                                   ".v_scale",
                                                                   ".weight.absmax",
                                                                   ".weight.quant_map",
                                                                   ".weight.nested_absmax",
                                                                   ".weight.nested_quant_map",
                                                                   ".SCB",
                                                                   ".weight_format"});
  const auto ends_name = [&](std::string_view ending) { return tensor.name.ends_with(ending); };
  return std::any_of(kEndings.begin(), kEndings.end(), ends_name) ||
         tensor.name.find(".weight.quant_state.") != std::string::npos ||
         (!is_weight_dtype(tensor.dtype) && tensor.name.ends_with(".weight"));
}

// compressed-tensors says the shape of packed codes in a tensor beside them, which is checked when they are
// read.
bool is_shape_of_used(const TensorFiles& files, std::string_view name,
                      const std::set<const TensorInfo*>& used) {
  constexpr std::string_view kShape = "shape";
  if (!name.ends_with(".weight_shape")) return false;
  return used.contains(files.find(std::string(name.substr(0, name.size() - kShape.size())) + "packed"));
}

// Those behind the last one are for drafts (DeepSeek-V3).
bool is_of_further_layer(std::string_view name, int64_t layers) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return false;
  int64_t layer = 0;
  const char* const end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + kLayers.size(), end, layer);
  return read.ec == std::errc() && layer >= layers;
}

bool same_numbers(const TensorInfo& a, const TensorInfo& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.data.size() == b.data.size() &&
         std::memcmp(a.data.data(), b.data.data(), a.data.size()) == 0;
}

}  // namespace

Result<std::vector<std::string_view>> unused_tensors(const TensorFiles& files, const ModelConfig& config) {
  ASSIGN_OR_RETURN(const WeightMap map, map_weights(files, config, ShardPlan(config, {})));
  const std::set<const TensorInfo*> used = used_tensors(map);
  std::vector<std::string_view> unused;
  for (const std::string_view name : files.names()) {
    const TensorInfo& tensor = *files.find(name);
    if (used.contains(&tensor) || is_shape_of_used(files, name, used) ||
        name.ends_with(".rotary_emb.inv_freq"))
      continue;
    if (is_of_further_layer(name, config.num_layers)) {
      unused.push_back(name);
      continue;
    }
    if (is_of_quantised_weights(tensor))
      return unsupported(
          fmt::format("tensor {} belongs to weights that are quantised in a way that is not read here; use "
                      "the model's bf16, "
                      "fp16 or fp32 weights",
                      name));
    if (name == "lm_head.weight") {  // only where the config ties it to the embedding
      if (!same_numbers(tensor, *map.head.parts.front().tensor))
        return invalid_argument(
            "config.json: \"tie_word_embeddings\" is true, but lm_head.weight is not the embedding; set it "
            "to "
            "false, or remove the tensor");
      release_pages(tensor.data);
      continue;
    }
    unused.push_back(name);
  }
  return unused;
}

}  // namespace outrider
