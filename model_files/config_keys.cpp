#include "model_files/config_keys.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "base/json_text.h"
#include "model_files/family.h"

namespace outrider {
namespace {

using nlohmann::json;

// Read by model_config.cpp, which refuses the values it does not support.
constexpr std::array kRead = std::to_array<std::string_view>({
    "architectures",
    "attention_bias",
    "bos_token_id",
    "draft_vocab_size",
    "dtype",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "mlp_bias",
    "model_type",
    "moe_intermediate_size",
    "n_routed_experts",
    "num_attention_heads",
    "num_experts",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_local_experts",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "quantization_config",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "torch_dtype",
    "vocab_size",
});

// Where a file comes from, how the model was trained, which tokens are special to a tokenizer, what a program
// that loads it should do by default, and which text it should write: none of it changes a logit here.
constexpr std::array kHarmless = std::to_array<std::string_view>({
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_flash_attn_2_enabled",
    "_from_model_config",
    "_model_name_or_path",  // of models that transformers read from GGUF
    "_name_or_path",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_implementation",
    "attn_pdrop",
    "auto_map",
    "cache_implementation",  // of transformers: where its keys and values lie
    "chunk_size_feed_forward",
    "classifier_dropout",
    "cls_token_id",
    "custom_pipelines",
    "embd_pdrop",
    "experts_implementation",
    "finetuning_task",
    "gradient_checkpointing",
    "hidden_dropout",
    "hidden_dropout_prob",
    "id2label",
    "ignored_index",
    "initializer_range",
    "is_decoder",
    "is_llama_config",  // SmolLM2
    "keys_to_ignore_at_inference",
    "label2id",
    "language",
    "mask_token_id",
    "max_seq_len",
    "max_sequence_length",
    "max_window_layers",  // counts only with use_sliding_window
    "model_max_length",
    "name_or_path",
    "num_labels",
    "mtp_num_hidden_layers",     // the same of Qwen
    "num_nextn_predict_layers",  // further layers, for drafts; this one's logits are the same
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",  // the same sums in slices
    "problem_type",
    "resid_pdrop",
    "return_dict",
    "router_aux_loss_coef",
    "router_jitter_noise",  // in training only
    "sep_token_id",
    "seq_length",
    "task_specific_params",
    "tf_legacy_loss",
    "tokenizer_class",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    // Defaults of text generation, which older versions of transformers kept here.
    "assistant_confidence_threshold",
    "bad_words_ids",
    "begin_suppress_tokens",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_p",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "prefix",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
});

// Known to change what a model computes, in a way that is not supported here; with this value it does not.
// Null: no value is known that does not.
struct NeutralKey {
  std::string_view key;
  json neutral;
};
const std::vector<NeutralKey>& neutral_keys() {
  static const std::vector<NeutralKey> keys{
      {"add_cross_attention", false},
      {"alibi", false},
      {"attention_multiplier", nullptr},
      {"attn_logit_softcapping", nullptr},
      {"attn_temperature_tuning", false},
      {"clip_qkv", nullptr},
      {"compression_ratio", 1},  // Ernie
      {"embedding_multiplier", 1},
      {"final_logit_softcapping", nullptr},
      {"full_attn_mod", 1},       // Phi-4-mini
      {"interpolate_factor", 1},  // Phi-4-mini
      {"is_causal", true},
      {"is_encoder_decoder", false},
      {"lm_head_bias", false},
      {"logit_scale", 1},  // Cohere
      {"logits_scaling", 1},
      {"mrope_section", nullptr},
      {"no_rope_layers", json::array()},
      {"norm_type", "rms"},  // Hunyuan
      {"per_layer_config", json::object()},
      {"position_embedding_xdrope", false},  // Hunyuan
      {"pruned_heads", json::object()},
      {"qkv_bias", false},
      {"query_pre_attn_scalar", nullptr},
      {"residual_multiplier", 1},
      {"rope_interleaved", false},  // SmolLM2
      {"shared_expert_intermediate_size", 0},
      {"tie_encoder_decoder", false},
      {"use_bidirectional_attention", false},
      {"use_cla", false},            // Hunyuan
      {"use_rotary_pos_emb", true},  // Hunyuan
      {"use_mrope", false},
      {"use_parallel_residual", false},
      {"use_qk_norm", false},
  };
  return keys;
}

bool listed(std::span<const std::string_view> keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

std::string shown(const json& value) { return json_text(value).substr(0, 100); }

bool reads(const FamilyTraits& traits, std::string_view key) {
  if (listed(traits.keys, key)) return true;
  for (const ScaleKey& scale : traits.scales)
    if (scale.key == key) return true;
  return false;
}

Status check_use_sliding_window(const JsonObject& config, const json& value, ModelFamily family) {
  if (value == false) return {};
  return config.refused("use_sliding_window", fmt::format("is {}, which {} does not read; remove it",
                                                          shown(value), architecture_name(family)));
}

Status check_key(const JsonObject& config, const std::string& key, const json& value, ModelFamily family) {
  if (listed(kRead, key) || listed(kHarmless, key) || reads(traits_of(family), key)) return {};
  // Files of Qwen3-MoE say what their class does anyway.
  if (key == "use_qk_norm" && traits_of(family).qk_norm != QkNorm::kNone)
    return value == true ? Status()
                         : config.refused(key, fmt::format("is {}, but {} norms q and k; remove it",
                                                           shown(value), architecture_name(family)));
  if (key == "use_sliding_window") return check_use_sliding_window(config, value, family);
  for (const NeutralKey& known : neutral_keys()) {
    if (known.key != key) continue;
    if (value == known.neutral) return {};
    return config.refused(key,
                          fmt::format("is {}; only {} is supported", shown(value), shown(known.neutral)));
  }
  return config.refused(
      key, fmt::format("is {}, which is not understood here and may change what the model computes; if it "
                       "does not, remove it or set it to null",
                       shown(value)));
}

}  // namespace

bool is_harmless_key(std::string_view key) { return listed(kHarmless, key); }

Status check_config_keys(const JsonObject& config, ModelFamily family,
                         std::span<const std::string_view> also) {
  for (const auto& [key, value] : config.members().items())
    if (!value.is_null() && !listed(also, key)) RETURN_IF_ERROR(check_key(config, key, value, family));
  return {};
}

}  // namespace outrider
