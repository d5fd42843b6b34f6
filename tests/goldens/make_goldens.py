#!/usr/bin/env python3
"""Writes tests/goldens/models: tiny models with random weights, and the logits Hugging Face computes for them.

    python3 -m venv goldvenv && goldvenv/bin/pip install torch transformers safetensors
    goldvenv/bin/python tests/goldens/make_goldens.py [output directory [name of a model, to make that one alone]...]

Every sub-directory is an ordinary Hugging Face model directory (config.json, generation_config.json, weights) plus
    golden.safetensors  input_ids.N  int32 [length]          for N = 0, 1, ...
                        logits.N     float32 [length, vocab]  eager attention, fp32 arithmetic, CPU
                        greedy_prompt, greedy  int32          a text and what greedy choices add to it, where there are any
    golden.json         versions that made it, and the largest |logit|
Weights are drawn far wider than for training, so that logits are not flat and a wrong attention, rotation, bias or
norm cannot hide; epsilon is large for the same reason. fp64 arithmetic differs from the goldens by at most 5e-5.
Sizes that are no multiples of 8 or 32 are there on purpose.
"""

import copy
import json
import shutil
import sys
from pathlib import Path

import safetensors
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config,
                          DeepseekV3ForCausalLM, Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM, Ernie4_5Config, Ernie4_5ForCausalLM, Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, Gemma4ForCausalLM, Gemma4TextConfig,
                          Glm4MoeConfig, Glm4MoeForCausalLM,
                          GptOssConfig, GptOssForCausalLM, GraniteConfig, GraniteForCausalLM, HunYuanDenseV1Config, HunYuanDenseV1ForCausalLM, Lfm2Config, Lfm2ForCausalLM, Lfm2MoeConfig, Lfm2MoeForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, MiniMaxM2Config, MiniMaxM2ForCausalLM, MixtralConfig, MixtralForCausalLM, Olmo2Config, Olmo2ForCausalLM, Olmo3Config, Olmo3ForCausalLM, Phi3Config,
                          Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM, Qwen3Config,
                          Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig,
                          Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM, SeedOssConfig, SeedOssForCausalLM, SmolLM3Config, SmolLM3ForCausalLM)

LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 256}

SMALL = dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, intermediate_size=100,
             vocab_size=256, max_position_embeddings=128, rms_norm_eps=1e-3, bos_token_id=1, eos_token_id=2,
             pad_token_id=None, tie_word_embeddings=False)

# name -> (model class, config class, sizes, rotation)
MODELS = {
    "llama2": (LlamaForCausalLM, LlamaConfig, dict(SMALL, intermediate_size=172, rms_norm_eps=1e-5), {"rope_theta": 10000.0}),
    # Wavelengths 6, 167, 4e3, 1e5 of head_dim 8 against 64 and 256: kept, blended, slowed, slowed.
    "llama3.1": (LlamaForCausalLM, LlamaConfig,
                 dict(SMALL, hidden_size=64, num_attention_heads=8, num_key_value_heads=2, vocab_size=262,
                      max_position_embeddings=2048, eos_token_id=[257, 259]),
                 {"rope_theta": 500000.0, **LLAMA3_ROPE}),
    "llama3.2": (LlamaForCausalLM, LlamaConfig,
                 dict(SMALL, num_attention_heads=8, num_key_value_heads=2, head_dim=8, vocab_size=320,
                      max_position_embeddings=2048, tie_word_embeddings=True),
                 {"rope_theta": 500000.0, **LLAMA3_ROPE, "factor": 32.0}),
    "llama-bias": (LlamaForCausalLM, LlamaConfig,
                   dict(SMALL, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
                        intermediate_size=52, attention_bias=True, mlp_bias=True),
                   {"rope_theta": 10000.0}),
    "mistral": (MistralForCausalLM, MistralConfig,
                dict(SMALL, num_attention_heads=8, num_key_value_heads=2, head_dim=12, vocab_size=300,
                     intermediate_size=84, sliding_window=None),
                {"rope_theta": 1000000.0}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config,
              dict(SMALL, hidden_size=112, num_attention_heads=14, num_key_value_heads=2, vocab_size=280,
                   intermediate_size=60, tie_word_embeddings=True),
              {"rope_theta": 1000000.0}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config,
              dict(SMALL, hidden_size=64, num_attention_heads=6, num_key_value_heads=2, head_dim=16, vocab_size=302,
                   intermediate_size=108, tie_word_embeddings=True),
              {"rope_theta": 1000000.0}),
}

