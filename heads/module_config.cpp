#include "heads/module_config.h"

#include <nlohmann/json.hpp>

#include "model_files/family.h"
#include "model_files/layer_config.h"

namespace outrider {
namespace {

using nlohmann::json;

// MiMo's layers are Qwen2's. Those of others are of the family that the file says, which is the target's own
// where the module is in its files.
Result<ModelConfig> read_module_layer(const JsonObject& layer) {
  ASSIGN_OR_RETURN(const std::string type, layer.string_or("model_type", "mimo"));
  if (type != "mimo") {
    ASSIGN_OR_RETURN(const ModelFamily family, family_of(layer, ModelFamily::kLlama));
    return read_layer_config(layer, family);
  }
  ASSIGN_OR_RETURN(const bool biased, layer.boolean_or("attention_bias", false));
  json members = layer.members();
  members["model_type"] = "llama";
  members.erase("attention_bias");
  ASSIGN_OR_RETURN(const JsonObject plain, JsonObject::view(members, layer.where()));
  ASSIGN_OR_RETURN(ModelConfig out, read_layer_config(plain, ModelFamily::kLlama));
  out.qkv_bias = biased;
  return out;
}

}  // namespace

// The layer of a module stands behind those that the file counts, and is a mixture where there is any.
Status read_module_config(const JsonObject& config, HeadConfig& out) {
  constexpr const char* kOwnEmbedding = "mtp_use_dedicated_embeddings";
  ASSIGN_OR_RETURN(const bool has_own_embedding, config.boolean_or(kOwnEmbedding, false));
  if (has_own_embedding)
    return config.refused(kOwnEmbedding, "is true; modules that share the target's embedding are supported");
  ASSIGN_OR_RETURN(out.layer, read_module_layer(config));
  ModelConfig rest = out.layer;  // less what a module may have beside Llama's layers
  rest.experts.reset();
  rest.rope.amplitude = 1;
  rest.rope.dims = 0;
  if (rest.latent) rest.scales.attention = 0;
  rest.latent.reset();
  rest.attention_gate = rest.norm_adds_one = false;
  rest.delta_net.reset();
  if (const std::string beyond = beyond_plain_layers(rest); !beyond.empty())
    return unsupported(fmt::format("{}: a module of multi-token prediction with {} is not supported",
                                   config.where(), beyond));
  out.layer.delta_net.reset();  // of other layers
  out.layer.num_layers = 1;
  out.layer.layers = {LayerKind{.has_experts = out.layer.experts.has_value()}};
  // Qwen's files say it under a name of their own, or nowhere.
  constexpr const char* kCount = "num_nextn_predict_layers";
  constexpr const char* kQwenCount = "mtp_num_hidden_layers";
  const bool may_be_left_out = family_name(out.layer.family).starts_with("qwen");
  const char* const key = config.has(kQwenCount) ? kQwenCount : kCount;
  if (may_be_left_out && !config.has(key)) return {};
  ASSIGN_OR_RETURN(const int64_t modules, config.integer(key, {1, 64}));
  if (modules != 1) return config.refused(key, fmt::format("is {}; one module is supported", modules));
  return {};
}

}  // namespace outrider
