#include "model_files/varied_layers_config.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "model_files/config_limits.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr JsonObject::Range kHeadDims{2, 4096};

bool sees_all(const LayerKind& layer) { return layer.rope == LayerRope::kMain; }

bool is_null(const JsonObject& config, const char* key) {
  const auto found = config.members().find(key);
  return found != config.members().end() && found->is_null();
}

// The class makes the last layer see all, whatever the file says.
Status check_last_layer(const JsonObject& config, ModelConfig& out) {
  LayerKind& last = out.layers.back();
  if (sees_all(last)) return {};
  if (config.has("layer_types"))
    return config.refused("layer_types", "ends with sliding_attention; the last layer is full_attention");
  last.rope = LayerRope::kMain;
  last.window = 0;
  return {};
}

// Heads of layers that see all, as published files have them.
Status read_global_heads(const JsonObject& config, bool keys_are_values, ModelConfig& out) {
  ASSIGN_OR_RETURN(const int64_t head_dim, config.integer_or("global_head_dim", 512, kHeadDims));
  int64_t kv_heads = 0;
  if (keys_are_values) {
    ASSIGN_OR_RETURN(kv_heads, config.integer_or("num_global_key_value_heads", 0, {0, kMaxWidth}));
  }
  for (LayerKind& layer : out.layers)
    if (sees_all(layer)) layer.head_dim = head_dim, layer.kv_heads = kv_heads;
  return {};
}

// The same as transformers writes it: {"5": {"head_dim": 512, "num_key_value_heads": 4}, ...}
Status read_heads_by_layer(const JsonObject& config, const JsonObject& by_layer, ModelConfig& out) {
  for (const char* key : {"global_head_dim", "num_global_key_value_heads"})
    if (config.has(key))
      return config.refused(key, "and \"per_layer_config\" are both there; keep per_layer_config");
  for (const auto& [name, value] : by_layer.members().items()) {
    size_t index = out.layers.size();
    const auto read = std::from_chars(name.data(), name.data() + name.size(), index);
    if (read.ec != std::errc() || read.ptr != name.data() + name.size() || index >= out.layers.size())
      return by_layer.wrong(name, fmt::format("is none of the {} layers", out.num_layers));
    ASSIGN_OR_RETURN(const JsonObject own, JsonObject::view(value, by_layer.where() + "." + name));
    for (const auto& [key, unused] : own.members().items())
      if (key != "head_dim" && key != "num_key_value_heads")
        return own.refused(key, "is not understood; head_dim and num_key_value_heads are");
    LayerKind& layer = out.layers[index];
    ASSIGN_OR_RETURN(layer.head_dim, own.integer_or("head_dim", out.head_dim, kHeadDims));
    ASSIGN_OR_RETURN(layer.kv_heads, own.integer_or("num_key_value_heads", out.num_kv_heads, {1, kMaxWidth}));
  }
  return {};
}

Status check_heads(const JsonObject& config, const ModelConfig& out) {
  const LayerKind& last = out.layers.back();
  for (const LayerKind& layer : out.layers) {
    const ModelConfig sized = out.sized_for(layer);
    if (sized.head_dim % 2 != 0)
      return config.wrong("global_head_dim", fmt::format("is {}; must be even", sized.head_dim));
    if (out.num_heads % sized.num_kv_heads != 0)
      return config.wrong("num_global_key_value_heads",
                          fmt::format("is {}, which does not divide the {} attention heads",
                                      sized.num_kv_heads, out.num_heads));
    if (sized.q_size() > kMaxWidth)
      return config.wrong("num_attention_heads", fmt::format("times a head of {} is {}; at most {}",
                                                             sized.head_dim, sized.q_size(), kMaxWidth));
    const ModelConfig alike = out.sized_for(sees_all(layer) ? last : LayerKind{});
    if (sized.head_dim != alike.head_dim || sized.num_kv_heads != alike.num_kv_heads)
      return config.refused("per_layer_config",
                            "has layers of one type with different heads; heads by layer type are supported");
  }
  return {};
}