# Families and rotations beyond these, smaller still, with a greedy text each. Windows are shorter than the inputs.
TINY = dict(SMALL, hidden_size=32, vocab_size=120, intermediate_size=52)
PLAIN = {"rope_theta": 10000.0}
LATENT = dict(TINY, hidden_size=36, num_attention_heads=6, num_key_value_heads=6, q_lora_rank=20, kv_lora_rank=18, qk_nope_head_dim=10,
              qk_rope_head_dim=6, v_head_dim=12, moe_intermediate_size=20, first_k_dense_replace=1)
GEMMA4_ROPE = {"full_attention": {"rope_theta": 100000.0, "rope_type": "proportional", "partial_rotary_factor": 0.5},
               "sliding_attention": {"rope_theta": 1000.0, "rope_type": "default"}}
NEWER_MODELS = {
    # Both caps are within reach of scores and logits.
    "gemma2": (Gemma2ForCausalLM, Gemma2Config,
               dict(TINY, num_hidden_layers=3, hidden_size=48, num_attention_heads=6, num_key_value_heads=3, head_dim=12,
                    sliding_window=9, query_pre_attn_scalar=20, attn_logit_softcapping=4.0,
                    final_logit_softcapping=12.0, tie_word_embeddings=True), PLAIN),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig,
               dict(TINY, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=10,
                    sliding_window=7, sliding_window_pattern=2, query_pre_attn_scalar=14, tie_word_embeddings=True),
               {"full_attention": {"rope_theta": 100000.0, "rope_type": "linear", "factor": 8.0},
                "sliding_attention": {"rope_theta": 1000.0, "rope_type": "default"}}),
    "phi3": (Phi3ForCausalLM, Phi3Config,
             dict(TINY, hidden_size=48, num_attention_heads=4, num_key_value_heads=2, sliding_window=11,
                  max_position_embeddings=256, original_max_position_embeddings=128),
             {"rope_theta": 10000.0, "rope_type": "longrope", "partial_rotary_factor": 0.5,
              "short_factor": [1.0, 1.4, 3.0], "long_factor": [1.0, 4.0, 9.0]}),
    "olmo2": (Olmo2ForCausalLM, Olmo2Config,
              dict(TINY, hidden_size=48, num_attention_heads=6, num_key_value_heads=3, rms_norm_eps=1e-2), PLAIN),
    "granite": (GraniteForCausalLM, GraniteConfig,
                dict(TINY, num_key_value_heads=2, embedding_multiplier=3.0, residual_multiplier=0.4,
                     attention_multiplier=0.21, logits_scaling=1.7, tie_word_embeddings=True), PLAIN),
    "smollm3": (SmolLM3ForCausalLM, SmolLM3Config,
                dict(TINY, num_hidden_layers=4, num_key_value_heads=2, no_rope_layers=[1, 0, 1, 0],
                     use_sliding_window=True, sliding_window=8, tie_word_embeddings=True), PLAIN),
    "mistral-window": (MistralForCausalLM, MistralConfig, dict(TINY, num_key_value_heads=2, sliding_window=10), PLAIN),
    "qwen3-window": (Qwen3ForCausalLM, Qwen3Config,
                     dict(TINY, num_hidden_layers=3, num_key_value_heads=1, head_dim=12, use_sliding_window=True,
                          sliding_window=13, max_window_layers=1), PLAIN),
    "llama-linear": (LlamaForCausalLM, LlamaConfig, TINY, {**PLAIN, "rope_type": "linear", "factor": 2.5}),
    "llama-dynamic": (LlamaForCausalLM, LlamaConfig, TINY, {**PLAIN, "rope_type": "dynamic", "factor": 4.0}),
    # Pairs of head_dim 16 against 32: some kept, some blended, some slowed.
    "qwen2-yarn": (Qwen2ForCausalLM, Qwen2Config, dict(TINY, num_attention_heads=2, num_key_value_heads=1),
                   {**PLAIN, "rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0,
                    "original_max_position_embeddings": 32}),
    "mixtral": (MixtralForCausalLM, MixtralConfig,
                dict(TINY, num_key_value_heads=2, num_local_experts=5, num_experts_per_tok=2, intermediate_size=68), PLAIN),
    "qwen2-moe": (Qwen2MoeForCausalLM, Qwen2MoeConfig,
                  dict(TINY, num_hidden_layers=3, num_key_value_heads=2, num_experts=6, num_experts_per_tok=3,
                       moe_intermediate_size=44, shared_expert_intermediate_size=76, mlp_only_layers=[1]), PLAIN),
    "qwen3-moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig,
                  dict(TINY, num_key_value_heads=2, num_experts=9, num_experts_per_tok=4, moe_intermediate_size=36,
                       norm_topk_prob=True), PLAIN),
    # Gates and ups are within reach of the limit. Experts in one tensor, as the dequantised gpt-oss has them.
    "gpt-oss": (GptOssForCausalLM, GptOssConfig,
                dict(TINY, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=10,
                     intermediate_size=36, num_local_experts=5, num_experts_per_tok=2, sliding_window=9,
                     swiglu_alpha=1.4, swiglu_limit=1.5),
                {"rope_theta": 15000.0, "rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0,
                 "truncate": False, "original_max_position_embeddings": 32}),
    # No size of a head is a multiple of 16, and some ranks of eight have no head.
    "deepseek-v2": (DeepseekV2ForCausalLM, DeepseekV2Config,
                    dict(LATENT, n_routed_experts=6, n_group=3, topk_group=2, topk_method="group_limited_greedy",
                         num_experts_per_tok=3, n_shared_experts=2, routed_scaling_factor=1.3), PLAIN),
    "deepseek-v2-lite": (DeepseekV2ForCausalLM, DeepseekV2Config,
                         dict(LATENT, q_lora_rank=None, n_routed_experts=5, num_experts_per_tok=2, n_shared_experts=1,
                              topk_method="greedy"),
                         {**PLAIN, "rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0,
                          "mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 32}),
    "deepseek-v3": (DeepseekV3ForCausalLM, DeepseekV3Config,
                    dict(LATENT, n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3, n_shared_experts=1,
                         routed_scaling_factor=2.5, norm_topk_prob=True),
                    {**PLAIN, "rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 0.8,
                     "mscale_all_dim": 1.2, "original_max_position_embeddings": 32}),
    "olmo3": (Olmo3ForCausalLM, Olmo3Config,
              dict(TINY, num_hidden_layers=4, num_key_value_heads=2, sliding_window=7, rms_norm_eps=1e-2),
              {"full_attention": {"rope_theta": 5000.0, "rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0,
                                  "original_max_position_embeddings": 32},
               "sliding_attention": {"rope_theta": 5000.0, "rope_type": "default"}}),
    "seed-oss": (SeedOssForCausalLM, SeedOssConfig,
                 dict(TINY, num_key_value_heads=2, head_dim=12, attention_bias=True, attention_out_bias=False), PLAIN),
    "glm4-moe": (Glm4MoeForCausalLM, Glm4MoeConfig,
                 dict(TINY, num_key_value_heads=2, head_dim=12, attention_bias=True, use_qk_norm=True, moe_intermediate_size=20,
                      n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1, n_group=1, topk_group=1,
                      routed_scaling_factor=2.5, norm_topk_prob=True, first_k_dense_replace=1, num_nextn_predict_layers=0),
                 {**PLAIN, "partial_rotary_factor": 0.5}),
    "minimax-m2": (MiniMaxM2ForCausalLM, MiniMaxM2Config,
                   dict(TINY, num_hidden_layers=1, num_key_value_heads=2, head_dim=12, intermediate_size=20, num_local_experts=7,
                        num_experts_per_tok=3),
                   {**PLAIN, "partial_rotary_factor": 0.5}),
    "ernie45": (Ernie4_5ForCausalLM, Ernie4_5Config, dict(TINY, num_key_value_heads=2, head_dim=12, use_bias=True), PLAIN),
    # The first and the last layer have no experts. Corrections are as large as shares.
    "ernie45-moe": (Ernie4_5_MoeForCausalLM, Ernie4_5_MoeConfig,
                     dict(TINY, num_hidden_layers=4, num_key_value_heads=2, moe_num_experts=7, moe_k=3, moe_intermediate_size=20,
                          moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_end_index=2, tie_word_embeddings=True), PLAIN),
    "hunyuan": (HunYuanDenseV1ForCausalLM, HunYuanDenseV1Config, dict(TINY, num_key_value_heads=2, head_dim=10),
                {**PLAIN, "rope_type": "dynamic", "alpha": 50.0, "factor": 1.0}),
    # The class makes 60 columns of the MLP of 84. There are two units of channels, so some ranks have none.
    "lfm2": (Lfm2ForCausalLM, Lfm2Config,
             dict({k: v for k, v in TINY.items() if k != "rms_norm_eps"}, num_hidden_layers=4, hidden_size=48, num_attention_heads=4,
                  num_key_value_heads=2, intermediate_size=84, block_multiple_of=12, norm_eps=1e-3, conv_L_cache=3,
                  layer_types=["conv", "full_attention", "conv", "conv"], tie_word_embeddings=True), PLAIN),
    # The first layer has no experts. Corrections are as large as scores.
    "lfm2-moe": (Lfm2MoeForCausalLM, Lfm2MoeConfig,
                 dict({k: v for k, v in TINY.items() if k != "rms_norm_eps"}, num_hidden_layers=3, hidden_size=40, num_attention_heads=4,
                      num_key_value_heads=2, moe_intermediate_size=20, num_dense_layers=1, num_experts=7, num_experts_per_tok=3,
                      routed_scaling_factor=1.5, norm_eps=1e-3, layer_types=["conv", "full_attention", "conv"], tie_word_embeddings=True),
                 PLAIN),
    # Three key heads, so some ranks of eight have none. No size of a head is a multiple of 16. The last layer has no experts.
    "qwen3-next": (Qwen3NextForCausalLM, Qwen3NextConfig,
                   dict(TINY, num_hidden_layers=3, num_key_value_heads=2, head_dim=16, linear_num_key_heads=3,
                        linear_num_value_heads=6, linear_key_head_dim=12, linear_value_head_dim=20, linear_conv_kernel_dim=4,
                        layer_types=["linear_attention", "full_attention", "linear_attention"], num_experts=5,
                        num_experts_per_tok=2, moe_intermediate_size=20, shared_expert_intermediate_size=28,
                        mlp_only_layers=[2]),
                   {**PLAIN, "partial_rotary_factor": 0.25}),
    "qwen3.5": (Qwen3_5ForCausalLM, Qwen3_5TextConfig,
                dict(TINY, num_hidden_layers=4, num_key_value_heads=1, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=6,
                     linear_key_head_dim=10, linear_value_head_dim=18, linear_conv_kernel_dim=4, tie_word_embeddings=True),
                {**PLAIN, "partial_rotary_factor": 0.25, "mrope_section": [1, 1, 0], "mrope_interleaved": True}),
    "qwen3.5-moe": (Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig,
                    dict({k: v for k, v in TINY.items() if k != "intermediate_size"}, num_hidden_layers=3, num_key_value_heads=2,
                         head_dim=12, linear_num_key_heads=4, linear_num_value_heads=4, linear_key_head_dim=8,
                         linear_value_head_dim=8, linear_conv_kernel_dim=3,
                         layer_types=["linear_attention", "linear_attention", "full_attention"], num_experts=5,
                         num_experts_per_tok=2, moe_intermediate_size=20, shared_expert_intermediate_size=28),
                    {**PLAIN, "partial_rotary_factor": 0.5}),
    # The form of E2B: an embedding for each layer; the last two layers read the keys of earlier ones and have wider MLPs.
    "gemma4": (Gemma4ForCausalLM, Gemma4TextConfig,
               dict(TINY, num_hidden_layers=5, num_key_value_heads=2, head_dim=10, global_head_dim=12, sliding_window=7,
                    layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
                    num_kv_shared_layers=2, use_double_wide_mlp=True, hidden_size_per_layer_input=6, vocab_size_per_layer_input=120,
                    final_logit_softcapping=12.0, tie_word_embeddings=True), GEMMA4_ROPE),
    # The form of 31B: values are what keys are made of, and fewer KV heads, in layers that see all.
    "gemma4-large": (Gemma4ForCausalLM, Gemma4TextConfig,
                     dict(TINY, num_hidden_layers=3, num_key_value_heads=4, head_dim=10, global_head_dim=20,
                          num_global_key_value_heads=2, attention_k_eq_v=True, sliding_window=9,
                          layer_types=["sliding_attention", "full_attention", "full_attention"],
                          hidden_size_per_layer_input=0, final_logit_softcapping=12.0,
                          use_bidirectional_attention="vision", tie_word_embeddings=True), GEMMA4_ROPE),
    # The form of 26B-A4B: as that of 31B, with experts beside the MLP.
    "gemma4-moe": (Gemma4ForCausalLM, Gemma4TextConfig,
                   dict(TINY, num_hidden_layers=3, num_key_value_heads=2, head_dim=10, global_head_dim=20,
                        num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=9,
                        layer_types=["sliding_attention", "full_attention", "full_attention"],
                        hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=7, top_k_experts=3,
                        moe_intermediate_size=20, final_logit_softcapping=12.0,
                        use_bidirectional_attention="vision", tie_word_embeddings=True), GEMMA4_ROPE),
}
NEW_CONFIG = {"gemma3", "qwen3-moe", "deepseek-v2", "olmo3", "qwen3.5", "qwen3.5-moe", "gemma4", "gemma4-large", "gemma4-moe"}  # config.json of transformers 5; the others as older versions wrote it
DELTA_NETS = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}
STACKED = {"qwen3.5-moe"}  # experts in two tensors a layer, as the published files have them
GREEDY_STEPS = 24
COPY_OF = "qwen3"  # also stored as bf16 and fp16
SHARD_OF = "llama-bias"  # also stored in two files with an index, and with a config.json of transformers 5
SEQUENCE_LENGTHS = [1, 2, 40, 17]


