#include "model_files/delta_net_config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "model_files/config_limits.h"

namespace outrider {
namespace {

using nlohmann::json;

// "layer_types", or all but each "full_attention_interval"-th layer.
Status read_mixers(const JsonObject& config, ModelConfig& out) {
  const json* types = config.find("layer_types");
  if (types == nullptr) {
    ASSIGN_OR_RETURN(const int64_t interval,
                     config.integer_or("full_attention_interval", 4, {1, kMaxLayers}));
    for (size_t i = 0; i < out.layers.size(); ++i)
      if ((static_cast<int64_t>(i) + 1) % interval != 0) out.layers[i].mixer = Mixer::kDeltaNet;
    return {};
  }
  if (!types->is_array() || types->size() != out.layers.size())
    return config.wrong("layer_types",
                        fmt::format("must be a list of {} entries, one for each layer", out.num_layers));
  for (size_t i = 0; i < out.layers.size(); ++i) {
    const json& type = (*types)[i];
    if (type != "linear_attention" && type != "full_attention")
      return config.refused("layer_types", "has " + json_text(type).substr(0, 100) +
                                               "; supported are linear_attention and full_attention");
    if (type == "linear_attention") out.layers[i].mixer = Mixer::kDeltaNet;
  }
  return {};
}

// Keys that the classes do not read, and that published files have. Other values would mean another model.
Status check_unread_keys(const JsonObject& config, bool may_skip_layers) {
  if (const json* gate = config.find("attn_output_gate"); gate != nullptr && *gate != true)
    return config.refused("attn_output_gate", "is not true; attention without a gate is not supported");
  if (const json* type = config.find("mamba_ssm_dtype"); type != nullptr && *type != "float32")
    return config.refused("mamba_ssm_dtype",
                          "is " + json_text(*type).substr(0, 100) + "; states are kept in float32 only");
  if (const json* list = config.find("mlp_only_layers");
      !may_skip_layers && list != nullptr && *list != json::array())
    return config.refused("mlp_only_layers", "is " + json_text(*list).substr(0, 100) +
                                                 "; the class does not read it; remove it");
  return {};
}

}  // namespace

Status read_delta_nets(const JsonObject& config, ModelConfig& out) {
  const FamilyTraits& traits = traits_of(out.family);
  RETURN_IF_ERROR(check_unread_keys(config, traits.experts != nullptr && traits.experts->may_skip_layers));
  RETURN_IF_ERROR(read_mixers(config, out));
  constexpr int64_t kMaxTaps = 64, kMaxDim = 1024;
  DeltaNetConfig net;
  ASSIGN_OR_RETURN(net.key_heads, config.integer_or("linear_num_key_heads", 16, {1, kMaxWidth}));
  ASSIGN_OR_RETURN(net.value_heads, config.integer_or("linear_num_value_heads", 32, {1, kMaxWidth}));
  if (net.value_heads % net.key_heads != 0)
    return config.wrong("linear_num_value_heads", fmt::format("is {}, not a multiple of the {} key heads",
                                                              net.value_heads, net.key_heads));
  ASSIGN_OR_RETURN(net.key_dim, config.integer_or("linear_key_head_dim", 128, {1, kMaxDim}));
  ASSIGN_OR_RETURN(net.value_dim, config.integer_or("linear_value_head_dim", 128, {1, kMaxDim}));
  ASSIGN_OR_RETURN(net.taps, config.integer_or("linear_conv_kernel_dim", 4, {1, kMaxTaps}));
  if (net.channels() > kMaxWidth)
    return config.wrong("linear_num_value_heads",
                        fmt::format("and the other sizes of linear attention make {} channels; at most {}",
                                    net.channels(), kMaxWidth));
  for (const LayerKind& layer : out.layers)
    if (layer.mixer == Mixer::kDeltaNet) out.delta_net = net;
  return {};
}

}  // namespace outrider
