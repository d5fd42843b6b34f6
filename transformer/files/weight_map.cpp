#include "transformer/files/weight_map.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "base/bfloat16.h"
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
  Result<LayerSources> layer(int64_t index) const;
  Status map_attention(const std::string& prefix, LayerSources& to) const;
  Status map_mlp(const std::string& prefix, LayerSources& to) const;
  bool all_bf16() const;
  bool has_codes() const;

  const TensorFiles& files_;
  const ModelConfig& config_;
  const ShardPlan& plan_;
  const ShardPlan whole_;  // of one rank
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
  if (const TensorInfo* stored = files_.find(name);
      stored && shape.size() == 2 && stored_type(stored->dtype)) {
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

bool Mapper::all_bf16() const {
  for (std::string_view name : files_.names()) {
    const TensorInfo* info = files_.find(name);
    if (info->shape.size() == 2 && info->dtype != Dtype::kBF16 && !stored_type(info->dtype)) return false;
  }
  return true;
}

bool Mapper::has_codes() const {
  for (std::string_view name : files_.names())
    if (stored_type(files_.find(name)->dtype)) return true;
  return false;
}

Status Mapper::map_attention(const std::string& prefix, LayerSources& to) const {
  const int64_t d = config_.head_dim, hidden = config_.hidden_size;
  const IndexRange q{plan_.query_heads.begin * d, plan_.query_heads.end * d};
  const IndexRange kv{plan_.kv_heads.begin * d, plan_.kv_heads.end * d};
  const IndexRange all{0, hidden};
  ASSIGN_OR_RETURN(TensorPart q_part, matrix(prefix + "q_proj.weight", {config_.q_size(), hidden}, q, all));
  ASSIGN_OR_RETURN(TensorPart k_part, matrix(prefix + "k_proj.weight", {config_.kv_size(), hidden}, kv, all));
  ASSIGN_OR_RETURN(TensorPart v_part, matrix(prefix + "v_proj.weight", {config_.kv_size(), hidden}, kv, all));
  to.qkv = {{q_part, k_part, v_part}, {}};
  ASSIGN_OR_RETURN(TensorPart o_part, matrix(prefix + "o_proj.weight", {hidden, config_.q_size()}, all, q,
                                             whole_.attention_leaf_ends));
  to.o = {{o_part}, plan_.attention_leaf_ends};
  if (config_.qkv_bias) {
    ASSIGN_OR_RETURN(TensorPart q_bias, vector(prefix + "q_proj.bias", config_.q_size(), q));
    ASSIGN_OR_RETURN(TensorPart k_bias, vector(prefix + "k_proj.bias", config_.kv_size(), kv));
    ASSIGN_OR_RETURN(TensorPart v_bias, vector(prefix + "v_proj.bias", config_.kv_size(), kv));
    to.qkv_bias = {q_bias, k_bias, v_bias};
  }
  if (config_.o_bias) {
    ASSIGN_OR_RETURN(TensorPart bias, vector(prefix + "o_proj.bias", hidden, all));
    to.o_bias = {bias};
  }
  if (config_.qk_norm) {
    ASSIGN_OR_RETURN(TensorPart q_norm, vector(prefix + "q_norm.weight", d, {0, d}));
    ASSIGN_OR_RETURN(TensorPart k_norm, vector(prefix + "k_norm.weight", d, {0, d}));
    to.q_norm = {q_norm};
    to.k_norm = {k_norm};
  }
  return {};
}

Status Mapper::map_mlp(const std::string& prefix, LayerSources& to) const {
  const int64_t hidden = config_.hidden_size, intermediate = config_.intermediate_size;
  const IndexRange all{0, hidden}, columns = plan_.mlp_columns;
  ASSIGN_OR_RETURN(TensorPart gate,
                   matrix(prefix + "gate_proj.weight", {intermediate, hidden}, columns, all));
  ASSIGN_OR_RETURN(TensorPart up, matrix(prefix + "up_proj.weight", {intermediate, hidden}, columns, all));
  to.gate_up = {{gate, up}, {}};
  ASSIGN_OR_RETURN(TensorPart down, matrix(prefix + "down_proj.weight", {hidden, intermediate}, all, columns,
                                           whole_.mlp_leaf_ends));
  to.down = {{down}, plan_.mlp_leaf_ends};
  if (config_.mlp_bias) {
    ASSIGN_OR_RETURN(TensorPart gate_bias, vector(prefix + "gate_proj.bias", intermediate, columns));
    ASSIGN_OR_RETURN(TensorPart up_bias, vector(prefix + "up_proj.bias", intermediate, columns));
    to.gate_up_bias = {gate_bias, up_bias};
    ASSIGN_OR_RETURN(TensorPart down_bias, vector(prefix + "down_proj.bias", hidden, all));
    to.down_bias = {down_bias};
  }
  return {};
}

Result<LayerSources> Mapper::layer(int64_t index) const {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const int64_t hidden = config_.hidden_size;
  LayerSources to;
  ASSIGN_OR_RETURN(TensorPart attention_norm, vector(prefix + "input_layernorm.weight", hidden, {0, hidden}));
  ASSIGN_OR_RETURN(TensorPart mlp_norm,
                   vector(prefix + "post_attention_layernorm.weight", hidden, {0, hidden}));
  to.attention_norm = {attention_norm};
  to.mlp_norm = {mlp_norm};
  RETURN_IF_ERROR(map_attention(prefix + "self_attn.", to));
  RETURN_IF_ERROR(map_mlp(prefix + "mlp.", to));
  return to;
}

Result<WeightMap> Mapper::map() const {
  const int64_t hidden = config_.hidden_size;
  const std::vector<int64_t> table{config_.vocab_size, hidden};
  const IndexRange all{0, hidden};
  WeightMap map;
  map.all_bf16 = all_bf16();
  map.has_codes = has_codes();
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
  return map;
}

}  // namespace

int64_t TensorPart::bytes(int64_t row_count) const {
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
  for (const LayerSources& l : layers)
    sum += l.qkv.bytes() + l.o.bytes() + l.gate_up.bytes() + l.down.bytes();
  return sum;
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
      values.push_back(tensor_element(*part.tensor, i));
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
  }
}

std::set<const TensorInfo*> used_tensors(const WeightMap& map) {
  std::set<const TensorInfo*> used;
  add_used(map.head.parts, used);
  if (map.embedding) add_used(map.embedding->parts, used);
  add_used(map.final_norm, used);
  for (const LayerSources& l : map.layers) {
    for (const MatrixSource* matrix : {&l.qkv, &l.o, &l.gate_up, &l.down}) add_used(matrix->parts, used);
    for (const VectorSource* vector : {&l.attention_norm, &l.mlp_norm, &l.q_norm, &l.k_norm, &l.qkv_bias,
                                       &l.o_bias, &l.gate_up_bias, &l.down_bias})
      add_used(*vector, used);
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
    if (used.contains(&tensor) || name.ends_with(".rotary_emb.inv_freq")) continue;
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
