#include "model_files/latent_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "model_files/config_limits.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr int64_t kMaxHeadDim = 4096;

// A key that repeats what others say, or may not be changed.
Status must_be(const JsonObject& config, const std::string& key, const json& value) {
  const json* found = config.find(key);
  if (found == nullptr || *found == value) return {};
  return config.refused(key, fmt::format("is {}; only {} is supported here", json_text(*found).substr(0, 100),
                                         json_text(value)));
}

Status set_shared(const JsonObject& config, const std::string& key, int64_t count, ExpertConfig& out) {
  out.shared_intermediate_size = count * out.intermediate_size;
  if (out.shared_intermediate_size <= kMaxWidth) return {};
  return config.wrong(key,
                      fmt::format("makes an MLP of {}; at most {}", out.shared_intermediate_size, kMaxWidth));
}

}  // namespace

Status read_latent_config(const JsonObject& config, ModelConfig& out) {
  LatentConfig latent;
  if (config.has("q_lora_rank")) {
    ASSIGN_OR_RETURN(latent.q_rank, config.integer("q_lora_rank", {1, kMaxWidth}));
  } else if (!config.members().contains("q_lora_rank")) {
    return config.wrong("q_lora_rank", "is missing; null says that queries have no latent");
  }
  ASSIGN_OR_RETURN(latent.kv_rank, config.integer("kv_lora_rank", {1, kMaxHeadDim}));
  ASSIGN_OR_RETURN(latent.nope_dim, config.integer("qk_nope_head_dim", {1, kMaxHeadDim}));
  ASSIGN_OR_RETURN(latent.rope_dim, config.integer("qk_rope_head_dim", {2, kMaxHeadDim}));
  ASSIGN_OR_RETURN(latent.value_dim, config.integer("v_head_dim", {1, kMaxHeadDim}));
  ASSIGN_OR_RETURN(latent.interleaved, config.boolean_or("rope_interleave", true));
  if (latent.rope_dim % 2 != 0)
    return config.wrong("qk_rope_head_dim", fmt::format("is {}; must be even", latent.rope_dim));
  RETURN_IF_ERROR(must_be(config, "num_key_value_heads", out.num_heads));
  RETURN_IF_ERROR(must_be(config, "head_dim", latent.rope_dim));
  RETURN_IF_ERROR(must_be(config, "qk_head_dim", latent.query_dim()));
  RETURN_IF_ERROR(must_be(config, "attention_bias", false));
  if (out.num_heads * (latent.kv_rank + latent.rope_dim) > kMaxWidth ||
      out.num_heads * (latent.nope_dim + std::max(latent.rope_dim, latent.value_dim)) > kMaxWidth)
    return config.wrong("num_attention_heads",
                        fmt::format("times the sizes of a head is more than {}", kMaxWidth));
  out.latent = latent;
  out.num_kv_heads = 1;
  out.head_dim = latent.kv_rank + latent.rope_dim;
  return {};
}

Status read_ungrouped_routing(const JsonObject& config, ExpertConfig& out) {
  RETURN_IF_ERROR(must_be(config, "scoring_func", "sigmoid"));
  RETURN_IF_ERROR(must_be(config, "use_routing_bias", true));
  RETURN_IF_ERROR(must_be(config, "shared_intermediate_size", 0));
  RETURN_IF_ERROR(must_be(config, "qk_norm_type", "per_layer"));
  if (const json* types = config.find("attn_type_list"))
    for (const json& type : *types)
      if (type != 1)
        return config.refused("attn_type_list", "has " + json_text(type).substr(0, 100) +
                                                    "; only 1, full attention, is supported");
  if (out.count < 2) return config.wrong("num_local_experts", "must be at least 2");
  out.score = RouterScore::kSigmoid;
  out.corrected = true;
  return {};
}

Status read_sigmoid_routing(const JsonObject& config, ExpertConfig& out) {
  out.score = RouterScore::kSigmoid;
  ASSIGN_OR_RETURN(out.corrected, config.boolean_or("use_expert_bias", true));
  ASSIGN_OR_RETURN(out.renormalise, config.boolean_or("norm_topk_prob", true));
  ASSIGN_OR_RETURN(out.factor, config.number_or("routed_scaling_factor", 1, 1e-9, 1e9));
  out.added = 1e-6;
  return {};
}

Status read_grouped_routing(const JsonObject& config, const ExpertNames& names, ExpertConfig& out) {
  const bool corrected = names.routing == Routing::kCorrected;
  out.score = corrected ? RouterScore::kSigmoid : RouterScore::kSoftmax;
  out.corrected = corrected;
  RETURN_IF_ERROR(must_be(config, "scoring_func", corrected ? "sigmoid" : "softmax"));
  RETURN_IF_ERROR(must_be(config, "moe_layer_freq", 1));
  ASSIGN_OR_RETURN(const std::string method,
                   config.string_or("topk_method", corrected ? "noaux_tc" : "greedy"));
  const bool is_greedy = !corrected && method == "greedy";
  if (!is_greedy && method != (corrected ? "noaux_tc" : "group_limited_greedy"))
    return config.refused("topk_method", "is " + method.substr(0, 100) + "; supported is " +
                                             (corrected ? "noaux_tc" : "greedy, and group_limited_greedy"));
  if (!is_greedy) {
    ASSIGN_OR_RETURN(out.groups, config.integer("n_group", {1, out.count}));
    ASSIGN_OR_RETURN(out.groups_chosen, config.integer("topk_group", {1, out.groups}));
    if (out.count % out.groups != 0)
      return config.wrong("n_group",
                          fmt::format("is {}, which does not divide the {} experts", out.groups, out.count));
    const int64_t each = out.count / out.groups;
    if (out.groups_chosen * each < out.chosen)
      return config.wrong("topk_group", fmt::format("groups of {} experts hold fewer than the {} of a token",
                                                    each, out.chosen));
    if (corrected && each < 2)
      return config.wrong("n_group", "must leave two experts to a group, whose best two count");
  }
  // The class in transformers does not read it where scores are shares; DeepSeek's own does.
  if (!corrected) RETURN_IF_ERROR(must_be(config, "norm_topk_prob", false));
  ASSIGN_OR_RETURN(out.renormalise, config.boolean_or("norm_topk_prob", corrected));
  ASSIGN_OR_RETURN(out.factor, config.number_or("routed_scaling_factor", names.factor, 1e-9, 1e9));
  ASSIGN_OR_RETURN(const int64_t shared, config.integer_or("n_shared_experts", corrected ? 1 : 2, {1, 1024}));
  return set_shared(config, "n_shared_experts", shared, out);
}

// The class divides by the chosen ones' sum, or by "moe_norm_min" where that is more: shares of a softmax
// never add up to as little as its default.
Status read_shares_routing(const JsonObject& config, ExpertConfig& out) {
  RETURN_IF_ERROR(must_be(config, "use_bias", false));
  RETURN_IF_ERROR(must_be(config, "moe_norm_min", 1e-12));
  RETURN_IF_ERROR(must_be(config, "num_experts_per_tok", out.chosen));
  ASSIGN_OR_RETURN(const std::string gate, config.string_or("moe_gate", "topk"));
  if (gate != "topk" && gate != "topk_fused")
    return config.refused("moe_gate", "is " + gate.substr(0, 100) + "; supported are topk and topk_fused");
  out.corrected = true;
  ASSIGN_OR_RETURN(const int64_t shared, config.integer_or("moe_num_shared_experts", 2, {0, 1024}));
  return set_shared(config, "moe_num_shared_experts", shared, out);
}

}  // namespace outrider