def random_weights(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.named_parameters()):
        noise = torch.randn(tensor.shape, generator=generator)
        if "norm" in name:  # classes of Gemma and Qwen3-Next add the 1 themselves
            adds_one = model.config.model_type in ("gemma2", "gemma3_text") or (
                model.config.model_type in DELTA_NETS and not name.endswith("linear_attn.norm.weight"))
            tensor.data = 0.3 * noise + (0.0 if adds_one else 1.0)
        elif name.endswith("e_score_correction_bias"):
            tensor.data = 0.2 * noise
        elif name.endswith("bias"):
            tensor.data = 0.3 * noise
        elif name.endswith(("router.scale", "per_expert_scale")):
            tensor.data = 1 + 0.3 * noise
        elif name.endswith("sinks"):
            tensor.data = noise
        elif "embed_tokens" in name or "lm_head" in name:
            tensor.data = 0.5 * noise
        elif "experts" in name and "gpt_oss" in model.config.model_type:  # [experts, inputs, outputs]
            tensor.data = noise * (1.5 / tensor.shape[1] ** 0.5)
        else:  # keeps activations of order one, and attention scores wide enough to matter
            tensor.data = noise * (1.5 / tensor.shape[-1] ** 0.5)
    for name, buffer in sorted(model.named_buffers()):
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
        if name.endswith("layer_scalar"):
            buffer.copy_(1 + 0.3 * torch.randn(buffer.shape, generator=generator))


