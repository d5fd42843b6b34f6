#!/usr/bin/env python3
"""Writes tests/goldens/models: tiny models with random weights, and the logits Hugging Face computes for them.

    python3 -m venv goldvenv && goldvenv/bin/pip install torch transformers safetensors
    goldvenv/bin/python tests/goldens/make_goldens.py [output directory]

Every sub-directory is an ordinary Hugging Face model directory (config.json, generation_config.json, weights) plus
    golden.safetensors  input_ids.N  int32 [length]          for N = 0, 1, ...
                        logits.N     float32 [length, vocab]  eager attention, fp32 arithmetic, CPU
    golden.json         versions that made it, and the largest |logit|
Weights are drawn far wider than for training, so that logits are not flat and a wrong attention, rotation, bias or
norm cannot hide; epsilon is large for the same reason. fp64 arithmetic differs from the goldens by at most 5e-5.
Sizes that are no multiples of 8 or 32 are there on purpose.
"""

import json
import shutil
import sys
from pathlib import Path

import safetensors
import torch
import transformers
from safetensors.torch import save_file
from transformers import (AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

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
COPY_OF = "qwen3"  # also stored as bf16 and fp16
SHARD_OF = "llama-bias"  # also stored in two files with an index, and with a config.json of transformers 5
SEQUENCE_LENGTHS = [1, 2, 40, 17]


def random_weights(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.named_parameters()):
        noise = torch.randn(tensor.shape, generator=generator)
        if "norm" in name:
            tensor.data = 1.0 + 0.3 * noise
        elif name.endswith("bias"):
            tensor.data = 0.3 * noise
        elif "embed_tokens" in name or "lm_head" in name:
            tensor.data = 0.5 * noise
        else:  # keeps activations of order one, and attention scores wide enough to matter
            tensor.data = noise * (1.5 / tensor.shape[1] ** 0.5)


def build(name, seed):
    model_class, config_class, sizes, rope = MODELS[name]
    config = config_class(**sizes, rope_parameters=rope, attn_implementation="eager")
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
    config["rope_scaling"] = rope if rope.get("rope_type", "default") != "default" else None
    if config.get("head_dim", 0) * config["num_attention_heads"] == config["hidden_size"]:
        del config["head_dim"]  # Llama 2 and Qwen2 files leave it to the reader
    config["torch_dtype"] = dtype_name
    config.pop("dtype", None)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_golden(model, directory, seed):
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
    save_file(tensors, directory / "golden.safetensors")
    note = {"torch": torch.__version__, "transformers": transformers.__version__,
            "safetensors": safetensors.__version__, "seed": seed, "sequence_lengths": SEQUENCE_LENGTHS,
            "largest_logit": largest, "attention": "eager", "arithmetic": "float32"}
    (directory / "golden.json").write_text(json.dumps(note, indent=2) + "\n")
    return largest


def write(root, name, source, seed, dtype=torch.float32, shard_size="1GB", new_config=False):
    directory = root / name
    directory.mkdir(parents=True)
    model = build(source, seed)
    model.to(dtype).save_pretrained(directory, max_shard_size=shard_size)
    if not new_config:
        downgrade_config(directory / "config.json", str(dtype).removeprefix("torch."))
    (directory / "generation_config.json").write_text(json.dumps(
        {"bos_token_id": model.config.bos_token_id, "eos_token_id": [2, 5]}, indent=2) + "\n")
    # Read back: the golden belongs to what config.json says and to the (rounded) numbers in the file.
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    largest = write_golden(model, directory, seed)
    for file in directory.iterdir():
        file.chmod(0o644)
    parameters = sum(p.numel() for p in model.parameters())
    size = sum(f.stat().st_size for f in directory.iterdir())
    print(f"{name:12} {parameters:7} parameters {size:8} bytes  largest |logit| {largest:.2f}")


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "models"
    shutil.rmtree(root, ignore_errors=True)
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for seed, name in enumerate(MODELS):
        write(root, name, name, seed)
    copy_seed = list(MODELS).index(COPY_OF)
    write(root, f"{COPY_OF}-bf16", COPY_OF, copy_seed, torch.bfloat16)
    write(root, f"{COPY_OF}-fp16", COPY_OF, copy_seed, torch.float16)
    shard_seed = list(MODELS).index(SHARD_OF)
    write(root, f"{SHARD_OF}-sharded", SHARD_OF, shard_seed, shard_size="160KB", new_config=True)
    print(sum(f.stat().st_size for f in root.rglob("*") if f.is_file()), "bytes in all")


if __name__ == "__main__":
    main()
