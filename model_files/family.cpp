#include "model_files/family.h"

#include <algorithm>
#include <array>

namespace outrider {
namespace {

constexpr std::array kGemma2Scales = {
    ScaleKey{"query_pre_attn_scalar", &ModelScales::attention, 256, ScaleKey::Kind::kInverseRoot},
    ScaleKey{"attn_logit_softcapping", &ModelScales::attention_cap, 50, ScaleKey::Kind::kCap},
    ScaleKey{"final_logit_softcapping", &ModelScales::logit_cap, 30, ScaleKey::Kind::kCap},
};
// Its class does not cap attention, whatever the key says.
constexpr std::array kGemma3Scales = {
    ScaleKey{"query_pre_attn_scalar", &ModelScales::attention, 256, ScaleKey::Kind::kInverseRoot},
    ScaleKey{"final_logit_softcapping", &ModelScales::logit_cap, 0, ScaleKey::Kind::kCap},
};
constexpr std::array kGemma4Scales = {
    ScaleKey{"final_logit_softcapping", &ModelScales::logit_cap, 0, ScaleKey::Kind::kCap},
};
constexpr std::array kGraniteScales = {
    ScaleKey{"embedding_multiplier", &ModelScales::embedding, 1},
    ScaleKey{"residual_multiplier", &ModelScales::residual, 1},
    ScaleKey{"attention_multiplier", &ModelScales::attention, 1},
    ScaleKey{"logits_scaling", &ModelScales::logit_divisor, 1},
};

constexpr std::array kGptOssScales = {
    ScaleKey{"swiglu_alpha", &ModelScales::gate_factor, 1.702},
    ScaleKey{"swiglu_limit", &ModelScales::gate_limit, 7},
};

constexpr ExpertNames kMixtralExperts{.block = "block_sparse_moe.",
                                      .gate = "w1",
                                      .up = "w3",
                                      .down = "w2",
                                      .count_key = "num_local_experts",
                                      .size_key = "intermediate_size",
                                      .always_renormalises = true};
constexpr ExpertNames kQwen2Experts{.block = "mlp.",
                                    .gate = "gate_proj",
                                    .up = "up_proj",
                                    .down = "down_proj",
                                    .count_key = "num_experts",
                                    .size_key = "moe_intermediate_size",
                                    .has_shared = true,
                                    .may_skip_layers = true};
constexpr ExpertNames kQwen3Experts{.block = "mlp.",
                                    .gate = "gate_proj",
                                    .up = "up_proj",
                                    .down = "down_proj",
                                    .count_key = "num_experts",
                                    .size_key = "moe_intermediate_size",
                                    .may_skip_layers = true};

constexpr ExpertNames kGptOssExperts{.block = "mlp.",
                                     .gate = "gate_up_proj",
                                     .up = "gate_up_proj",
                                     .down = "down_proj",
                                     .count_key = "num_local_experts",
                                     .size_key = "intermediate_size",
                                     .always_renormalises = true,
                                     .router = "router",
                                     .packed = true,
                                     .biases = true};

constexpr ExpertNames kDeepseekV2Experts{.block = "mlp.",
                                         .gate = "gate_proj",
                                         .up = "up_proj",
                                         .down = "down_proj",
                                         .count_key = "n_routed_experts",
                                         .size_key = "moe_intermediate_size",
                                         .has_shared = true,
                                         .routing = Routing::kGroups,
                                         .shared = "shared_experts.",
                                         .shared_is_gated = false,
                                         .dense_layers_first = true};
constexpr ExpertNames kMinimaxM2Experts{.block = "block_sparse_moe.",
                                        .gate = "w1",
                                        .up = "w3",
                                        .down = "w2",
                                        .count_key = "num_local_experts",
                                        .size_key = "intermediate_size",
                                        .routing = Routing::kCorrectedAlone,
                                        .correction = "e_score_correction_bias"};
constexpr ExpertNames kGlm4MoeExperts{.block = "mlp.",
                                      .gate = "gate_proj",
                                      .up = "up_proj",
                                      .down = "down_proj",
                                      .count_key = "n_routed_experts",
                                      .size_key = "moe_intermediate_size",
                                      .has_shared = true,
                                      .routing = Routing::kCorrected,
                                      .shared = "shared_experts.",
                                      .shared_is_gated = false,
                                      .dense_layers_first = true};
constexpr ExpertNames kErnie45MoeExperts{.block = "mlp.",
                                         .gate = "gate_proj",
                                         .up = "up_proj",
                                         .down = "down_proj",
                                         .count_key = "moe_num_experts",
                                         .chosen_key = "moe_k",
                                         .size_key = "moe_intermediate_size",
                                         .has_shared = true,
                                         .routing = Routing::kCorrectedShares,
                                         .shared = "shared_experts.",
                                         .shared_is_gated = false,
                                         .layers_by_range = true,
                                         .correction = "moe_statics.e_score_correction_bias"};
constexpr ExpertNames kLfm2MoeExperts{.block = "feed_forward.",
                                      .gate = "w1",
                                      .up = "w3",
                                      .down = "w2",
                                      .count_key = "num_experts",
                                      .size_key = "moe_intermediate_size",
                                      .routing = Routing::kSigmoids,
                                      .correction = "expert_bias"};
constexpr ExpertNames kDeepseekV3Experts{.block = "mlp.",
                                         .gate = "gate_proj",
                                         .up = "up_proj",
                                         .down = "down_proj",
                                         .count_key = "n_routed_experts",
                                         .size_key = "moe_intermediate_size",
                                         .has_shared = true,
                                         .routing = Routing::kCorrected,
                                         .shared = "shared_experts.",
                                         .shared_is_gated = false,
                                         .dense_layers_first = true,
                                         .factor = 2.5};

constexpr ExpertNames kQwen3NextExperts{.block = "mlp.",
                                        .gate = "gate_proj",
                                        .up = "up_proj",
                                        .down = "down_proj",
                                        .count_key = "num_experts",
                                        .size_key = "moe_intermediate_size",
                                        .has_shared = true,
                                        .may_skip_layers = true,
                                        .renormalises = true};
constexpr ExpertNames kQwen35Experts{.block = "mlp.",
                                     .gate = "gate_proj",
                                     .up = "up_proj",
                                     .down = "down_proj",
                                     .count_key = "num_experts",
                                     .size_key = "moe_intermediate_size",
                                     .has_shared = true,
                                     .always_renormalises = true};

constexpr ExpertNames kGemma4Experts{.block = "",
                                     .gate = "gate_proj",
                                     .up = "up_proj",
                                     .down = "down_proj",
                                     .count_key = "num_experts",
                                     .chosen_key = "top_k_experts",
                                     .size_key = "moe_intermediate_size",
                                     .always_renormalises = true,
                                     .router = "router.proj",
                                     .beside_mlp = true};

using Keys = std::string_view;
constexpr std::array kQwenKeys = std::to_array<Keys>({"use_sliding_window"});
constexpr std::array kGemma2Keys = std::to_array<Keys>({"hidden_activation"});
constexpr std::array kGemma3Keys = std::to_array<Keys>(
    {"hidden_activation", "rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"});
constexpr std::array kGemma4Keys = std::to_array<Keys>(
    {"hidden_activation", "global_head_dim", "num_global_key_value_heads", "per_layer_config",
     "hidden_size_per_layer_input", "vocab_size_per_layer_input", "num_kv_shared_layers", "attention_k_eq_v",
     "use_double_wide_mlp", "use_bidirectional_attention", "enable_moe_block", "top_k_experts"});
constexpr std::array kSmolLm3Keys =
    std::to_array<Keys>({"use_sliding_window", "no_rope_layers", "no_rope_layer_interval"});
constexpr std::array kMixtralKeys = std::to_array<Keys>({"num_experts_per_tok"});
constexpr std::array kQwen2MoeKeys =
    std::to_array<Keys>({"num_experts_per_tok", "norm_topk_prob", "mlp_only_layers", "decoder_sparse_step",
                         "shared_expert_intermediate_size", "qkv_bias", "use_sliding_window"});
constexpr std::array kQwen3MoeKeys =
    std::to_array<Keys>({"num_experts_per_tok", "norm_topk_prob", "mlp_only_layers", "decoder_sparse_step",
                         "use_sliding_window"});

// "mtp_use_dedicated_embeddings": of modules for drafts.
constexpr std::array kQwen3NextKeys = std::to_array<Keys>(
    {"full_attention_interval", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads",
     "linear_num_value_heads", "linear_value_head_dim", "attn_output_gate", "mamba_ssm_dtype",
     "mtp_use_dedicated_embeddings", "num_experts_per_tok", "norm_topk_prob", "mlp_only_layers",
     "decoder_sparse_step", "shared_expert_intermediate_size"});
constexpr std::array kQwen35Keys = std::to_array<Keys>(
    {"full_attention_interval", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads",
     "linear_num_value_heads", "linear_value_head_dim", "attn_output_gate", "mamba_ssm_dtype",
     "mtp_use_dedicated_embeddings", "mlp_only_layers"});
constexpr std::array kQwen35MoeKeys =
    std::to_array<Keys>({"full_attention_interval", "linear_conv_kernel_dim", "linear_key_head_dim",
                         "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim",
                         "attn_output_gate", "mamba_ssm_dtype", "mtp_use_dedicated_embeddings",
                         "mlp_only_layers", "num_experts_per_tok", "shared_expert_intermediate_size"});

constexpr std::array kGptOssKeys =
    std::to_array<Keys>({"num_experts_per_tok", "experts_per_token", "initial_context_length"});

// aux_loss_alpha, seq_aux, ep_size: of training, and of how others spread experts.
constexpr std::array kDeepseekV2Keys = std::to_array<Keys>(
    {"num_experts_per_tok", "norm_topk_prob", "n_group", "topk_group", "topk_method", "scoring_func",
     "moe_layer_freq", "n_shared_experts", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
     "qk_rope_head_dim", "qk_head_dim", "v_head_dim", "first_k_dense_replace", "routed_scaling_factor",
     "aux_loss_alpha", "seq_aux", "ep_size"});
constexpr std::array kDeepseekV3Keys = std::to_array<Keys>(
    {"num_experts_per_tok",   "norm_topk_prob",   "n_group",          "topk_group",  "topk_method",
     "scoring_func",          "moe_layer_freq",   "n_shared_experts", "q_lora_rank", "kv_lora_rank",
     "qk_nope_head_dim",      "qk_rope_head_dim", "qk_head_dim",      "v_head_dim",  "first_k_dense_replace",
     "routed_scaling_factor", "aux_loss_alpha",   "seq_aux",          "ep_size",     "rope_interleave"});

constexpr std::array kSeedOssKeys = std::to_array<Keys>({"attention_out_bias", "residual_dropout"});
constexpr std::array kGlm4MoeKeys =
    std::to_array<Keys>({"num_experts_per_tok", "norm_topk_prob", "n_group", "topk_group", "n_shared_experts",
                         "first_k_dense_replace", "routed_scaling_factor", "use_qk_norm"});
// "use_mtp", "num_mtp_modules", "mtp_transformer_layers": of modules for drafts.
constexpr std::array kMinimaxM2Keys = std::to_array<Keys>(
    {"num_experts_per_tok", "scoring_func", "use_routing_bias", "shared_intermediate_size", "rotary_dim",
     "qk_norm_type", "attn_type_list", "use_mtp", "num_mtp_modules", "mtp_transformer_layers"});

constexpr std::array kErnie45Keys = std::to_array<Keys>({"use_bias"});
// From "moe_capacity" on: of training, and of how others spread experts.
constexpr std::array kErnie45MoeKeys = std::to_array<Keys>(
    {"use_bias", "moe_k", "moe_num_experts", "moe_num_shared_experts", "moe_layer_start_index",
     "moe_layer_end_index", "moe_layer_interval", "moe_norm_min", "moe_gate", "num_experts_per_tok",
     "moe_capacity", "moe_use_aux_free", "moe_aux_loss_lambda", "moe_z_loss_lambda",
     "moe_orthogonal_loss_lambda", "multi_token_pred_lambda"});
// From "attention_head_dim" on: of tokenizers, of images and of heads that the class does not have.
constexpr std::array kHunyuanKeys = std::to_array<Keys>({"num_experts",
                                                         "attention_head_dim",
                                                         "eod_token_id",
                                                         "cla_share_factor",
                                                         "add_classification_head",
                                                         "class_num",
                                                         "pool_type",
                                                         "dense_list",
                                                         "im_start_id",
                                                         "im_end_id",
                                                         "im_newline_id",
                                                         "image_token_id",
                                                         "video_start_id",
                                                         "video_end_id",
                                                         "text_start_id",
                                                         "text_end_id",
                                                         "mask_init_id",
                                                         "num_media_embeds",
                                                         "org_vocab_size",
                                                         "pad_id",
                                                         "skip_cls_token",
                                                         "group_limited_greedy",
                                                         "anyres_pooling_size"});

// From "block_dim" on: keys that the class does not read; short_conv_config.cpp compares some with what it
// does.
constexpr std::array kLfm2Keys = std::to_array<Keys>({"norm_eps",
                                                      "conv_bias",
                                                      "conv_L_cache",
                                                      "full_attn_idxs",
                                                      "block_ff_dim",
                                                      "block_multiple_of",
                                                      "block_ffn_dim_multiplier",
                                                      "block_auto_adjust_ff_dim",
                                                      "tie_embedding",
                                                      "block_dim",
                                                      "block_norm_eps",
                                                      "block_use_swiglu",
                                                      "block_use_xavier_init",
                                                      "block_mlp_init_scale",
                                                      "block_out_init_scale",
                                                      "conv_dim",
                                                      "conv_dim_out",
                                                      "conv_use_xavier_init",
                                                      "num_heads",
                                                      "use_pos_enc"});

constexpr std::array kLfm2MoeKeys =
    std::to_array<Keys>({"norm_eps", "conv_bias", "conv_L_cache", "tie_embedding", "num_experts_per_tok",
                         "num_dense_layers", "use_expert_bias", "routed_scaling_factor", "norm_topk_prob"});
constexpr TensorNames kLfm2Names{.attention_norm = "operator_norm",
                                 .mlp_norm = "ffn_norm",
                                 .o = "out_proj",
                                 .mlp = "feed_forward.",
                                 .gate = "w1",
                                 .up = "w3",
                                 .down = "w2",
                                 .final_norm = "embedding_norm"};

constexpr std::array kFamilies = {
    FamilyTraits{.family = ModelFamily::kLlama,
                 .title = "Llama",
                 .models = "Llama 1 to 3.3, TinyLlama, SmolLM2, and what is built like them",
                 .model_type = "llama",
                 .architecture = "LlamaForCausalLM",
                 .special = "-",
                 .attention_bias = AttentionBias::kQkvoByKey,
                 .reads_mlp_bias = true},
    FamilyTraits{.family = ModelFamily::kMistral,
                 .title = "Mistral",
                 .models = "Mistral 7B to Large, Mistral Small 3",
                 .model_type = "mistral",
                 .architecture = "MistralForCausalLM",
                 .special = "windows",
                 .windows = Windows::kEveryLayer,
                 .defaults = {.window = 4096}},
    FamilyTraits{.family = ModelFamily::kQwen2,
                 .title = "Qwen2",
                 .models = "Qwen2, Qwen2.5, QwQ",
                 .model_type = "qwen2",
                 .architecture = "Qwen2ForCausalLM",
                 .special = "biases of q, k and v; windows",
                 .attention_bias = AttentionBias::kQkv,
                 .windows = Windows::kUpperLayers,
                 .keys = kQwenKeys,
                 .defaults = {.window = 4096}},
    FamilyTraits{.family = ModelFamily::kQwen3,
                 .title = "Qwen3",
                 .models = "Qwen3; the text model of Qwen3-VL",
                 .model_type = "qwen3",
                 .architecture = "Qwen3ForCausalLM",
                 .special = "norms of every q and k head; windows",
                 .qk_norm = QkNorm::kHead,
                 .attention_bias = AttentionBias::kQkvoByKey,
                 .windows = Windows::kUpperLayers,
                 .keys = kQwenKeys,
                 .defaults = {.head_dim = 128, .window = 4096},
                 .other_type = "qwen3_vl_text"},
    FamilyTraits{
        .family = ModelFamily::kGemma2,
        .title = "Gemma 2",
        .models = "Gemma 2",
        .model_type = "gemma2",
        .architecture = "Gemma2ForCausalLM",
        .special = "norms of 1 + weight, gelu, capped scores and logits, a window in every other layer",
        .norm_place = NormPlace::kAround,
        .norm_adds_one = true,
        .attention_bias = AttentionBias::kQkvoByKey,
        .activation_key = "hidden_activation",
        .activation = Activation::kGeluTanh,
        .embedding_times_root = true,
        .windows = Windows::kEveryOther,
        .scales = kGemma2Scales,
        .keys = kGemma2Keys,
        .defaults = {.head_dim = 256, .window = 4096, .tied = true}},
    FamilyTraits{.family = ModelFamily::kGemma3,
                 .title = "Gemma 3",
                 .models = "Gemma 3; its image tower is not read",
                 .model_type = "gemma3_text",
                 .architecture = "Gemma3ForCausalLM",
                 .special = "as Gemma 2 without caps; norms of q and k; two rotations",
                 .norm_place = NormPlace::kAround,
                 .norm_adds_one = true,
                 .qk_norm = QkNorm::kHead,
                 .attention_bias = AttentionBias::kQkvoByKey,
                 .activation_key = "hidden_activation",
                 .activation = Activation::kGeluTanh,
                 .embedding_times_root = true,
                 .windows = Windows::kByPattern,
                 .scales = kGemma3Scales,
                 .keys = kGemma3Keys,
                 .defaults = {.head_dim = 256, .rope_theta = 1e6, .window = 4096, .tied = true}},
    FamilyTraits{.family = ModelFamily::kPhi3,
                 .title = "Phi-3",
                 .models = "Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
                 .model_type = "phi3",
                 .architecture = "Phi3ForCausalLM",
                 .special = "fused projections, partly rotated heads, windows",
                 .fused_projections = true,
                 .partial_rotation = true,
                 .long_rope_only = true,
                 .windows = Windows::kEveryLayer,
                 .defaults = {.norm_epsilon = 1e-5}},
    FamilyTraits{.family = ModelFamily::kOlmo2,
                 .title = "OLMo 2",
                 .models = "OLMo 2",
                 .model_type = "olmo2",
                 .architecture = "Olmo2ForCausalLM",
                 .special = "norms behind attention and MLP, one norm over all of q and one over all of k",
                 .norm_place = NormPlace::kAfter,
                 .qk_norm = QkNorm::kWhole,
                 .attention_bias = AttentionBias::kQkvoByKey,
                 .defaults = {.norm_epsilon = 1e-5}},
    FamilyTraits{.family = ModelFamily::kGranite,
                 .title = "Granite 3",
                 .models = "Granite 3.0 to 3.3, dense",
                 .model_type = "granite",
                 .architecture = "GraniteForCausalLM",
                 .special = "factors on embeddings, residuals, scores and logits",
                 .attention_bias = AttentionBias::kQkvoByKey,
                 .reads_mlp_bias = true,
                 .scales = kGraniteScales},
    FamilyTraits{.family = ModelFamily::kSmolLm3,
                 .title = "SmolLM3",
                 .models = "SmolLM3",
                 .model_type = "smollm3",
                 .architecture = "SmolLM3ForCausalLM",
                 .special = "layers without rotation",
                 .attention_bias = AttentionBias::kQkvoByKey,
                 .reads_mlp_bias = true,
                 .rotates_by_layer = true,
                 .windows = Windows::kWithoutRope,
                 .keys = kSmolLm3Keys,
                 .defaults = {.rope_theta = 2e6, .tied = true}},
    FamilyTraits{.family = ModelFamily::kMixtral,
                 .title = "Mixtral",
                 .models = "Mixtral 8x7B, 8x22B",
                 .model_type = "mixtral",
                 .architecture = "MixtralForCausalLM",
                 .special = "a mixture of experts; windows",
                 .windows = Windows::kEveryLayer,
                 .experts = &kMixtralExperts,
                 .keys = kMixtralKeys,
                 .defaults = {.rope_theta = 1e6, .norm_epsilon = 1e-5}},
    FamilyTraits{.family = ModelFamily::kQwen2Moe,
                 .title = "Qwen2-MoE",
                 .models = "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B",
                 .model_type = "qwen2_moe",
                 .architecture = "Qwen2MoeForCausalLM",
                 .special = "a mixture of experts beside a shared one; biases of q, k and v",
                 .attention_bias = AttentionBias::kQkvByKey,
                 .windows = Windows::kOffOnly,
                 .experts = &kQwen2Experts,
                 .keys = kQwen2MoeKeys},
    FamilyTraits{.family = ModelFamily::kQwen3Moe,
                 .title = "Qwen3-MoE",
                 .models = "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder",
                 .model_type = "qwen3_moe",
                 .architecture = "Qwen3MoeForCausalLM",
                 .special = "a mixture of experts; norms of every q and k head",
                 .qk_norm = QkNorm::kHead,
                 .attention_bias = AttentionBias::kQkvoByKey,
                 .windows = Windows::kOffOnly,
                 .experts = &kQwen3Experts,
                 .keys = kQwen3MoeKeys},
    FamilyTraits{.family = ModelFamily::kGptOss,
                 .title = "gpt-oss",
                 .models = "gpt-oss-20b, gpt-oss-120b",
                 .model_type = "gpt_oss",
                 .architecture = "GptOssForCausalLM",
                 .special = "experts with biases in MXFP4; attention sinks; a window in every other layer",
                 .attention_bias = AttentionBias::kQkvoByKey,
                 .attention_sinks = true,
                 .activation = Activation::kClampedSwish,
                 .rotation_must_be_given = true,
                 .windows = Windows::kEveryOther,
                 .scales = kGptOssScales,
                 .experts = &kGptOssExperts,
                 .keys = kGptOssKeys,
                 .defaults = {.head_dim = 64,
                              .rope_theta = 150000,
                              .norm_epsilon = 1e-5,
                              .window = 128,
                              .attention_bias = true}},
    FamilyTraits{.family = ModelFamily::kDeepseekV2,
                 .title = "DeepSeek-V2",
                 .models = "DeepSeek-V2, V2.5, V2-Lite, Coder-V2",
                 .model_type = "deepseek_v2",
                 .architecture = "DeepseekV2ForCausalLM",
                 .special = "latent attention; experts in groups beside shared ones",
                 .reads_mlp_bias = false,
                 .latent_attention = true,
                 .experts = &kDeepseekV2Experts,
                 .keys = kDeepseekV2Keys},
    FamilyTraits{.family = ModelFamily::kDeepseekV3,
                 .title = "DeepSeek-V3",
                 .models = "DeepSeek-V3 to V3.1, R1, Moonlight, Kimi K2",
                 .model_type = "deepseek_v3",
                 .architecture = "DeepseekV3ForCausalLM",
                 .special = "latent attention; experts in groups by corrected sigmoids",
                 .latent_attention = true,
                 .experts = &kDeepseekV3Experts,
                 .keys = kDeepseekV3Keys,
                 .other_type = "kimi_k2"},
    FamilyTraits{
        .family = ModelFamily::kOlmo3,
        .title = "OLMo 3",
        .models = "OLMo 3 7B and 32B",
        .model_type = "olmo3",
        .architecture = "Olmo3ForCausalLM",
        .special = "as OLMo 2 with a window in three of four layers, which have a rotation of their own",
        .norm_place = NormPlace::kAfter,
        .qk_norm = QkNorm::kWhole,
        .attention_bias = AttentionBias::kQkvoByKey,
        .windows = Windows::kByPattern,
        .defaults =
            {.rope_theta = 500000, .norm_epsilon = 1e-5, .window = 4096, .full_every = 4, .local_theta = 0}},
    FamilyTraits{.family = ModelFamily::kSeedOss,
                 .title = "Seed-OSS",
                 .models = "Seed-OSS-36B",
                 .model_type = "seed_oss",
                 .architecture = "SeedOssForCausalLM",
                 .special = "biases of q, k and v",
                 .attention_bias = AttentionBias::kByTwoKeys,
                 .reads_mlp_bias = true,
                 .keys = kSeedOssKeys,
                 .defaults = {.head_dim = 128, .attention_bias = true}},
    FamilyTraits{.family = ModelFamily::kGlm4Moe,
                 .title = "GLM-4.5",
                 .models = "GLM-4.5, GLM-4.5-Air, GLM-4.6, GLM-4.7",
                 .model_type = "glm4_moe",
                 .architecture = "Glm4MoeForCausalLM",
                 .special = "experts chosen by corrected sigmoids; partly rotated heads",
                 .qk_norm = QkNorm::kHead,
                 .qk_norm_by_key = true,
                 .attention_bias = AttentionBias::kByTwoKeys,
                 .partial_rotation = true,
                 .experts = &kGlm4MoeExperts,
                 .keys = kGlm4MoeKeys,
                 .defaults = {.norm_epsilon = 1e-5, .rotated_share = 0.5}},
    FamilyTraits{.family = ModelFamily::kMinimaxM2,
                 .title = "MiniMax-M2",
                 .models = "MiniMax-M2 to M2.5",
                 .model_type = "minimax_m2",
                 .architecture = "MiniMaxM2ForCausalLM",
                 .special = "experts chosen by corrected sigmoids; partly rotated heads; norms of q and k",
                 .qk_norm = QkNorm::kWhole,
                 .partial_rotation = true,
                 .experts = &kMinimaxM2Experts,
                 .keys = kMinimaxM2Keys,
                 .defaults = {.head_dim = 128, .rope_theta = 5e6}},
    FamilyTraits{.family = ModelFamily::kErnie45,
                 .title = "Ernie 4.5",
                 .models = "ERNIE-4.5-0.3B",
                 .model_type = "ernie4_5",
                 .architecture = "Ernie4_5ForCausalLM",
                 .special = "neighbouring dimensions of a head turn together",
                 .attention_bias = AttentionBias::kUseBias,
                 .rotates_neighbours = true,
                 .keys = kErnie45Keys,
                 .defaults = {.head_dim = 128, .rope_theta = 500000, .norm_epsilon = 1e-5, .tied = true},
                 .other_architecture = "Ernie4_5_ForCausalLM"},
    FamilyTraits{.family = ModelFamily::kErnie45Moe,
                 .title = "Ernie 4.5 MoE",
                 .models = "ERNIE-4.5-21B-A3B, ERNIE-4.5-300B-A47B",
                 .model_type = "ernie4_5_moe",
                 .architecture = "Ernie4_5_MoeForCausalLM",
                 .special = "as Ernie 4.5; experts by corrected shares and shared ones",
                 .rotates_neighbours = true,
                 .experts = &kErnie45MoeExperts,
                 .keys = kErnie45MoeKeys,
                 .defaults = {.rope_theta = 500000, .norm_epsilon = 1e-5, .tied = true}},
    FamilyTraits{.family = ModelFamily::kHunyuanDense,
                 .title = "Hunyuan dense",
                 .models = "Hunyuan-0.5B to 7B, Hunyuan-MT, HY-MT1.5",
                 .model_type = "hunyuan_v1_dense",
                 .architecture = "HunYuanDenseV1ForCausalLM",
                 .special = "norms of every q and k head behind the rotation",
                 .qk_norm = QkNorm::kHead,
                 .norms_rotated = true,
                 .q_norm = "query_layernorm",
                 .k_norm = "key_layernorm",
                 .attention_bias = AttentionBias::kQkvoByKey,
                 .has_ntk_alpha = true,
                 .keys = kHunyuanKeys,
                 .defaults = {.norm_epsilon = 1e-5}},
    FamilyTraits{
        .family = ModelFamily::kLfm2,
        .title = "LFM2",
        .models = "LFM2 and LFM2.5, 350M to 2.6B",
        .model_type = "lfm2",
        .architecture = "Lfm2ForCausalLM",
        .special = "a short convolution in place of attention in most layers; norms of every q and k head",
        .qk_norm = QkNorm::kHead,
        .q_norm = "q_layernorm",
        .k_norm = "k_layernorm",
        .names = kLfm2Names,
        .short_convolutions = true,
        .epsilon_key = "norm_eps",
        .keys = kLfm2Keys,
        .defaults = {.rope_theta = 1e6, .norm_epsilon = 1e-5, .tied = true}},
    FamilyTraits{.family = ModelFamily::kLfm2Moe,
                 .title = "LFM2-MoE",
                 .models = "LFM2-8B-A1B",
                 .model_type = "lfm2_moe",
                 .architecture = "Lfm2MoeForCausalLM",
                 .special = "as LFM2; experts chosen by corrected sigmoids",
                 .qk_norm = QkNorm::kHead,
                 .q_norm = "q_layernorm",
                 .k_norm = "k_layernorm",
                 .names = kLfm2Names,
                 .short_convolutions = true,
                 .epsilon_key = "norm_eps",
                 .experts = &kLfm2MoeExperts,
                 .keys = kLfm2MoeKeys,
                 .defaults = {.rope_theta = 1e6, .norm_epsilon = 1e-5, .tied = true}},
    FamilyTraits{.family = ModelFamily::kQwen3Next,
                 .title = "Qwen3-Next",
                 .models = "Qwen3-Next-80B-A3B, Qwen3-Coder-Next",
                 .model_type = "qwen3_next",
                 .architecture = "Qwen3NextForCausalLM",
                 .special =
                     "a gated delta net in place of attention in most layers; gated attention; a mixture "
                     "of experts beside a shared one",
                 .norm_adds_one = true,
                 .qk_norm = QkNorm::kHead,
                 .delta_nets = DeltaNets::kFused,
                 .attention_gate = true,
                 .partial_rotation = true,
                 .experts = &kQwen3NextExperts,
                 .keys = kQwen3NextKeys,
                 .defaults = {.head_dim = 256, .rotated_share = 0.25}},
    FamilyTraits{.family = ModelFamily::kQwen35,
                 .title = "Qwen3.5",
                 .models = "Qwen3.5 and Qwen3.6, 0.8B to 27B; their image tower is not read",
                 .model_type = "qwen3_5_text",
                 .architecture = "Qwen3_5ForCausalLM",
                 .special = "as Qwen3-Next without experts",
                 .norm_adds_one = true,
                 .qk_norm = QkNorm::kHead,
                 .delta_nets = DeltaNets::kSplit,
                 .attention_gate = true,
                 .partial_rotation = true,
                 .keys = kQwen35Keys,
                 .defaults = {.head_dim = 256, .rotated_share = 0.25}},
    FamilyTraits{.family = ModelFamily::kQwen35Moe,
                 .title = "Qwen3.5-MoE",
                 .models = "Qwen3.5-35B-A3B, Qwen3.5-122B-A10B, Qwen3.5-397B-A17B, Qwen3.6-35B-A3B",
                 .model_type = "qwen3_5_moe_text",
                 .architecture = "Qwen3_5MoeForCausalLM",
                 .special = "as Qwen3-Next",
                 .norm_adds_one = true,
                 .qk_norm = QkNorm::kHead,
                 .delta_nets = DeltaNets::kSplit,
                 .attention_gate = true,
                 .partial_rotation = true,
                 .experts = &kQwen35Experts,
                 .keys = kQwen35MoeKeys,
                 .defaults = {.head_dim = 256, .rotated_share = 0.25}},
    FamilyTraits{.family = ModelFamily::kGemma4,
                 .title = "Gemma 4",
                 .models = "Gemma 4 E2B, E4B, 26B-A4B and 31B; their image and audio towers are not read",
                 .model_type = "gemma4_text",
                 .architecture = "Gemma4ForCausalLM",
                 .special =
                     "norms of q, k and v; wider heads in layers without a window; keys and values that "
                     "layers share; an embedding for each layer; experts beside an MLP",
                 .norm_place = NormPlace::kAround,
                 .qk_norm = QkNorm::kHead,
                 .attention_bias = AttentionBias::kQkvoByKey,
                 .varied_layers = true,
                 .activation_key = "hidden_activation",
                 .activation = Activation::kGeluTanh,
                 .embedding_times_root = true,
                 .windows = Windows::kByPattern,
                 .scales = kGemma4Scales,
                 .experts = &kGemma4Experts,
                 .keys = kGemma4Keys,
                 .defaults = {.head_dim = 256, .rope_theta = 1e6, .window = 512, .tied = true}},
};

constexpr bool is_in_order() {
  for (size_t i = 0; i < kFamilies.size(); ++i)
    if (kFamilies[i].family != static_cast<ModelFamily>(i)) return false;
  return true;
}
static_assert(is_in_order());

template <class Name>
const FamilyTraits* find(Name name, std::string_view wanted) {
  for (const FamilyTraits& row : kFamilies)
    if (row.*name == wanted) return &row;
  return nullptr;
}

template <class Name>
std::string listed(Name name) {
  std::string out;
  for (size_t i = 0; i < kFamilies.size(); ++i) {
    if (i > 0) out += i + 1 == kFamilies.size() ? " and " : ", ";
    out += kFamilies[i].*name;
  }
  return out;
}

}  // namespace

std::span<const FamilyTraits> family_table() { return kFamilies; }
const FamilyTraits& traits_of(ModelFamily family) { return kFamilies[static_cast<size_t>(family)]; }
const FamilyTraits* find_architecture(std::string_view architecture) {
  for (const FamilyTraits& row : kFamilies)
    if (!row.other_architecture.empty() && row.other_architecture == architecture) return &row;
  return find(&FamilyTraits::architecture, architecture);
}
const FamilyTraits* find_model_type(std::string_view model_type) {
  for (const FamilyTraits& row : kFamilies)
    if (row.is_type(model_type)) return &row;
  return nullptr;
}
std::string supported_titles() { return listed(&FamilyTraits::title); }
std::string supported_architectures() { return listed(&FamilyTraits::architecture); }
std::string supported_model_types() { return listed(&FamilyTraits::model_type); }

std::string_view family_name(ModelFamily family) { return traits_of(family).model_type; }
std::string_view architecture_name(ModelFamily family) { return traits_of(family).architecture; }

}  // namespace outrider