def build(name, seed):
    model_class, config_class, sizes, rope = {**MODELS, **NEWER_MODELS}[name]
    config = config_class(**sizes, rope_parameters=copy.deepcopy(rope), attn_implementation="eager")
    torch.manual_seed(seed)
    model = model_class(config).eval().float()
    random_weights(model, seed)
    model.tie_weights()
    return model


def downgrade_config(path, dtype_name):
    """config.json as the published models have it: transformers before 5 wrote rope_theta and rope_scaling."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    config["rope_scaling"] = rope if rope.get("rope_type", "default") != "default" else None
    if "kv_lora_rank" in config:  # what the class makes of other keys
        config.pop("head_dim", None)
        config.pop("qk_head_dim", None)
    elif (config.get("head_dim") or 0) * config["num_attention_heads"] == config["hidden_size"]:
        del config["head_dim"]  # Llama 2 and Qwen2 files leave it to the reader
    config["torch_dtype"] = dtype_name
    config.pop("dtype", None)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def publish_gemma4_config(path):
    """config.json as the published models have it; transformers writes the heads of each layer."""
    config = json.loads(path.read_text())
    heads = next(iter(config.pop("per_layer_config").values()))
    config["global_head_dim"] = heads["head_dim"]
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def greedy_text(model, ids):
    """What the largest logits say, and by how much the closest choice was decided."""
    text, margin = [], float("inf")
    for _ in range(GREEDY_STEPS):
        best = model(torch.cat([ids, torch.tensor([text], dtype=ids.dtype)], dim=1)).logits[0, -1].topk(2)
        margin = min(margin, (best.values[0] - best.values[1]).item())
        text.append(best.indices[0].item())
    return text, margin


def write_golden(model, directory, seed, greedy):
    generator = torch.Generator().manual_seed(1000 + seed)
    tensors, largest = {}, 0.0
    with torch.no_grad():
        for n, length in enumerate(SEQUENCE_LENGTHS):
            ids = torch.randint(0, model.config.vocab_size, (1, length), generator=generator)
            logits = model(ids).logits[0].contiguous()
            assert logits.dtype == torch.float32 and torch.isfinite(logits).all()
            largest = max(largest, logits.abs().max().item())
            tensors[f"input_ids.{n}"] = ids[0].to(torch.int32)
            tensors[f"logits.{n}"] = logits
        if greedy:
            margin = 0
            while margin < 1e-2:  # no choice is left to rounding
                prompt = torch.randint(0, model.config.vocab_size, (1, 17), generator=generator)
                text, margin = greedy_text(model, prompt)
            tensors["greedy_prompt"] = prompt[0].to(torch.int32)
            tensors["greedy"] = torch.tensor(text, dtype=torch.int32)
    save_file(tensors, directory / "golden.safetensors")
    note = {"torch": torch.__version__, "transformers": transformers.__version__,
            "safetensors": safetensors.__version__, "seed": seed, "sequence_lengths": SEQUENCE_LENGTHS,
            "largest_logit": largest, "attention": "eager", "arithmetic": "float32"}
    (directory / "golden.json").write_text(json.dumps(note, indent=2) + "\n")
    return largest


def stack_experts(path):
    tensors = load_file(path)
    for name in sorted(name for name in tensors if name.endswith("experts.0.gate_proj.weight")):
        block = name.removesuffix("0.gate_proj.weight")
        count = sum(key.startswith(block) and key.endswith("up_proj.weight") for key in tensors)
        take = lambda part: [tensors.pop(f"{block}{e}.{part}_proj.weight") for e in range(count)]
        tensors[block + "gate_up_proj"] = torch.cat([torch.stack(take("gate")), torch.stack(take("up"))], dim=1)
        tensors[block + "down_proj"] = torch.stack(take("down"))
    save_file(tensors, path, metadata={"format": "pt"})


def write(root, name, source, seed, dtype=torch.float32, shard_size="1GB", new_config=False, greedy=False):
    directory = root / name
    directory.mkdir(parents=True)
    model = build(source, seed)
    model.to(dtype).save_pretrained(directory, max_shard_size=shard_size)
    if name in STACKED:
        stack_experts(directory / "model.safetensors")
    if name == "gemma4":
        publish_gemma4_config(directory / "config.json")
    if not new_config:
        downgrade_config(directory / "config.json", str(dtype).removeprefix("torch."))
    (directory / "generation_config.json").write_text(json.dumps(
        {"bos_token_id": model.config.bos_token_id, "eos_token_id": [2, 5]}, indent=2) + "\n")
    # Read back: the golden belongs to what config.json says and to the (rounded) numbers in the file.
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    largest = write_golden(model, directory, seed, greedy)
    for file in directory.iterdir():
        file.chmod(0o644)
    parameters = sum(p.numel() for p in model.parameters())
    size = sum(f.stat().st_size for f in directory.iterdir())
    print(f"{name:14} {parameters:7} parameters {size:8} bytes  largest |logit| {largest:.2f}")


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "models"
    only = sys.argv[2:]
    for name in only:
        shutil.rmtree(root / name, ignore_errors=True)
    if not only:
        shutil.rmtree(root, ignore_errors=True)
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for seed, name in enumerate(MODELS):
        if not only or name in only:
            write(root, name, name, seed)
    for seed, name in enumerate(NEWER_MODELS, start=100):
        if not only or name in only:
            write(root, name, name, seed, new_config=name in NEW_CONFIG, greedy=True)
    if only:
        return
    copy_seed = list(MODELS).index(COPY_OF)
    write(root, f"{COPY_OF}-bf16", COPY_OF, copy_seed, torch.bfloat16)
    write(root, f"{COPY_OF}-fp16", COPY_OF, copy_seed, torch.float16)
    shard_seed = list(MODELS).index(SHARD_OF)
    write(root, f"{SHARD_OF}-sharded", SHARD_OF, shard_seed, shard_size="160KB", new_config=True)
    print(sum(f.stat().st_size for f in root.rglob("*") if f.is_file()), "bytes in all")


if __name__ == "__main__":
    main()