// The last layers make no keys and values. Each reads those of an earlier layer of its type.
Status read_shared_keys(const JsonObject& config, ModelConfig& out) {
  ASSIGN_OR_RETURN(const int64_t shared,
                   config.integer_or("num_kv_shared_layers", 0, {0, out.num_layers - 1}));
  ASSIGN_OR_RETURN(const bool doubles, config.boolean_or("use_double_wide_mlp", false));
  const int64_t first = out.num_layers - shared;
  for (int64_t i = first; i < out.num_layers; ++i) {
    LayerKind& layer = out.layers[static_cast<size_t>(i)];
    for (int64_t source = 0; source < first; ++source)
      if (sees_all(out.layers[static_cast<size_t>(source)]) == sees_all(layer)) layer.kv_of = source;
    if (layer.kv_of < 0)
      return config.wrong(
          "num_kv_shared_layers",
          fmt::format("is {}, but no layer of the type of layer {} has keys of its own", shared, i));
    if (doubles) layer.intermediate_size = 2 * out.intermediate_size;
  }
  return {};
}

Status read_layer_inputs(const JsonObject& config, ModelConfig& out) {
  if (is_null(config, "hidden_size_per_layer_input")) return {};
  ASSIGN_OR_RETURN(out.layer_input_size,
                   config.integer_or("hidden_size_per_layer_input", 256, {0, kMaxWidth / out.num_layers}));
  if (out.layer_input_size == 0) return {};
  ASSIGN_OR_RETURN(const int64_t rows,
                   config.integer_or("vocab_size_per_layer_input", 262144, {1, kMaxVocab}));
  if (rows != out.vocab_size)
    return config.refused("vocab_size_per_layer_input",
                          fmt::format("is {}; only vocab_size, {}, is supported", rows, out.vocab_size));
  return {};
}

// Keys that other classes read for rotations; this one reads "rope_parameters" alone.
Status read_rotations(const JsonObject& config, const FamilyTraits& traits, ModelConfig& out) {
  for (const char* key : {"rope_theta", "rope_scaling"})
    if (config.has(key))
      return config.refused(
          key, fmt::format("is not read by {}; give rope_parameters by layer type", traits.architecture));
  ASSIGN_OR_RETURN(const auto rope, config.object("rope_parameters"));
  if (!rope)
    out.rope.scaling = ProportionalRopeScaling{.share = 0.25};
  else if (!rope->has("full_attention") || !rope->has("sliding_attention"))
    return config.wrong("rope_parameters", "must have full_attention and sliding_attention");
  out.rope.dims = out.sized_for(out.layers.back()).head_dim;
  return {};
}

}  // namespace

Status read_varied_layers(const JsonObject& config, const FamilyTraits& traits, ModelConfig& out) {
  out.values_normed = out.scales_layers = true;
  out.scales.attention = 1;
  if (const json* both_ways = config.find("use_bidirectional_attention");
      both_ways != nullptr && *both_ways != "vision")  // which is about images
    return config.refused("use_bidirectional_attention",
                          "is " + json_text(*both_ways).substr(0, 100) + "; only vision is supported");
  RETURN_IF_ERROR(check_last_layer(config, out));
  ASSIGN_OR_RETURN(const bool keys_are_values, config.boolean_or("attention_k_eq_v", false));
  ASSIGN_OR_RETURN(const auto by_layer, config.object("per_layer_config"));
  RETURN_IF_ERROR(by_layer ? read_heads_by_layer(config, *by_layer, out)
                           : read_global_heads(config, keys_are_values, out));
  RETURN_IF_ERROR(check_heads(config, out));
  for (LayerKind& layer : out.layers) layer.values_are_keys = keys_are_values && sees_all(layer);
  RETURN_IF_ERROR(read_shared_keys(config, out));
  RETURN_IF_ERROR(read_layer_inputs(config, out));
  return read_rotations(config, traits, out);
}

}  // namespace outrider
