#include "model_files/short_conv_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "model_files/config_limits.h"

namespace outrider {
namespace {

using nlohmann::json;

// One kind for each layer.
Result<std::vector<Mixer>> read_layer_types(const JsonObject& config, const json& types, int64_t layers) {
  if (!types.is_array() || types.size() != static_cast<size_t>(layers))
    return config.wrong("layer_types",
                        fmt::format("must be a list of {} entries, one for each layer", layers));
  std::vector<Mixer> mixers;
  for (const json& type : types) {
    if (type != "conv" && type != "full_attention")
      return config.refused(
          "layer_types", "has " + json_text(type).substr(0, 100) + "; supported are conv and full_attention");
    mixers.push_back(type == "conv" ? Mixer::kShortConv : Mixer::kAttention);
  }
  return mixers;
}

// Files without "layer_types" list the layers with attention; without a list all layers have it.
Result<std::vector<Mixer>> read_attention_layers(const JsonObject& config, int64_t layers) {
  const json* list = config.find("full_attn_idxs");
  if (list == nullptr) return std::vector<Mixer>(static_cast<size_t>(layers), Mixer::kAttention);
  if (!list->is_array()) return config.wrong("full_attn_idxs", "must be a list of layers");
  std::vector<Mixer> mixers(static_cast<size_t>(layers), Mixer::kShortConv);
  for (const json& index : *list) {
    if (!index.is_number_unsigned() || index.get<uint64_t>() >= static_cast<uint64_t>(layers))
      return config.wrong("full_attn_idxs", fmt::format("has {}, which is none of the {} layers",
                                                        json_text(index).substr(0, 100), layers));
    mixers[index.get<size_t>()] = Mixer::kAttention;
  }
  return mixers;
}

// Keys that the class does not read, and that its files have. Other values would mean another model.
Status check_unread_keys(const JsonObject& config, const ModelConfig& out) {
  for (const char* key : {"block_dim", "conv_dim", "conv_dim_out"})
    if (const json* value = config.find(key); value != nullptr && *value != out.hidden_size)
      return config.refused(key, fmt::format("is {}; only hidden_size, {}, is supported",
                                             json_text(*value).substr(0, 100), out.hidden_size));
  for (const char* key : {"block_use_swiglu", "use_pos_enc"})
    if (const json* value = config.find(key); value != nullptr && *value != true)
      return config.refused(key, "is not true; only true is supported");
  for (const char* key : {"block_norm_eps", "rms_norm_eps"})
    if (const json* value = config.find(key); value != nullptr && *value != out.rms_norm_eps)
      return config.refused(key, fmt::format("is {}, and norm_eps {}; keep the right one",
                                             json_text(*value).substr(0, 100), out.rms_norm_eps));
  if (const json* value = config.find("num_heads"); value != nullptr && *value != out.num_heads)
    return config.refused("num_heads", fmt::format("is {}, and num_attention_heads {}; keep the right one",
                                                   json_text(*value).substr(0, 100), out.num_heads));
  return {};
}

}  // namespace

Result<int64_t> read_adjusted_intermediate_size(const JsonObject& config) {
  const std::string key = config.has("block_ff_dim") ? "block_ff_dim" : "intermediate_size";
  ASSIGN_OR_RETURN(int64_t size, config.integer(key, {1, kMaxWidth}));
  ASSIGN_OR_RETURN(const bool adjusts, config.boolean_or("block_auto_adjust_ff_dim", true));
  if (!adjusts) return size;
  size = 2 * size / 3;
  const auto multiplier = config.members().find("block_ffn_dim_multiplier");
  const bool is_left_so = multiplier != config.members().end() && multiplier->is_null();
  if (!is_left_so) {
    ASSIGN_OR_RETURN(const double factor, config.number_or("block_ffn_dim_multiplier", 1, 1e-3, 1e3));
    ASSIGN_OR_RETURN(const int64_t multiple, config.integer_or("block_multiple_of", 256, {1, kMaxWidth}));
    size = static_cast<int64_t>(factor * static_cast<double>(size));
    size = (size + multiple - 1) / multiple * multiple;
  }
  if (size < 1 || size > kMaxWidth)
    return config.wrong(key, fmt::format("makes {} columns of the MLP; must be 1 to {}", size, kMaxWidth));
  return size;
}

Status read_short_convolutions(const JsonObject& config, const FamilyTraits& traits, ModelConfig& out) {
  RETURN_IF_ERROR(check_unread_keys(config, out));
  ASSIGN_OR_RETURN(const bool biased, config.boolean_or("conv_bias", false));
  if (biased)
    return config.refused("conv_bias", "is true; short convolutions and their projections have no bias here");
  if (config.has("sliding_window"))
    return config.refused("sliding_window",
                          fmt::format("is there, and {} does not read it; remove it", traits.architecture));
  constexpr int64_t kMaxTaps = 64;
  ASSIGN_OR_RETURN(const int64_t taps, config.integer_or("conv_L_cache", 3, {1, kMaxTaps}));
  const json* types = config.find("layer_types");
  ASSIGN_OR_RETURN(const auto mixers, types != nullptr ? read_layer_types(config, *types, out.num_layers)
                                                       : read_attention_layers(config, out.num_layers));
  int64_t dense = out.num_layers;
  if (traits.experts != nullptr) {
    ASSIGN_OR_RETURN(dense, config.integer_or("num_dense_layers", 2, {0, kMaxLayers}));
  }
  for (const Mixer mixer : mixers) {
    const auto i = static_cast<int64_t>(out.layers.size());
    out.layers.push_back({.has_experts = i >= dense, .mixer = mixer});
  }
  const bool any = std::find(mixers.begin(), mixers.end(), Mixer::kShortConv) != mixers.end();
  out.conv_taps = any ? taps : 0;
  return {};
}

}  // namespace outrider
