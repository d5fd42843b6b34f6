#include "model_files/unused_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>

#include "model_files/weight_map.h"
#include "model_files/wrapper_config.h"

namespace outrider {

void add_used(const std::vector<TensorPart>& parts, std::set<const TensorInfo*>& used) {
  for (const TensorPart& part : parts) {
    used.insert(part.tensor);
    used.insert(part.scales);
    if (part.coded) used.insert(part.coded->tensors().begin(), part.coded->tensors().end());
  }
}

void add_used(const LayerSources& l, std::set<const TensorInfo*>& used) {
  for (const MatrixSource* matrix : l.matrices()) add_used(matrix->parts, used);
  for (const VectorSource* vector :
       {&l.attention_norm, &l.mlp_norm, &l.attention_out_norm, &l.mlp_out_norm, &l.q_norm, &l.k_norm,
        &l.qkv_bias, &l.sinks, &l.o_bias, &l.conv, &l.scale})
    add_used(*vector, used);
  if (l.delta_net)
    for (const VectorSource* vector : {&l.delta_net->decay, &l.delta_net->dt_bias, &l.delta_net->norm})
      add_used(*vector, used);
  if (l.input) add_used(l.input->norm, used);
  if (l.latent) {
    add_used(l.latent->q_norm, used);
    add_used(l.latent->kv_norm, used);
  }
  const auto add_biases = [&](const MlpSources& m) {
    add_used(m.gate_up_bias, used);
    add_used(m.down_bias, used);
  };
  const ExpertSources* const mixture = l.mixture();
  if (!mixture) return add_biases(l.dense());
  add_used(mixture->router.parts, used);
  add_used(mixture->router_bias, used);
  add_used(mixture->correction, used);
  add_used(mixture->shared_gate, used);
  if (mixture->beside)
    for (const VectorSource* vector :
         {&mixture->beside->mlp_out_norm, &mixture->beside->experts_norm, &mixture->beside->experts_out_norm,
          &mixture->beside->router_scale, &mixture->beside->expert_scales})
      add_used(*vector, used);
  for (const MlpSources& expert : mixture->experts) add_biases(expert);
}

bool is_shape_of_used(const TensorFiles& files, std::string_view name,
                      const std::set<const TensorInfo*>& used) {
  constexpr std::string_view kShape = "shape";
  if (!name.ends_with(".weight_shape")) return false;
  return used.contains(files.find(std::string(name.substr(0, name.size() - kShape.size())) + "packed"));
}

namespace {

std::set<const TensorInfo*> used_tensors(const WeightMap& map) {
  std::set<const TensorInfo*> used;
  for (const MatrixSource* matrix : map.vocabulary_matrices()) add_used(matrix->parts, used);
  if (map.inputs) {
    add_used(map.inputs->projection.parts, used);
    add_used(map.inputs->norm, used);
  }
  add_used(map.final_norm, used);
  for (const LayerSources& l : map.layers) add_used(l, used);
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

// The layer of a tensor; nothing where it belongs to none.
std::optional<int64_t> layer_of(std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return std::nullopt;
  int64_t layer = 0;
  const char* const end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + kLayers.size(), end, layer);
  return read.ec == std::errc() ? std::optional(layer) : std::nullopt;
}

// Modules of multi-token prediction, as Qwen, MiMo, Ernie and DeepSeek name them: the last as layers behind
// the last one.
bool is_for_drafts(std::string_view name, int64_t layers) {
  if (name.starts_with("mtp.") || name.starts_with("model.mtp_")) return true;
  return layer_of(name).value_or(-1) >= layers;
}

// Files of Gemma 4 have projections for keys and values in layers that read those of other layers.
bool is_of_shared_keys(std::string_view name, const ModelConfig& config) {
  const std::optional<int64_t> layer = layer_of(name);
  if (!layer || *layer < 0 || *layer >= config.num_layers || config.layer(*layer).kv_of < 0) return false;
  return name.find(".self_attn.k_") != name.npos || name.find(".self_attn.v_") != name.npos;
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
    if (is_for_drafts(name, config.num_layers) || is_of_images_or_sound(name) ||
        is_of_shared_keys(name, config)) {
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
