#!/usr/bin/env python3
"""Writes tests/goldens/formats: tiny models quantised as they are published, and what they compute.

    python3 -m venv goldvenv && goldvenv/bin/pip install torch transformers safetensors numpy compressed-tensors gguf
    goldvenv/bin/python tests/goldens/make_format_goldens.py [output directory]

Every sub-directory is a model as it would be downloaded (gguf-*: its model.gguf) plus
    golden.safetensors  input_ids.N  int32 [length]           for N = 0, 1, ...
                        logits.N     float32 [length, vocab]  Hugging Face, eager attention, fp32 arithmetic, of the
                                                              dequantised weights
                        rows.NAME    float32 [8, k]           the first and last four rows of a dequantised matrix
    golden.json         versions that made it
Codes of GPTQ and AWQ are packed here from the formulas of their packers, as both packages need a device;
compressed-tensors are packed and dequantised by the package of that name. GGUF is written and dequantised by the package
gguf, but for blocks of Q4_K and Q6_K, which it does not make: those are random.
"""

import json
import shutil
import sys
from importlib import metadata
from pathlib import Path

import compressed_tensors
import gguf
import numpy as np
import safetensors
import torch
import transformers
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file
from transformers import (GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM)
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

# Heads of 16 columns and an MLP of three times 32: tensor parallelism cuts groups of 32 in the middle.
SIZES = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             intermediate_size=96, vocab_size=128, max_position_embeddings=128, rms_norm_eps=1e-3, bos_token_id=1,
             eos_token_id=2, pad_token_id=None, tie_word_embeddings=False)
FAMILIES = {"llama": (LlamaForCausalLM, LlamaConfig), "qwen2": (Qwen2ForCausalLM, Qwen2Config),
            "qwen3": (Qwen3ForCausalLM, Qwen3Config)}
SEQUENCE_LENGTHS = [1, 40, 17]


def random_model(family, seed, dtype, sizes={}):
    model_class, config_class = FAMILIES[family]
    config = config_class(**{**SIZES, **sizes}, rope_parameters={"rope_theta": 10000.0}, attn_implementation="eager")
    model = model_class(config).eval().float()
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.named_parameters()):
        noise = torch.randn(tensor.shape, generator=generator)
        if "norm" in name:
            tensor.data = 1.0 + 0.3 * noise
        elif name.endswith("bias"):
            tensor.data = 0.3 * noise
        elif "embed_tokens" in name or "lm_head" in name:
            tensor.data = 0.5 * noise
        else:
            tensor.data = noise * (1.5 / tensor.shape[1] ** 0.5)
        tensor.data = tensor.data.to(dtype).float()
    return model


def modules_of(model):
    return [(name, module) for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and name != "lm_head"]


def quantise(weight, bits, group, symmetric, dtype, groups_of_columns=None):
    """Codes [n, k], scales and zeros [n, groups] of a matrix [n, k], and the group of every column."""
    n, k = weight.shape
    group = k if group == -1 else group
    index = np.arange(k) // group if groups_of_columns is None else groups_of_columns
    groups, top = index.max() + 1, 2 ** bits - 1
    scales, zeros, codes = np.zeros((n, groups)), np.zeros((n, groups), np.int64), np.zeros((n, k), np.int64)
    for g in range(groups):
        part = weight[:, index == g].double().numpy()
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            high = np.maximum(high, -low)
            low = -high
        scale = torch.from_numpy((high - low) / top).to(dtype).double().numpy()
        zero = np.full(n, (top + 1) // 2) if symmetric else np.clip(np.round(-low / scale), 0, top)
        scales[:, g], zeros[:, g] = scale, zero
        codes[:, index == g] = np.clip(np.round(part / scale[:, None]) + zero[:, None], 0, top)
    return codes, scales, zeros, index


def dequantised(codes, scales, zeros, index):
    return torch.from_numpy(((codes - zeros[:, index]).astype(np.float32) * scales[:, index].astype(np.float32)))


def words_along(values, bits, axis):
    """32-bit words of neighbouring values along an axis, the first in the lowest bits."""
    per_word = 32 // bits
    values = np.moveaxis(values, axis, -1).astype(np.uint32)
    values = values.reshape(*values.shape[:-1], -1, per_word)
    words = np.zeros(values.shape[:-1], np.uint32)
    for i in range(per_word):
        words |= values[..., i] << np.uint32(bits * i)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32))


def pack_gptq(name, weight, seed, bits, group, symmetric, order, v2):
    """AutoGPTQ's QuantLinear.pack: zeros are stored less one, but in version 2."""
    n, k = weight.shape
    index = None
    if order:  # every column of any group: what desc_act leaves behind
        index = np.random.RandomState(seed).permutation(np.arange(k) // group)
    codes, scales, zeros, index = quantise(weight, bits, group, symmetric, torch.float16, index)
    stored = zeros if v2 else (zeros - 1)
    assert stored.min() >= 0
    tensors = {f"{name}.qweight": words_along(codes.T, bits, 0), f"{name}.qzeros": words_along(stored.T, bits, 1),
               f"{name}.scales": torch.from_numpy(scales.T.copy()).half(),
               f"{name}.g_idx": torch.from_numpy(index.astype(np.int32))}
    return tensors, dequantised(codes, scales, zeros, index)


def pack_awq(name, weight, group):
    """AutoAWQ's WQLinear_GEMM: the outputs of a word in the order 0 2 4 6 1 3 5 7."""
    codes, scales, zeros, index = quantise(weight, 4, group, False, torch.float16)

    def words(values):  # [.., n]
        order = np.arange(values.shape[1]).reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(-1)
        return words_along(values[:, order], 4, 1)

    tensors = {f"{name}.qweight": words(codes.T), f"{name}.qzeros": words(zeros.T),
               f"{name}.scales": torch.from_numpy(scales.T.copy()).half()}
    return tensors, dequantised(codes, scales, zeros, index)


def pack_compressed(name, weight, bits, group, symmetric, dtype):
    codes, scales, zeros, index = quantise(weight, bits, group, symmetric, dtype)
    half = 2 ** (bits - 1)
    tensors = {f"{name}.weight_packed": pack_to_int32(
                   torch.from_numpy(codes - half).to(torch.int8), bits),
               f"{name}.weight_scale": torch.from_numpy(scales).to(dtype),
               f"{name}.weight_shape": torch.tensor(weight.shape, dtype=torch.int64)}
    if not symmetric:
        tensors[f"{name}.weight_zero_point"] = pack_to_int32(
            torch.from_numpy(zeros - half).to(torch.int8), bits, packed_dim=0).contiguous()
    weights = QuantizationArgs(num_bits=bits, type="int", strategy="group", group_size=group, symmetric=symmetric)
    own = {key.removeprefix(f"{name}."): value for key, value in tensors.items()}
    own["weight_scale"] = own["weight_scale"].float()  # else the package rounds the product to the scale's type
    unpacked = PackedQuantizationCompressor.decompress(own, QuantizationScheme(targets=["Linear"], weights=weights))
    weight = dequantised(codes, scales, zeros, index)
    assert torch.equal(unpacked["weight"], weight), name
    return tensors, weight


def pack_integers(name, weight, dtype):
    codes, scales, zeros, index = quantise(weight, 8, -1, True, dtype)
    tensors = {f"{name}.weight": torch.from_numpy(codes - 128).to(torch.int8),
               f"{name}.weight_scale": torch.from_numpy(scales).to(dtype)}
    return tensors, dequantised(codes, scales, zeros, index)


def pack_float8(name, weight, rows, columns, suffix, dtype):
    """Blocks of rows x columns that share a scale; the scale multiplies."""
    n, k = weight.shape
    blocks = [(-(-n // rows)), (-(-k // columns))]
    scales = torch.zeros(blocks)
    for i in range(blocks[0]):
        for j in range(blocks[1]):
            part = weight[i * rows:(i + 1) * rows, j * columns:(j + 1) * columns]
            scales[i, j] = part.abs().max() / 448
    scales = scales.to(dtype).float()
    whole = scales.repeat_interleave(rows, 0)[:n].repeat_interleave(columns, 1)[:, :k]
    codes = (weight / whole).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {f"{name}.weight": codes, f"{name}.{suffix}": scales.to(dtype)}, codes.float() * whole


def write(root, name, family, seed, dtype, quantization_config, pack):
    directory = root / name
    directory.mkdir(parents=True)
    model = random_model(family, seed, dtype)
    tensors = {key: value.to(dtype) for key, value in model.state_dict().items()}
    golden = {}
    for number, (module_name, module) in enumerate(modules_of(model)):
        packed = pack(module_name, module.weight.data, number)
        if packed is None:
            continue
        del tensors[f"{module_name}.weight"]
        stored, weight = packed
        tensors.update(stored)
        module.weight.data = weight
        if ".1." in module_name:
            golden[f"rows.{module_name}.weight"] = torch.cat([weight[:4], weight[-4:]]).contiguous()
    save_file({key: value.contiguous() for key, value in tensors.items()}, directory / "model.safetensors",
              {"format": "pt"})
    config = json.loads(model.config.to_json_string())
    rope = config.pop("rope_parameters")
    config.update(rope_theta=rope["rope_theta"], torch_dtype=str(dtype).removeprefix("torch."),
                  quantization_config=quantization_config)
    config.pop("dtype", None)
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    write_golden(model, directory, seed, golden)


def write_golden(model, directory, seed, golden):
    generator = torch.Generator().manual_seed(1000 + seed)
    with torch.no_grad():
        for n, length in enumerate(SEQUENCE_LENGTHS):
            ids = torch.randint(0, model.config.vocab_size, (1, length), generator=generator)
            golden[f"input_ids.{n}"] = ids[0].to(torch.int32)
            golden[f"logits.{n}"] = model(ids).logits[0].contiguous()
    save_file(golden, directory / "golden.safetensors")
    note = {"torch": torch.__version__, "transformers": transformers.__version__, "safetensors": safetensors.__version__,
            "compressed-tensors": compressed_tensors.__version__, "gguf": metadata.version("gguf"),
            "numpy": np.__version__, "seed": seed,
            "attention": "eager", "arithmetic": "float32",
            "largest_logit": max(golden[f"logits.{n}"].abs().max().item() for n in range(len(SEQUENCE_LENGTHS)))}
    (directory / "golden.json").write_text(json.dumps(note, indent=2) + "\n")
    for file in directory.iterdir():
        file.chmod(0o644)
    print(f"{directory.name:20} {sum(f.stat().st_size for f in directory.iterdir()):8} bytes  "
          f"largest |logit| {note['largest_logit']:.2f}")


def gptq(bits, group, symmetric, order, v2):
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": order, "sym": symmetric,
              "damp_percent": 0.01, "true_sequential": True, "static_groups": False, "model_name_or_path": None,
              "checkpoint_format": "gptq_v2" if v2 else "gptq", "lm_head": False}
    return config, lambda name, weight, number: pack_gptq(name, weight, number, bits, group, symmetric, order, v2)


def compressed(format, weights, ignore, pack, inputs=None):
    weights = dict({"dynamic": False, "observer": "minmax", "observer_kwargs": {}, "actorder": None,
                    "block_structure": None, "group_size": None}, **weights)
    group = {"input_activations": inputs, "output_activations": None, "targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group},
            "ignore": ["lm_head", *ignore], "kv_cache_scheme": None, "quantization_status": "compressed",
            "global_compression_ratio": 1.5}, pack


def write_safetensors_formats(root):
    half, bfloat = torch.float16, torch.bfloat16
    write(root, "gptq-4bit", "llama", 0, half, *gptq(4, 32, True, False, False))
    write(root, "gptq-4bit-act-order", "qwen2", 1, half, *gptq(4, 32, False, True, True))
    write(root, "gptq-8bit", "llama", 0, half, *gptq(8, -1, True, False, False))
    write(root, "awq", "qwen2", 3, half,
          {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm",
           "modules_to_not_convert": None},
          lambda name, weight, number: pack_awq(name, weight, 32))
    plain = "model.layers.1.self_attn.v_proj"  # one of three that are one matrix to the engine
    write(root, "compressed-4bit", "qwen3", 2, bfloat,
          *compressed("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32,
                                         "symmetric": False}, ["re:.*layers[.]1[.]self_attn[.]v_proj$"],
                      lambda name, weight, number:
                      None if name == plain else pack_compressed(name, weight, 4, 32, False, bfloat)))
    write(root, "compressed-int8", "llama", 0, bfloat,
          *compressed("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}, [],
                      lambda name, weight, number: pack_integers(name, weight, bfloat),
                      {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}))
    write(root, "compressed-fp8", "llama", 0, bfloat,
          *compressed("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
                      [], lambda name, weight, number:
                      pack_float8(name, weight, 1, weight.shape[1], "weight_scale", bfloat)))
    write(root, "fp8-blocks", "qwen3", 4, bfloat,
          {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [24, 40], "activation_scheme": "dynamic",
           "modules_to_not_convert": ["lm_head"]},
          lambda name, weight, number: pack_float8(name, weight, 24, 40, "weight_scale_inv", torch.float32))


def write_mxfp4(root, name, seed):
    """Experts of gpt-oss: random codes and scales, dequantised by transformers. The rows are of the last expert."""
    directory = root / name
    directory.mkdir(parents=True)
    rope = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 32}
    sizes = dict(SIZES, num_attention_heads=2, num_key_value_heads=1, vocab_size=96, num_local_experts=3,
                 num_experts_per_tok=2, sliding_window=16, swiglu_limit=2.0)
    model = GptOssForCausalLM(GptOssConfig(**sizes, rope_parameters={"rope_theta": 15000.0, **rope},
                                           attn_implementation="eager")).eval().float()
    generator = torch.Generator().manual_seed(seed)
    tensors, golden = {}, {}
    for key, tensor in sorted(model.state_dict().items()):
        noise = torch.randn(tensor.shape, generator=generator)
        if key.endswith(("gate_up_proj", "down_proj")):  # [experts, inputs, outputs]
            experts, inputs, outputs = tensor.shape
            blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=generator).to(torch.uint8)
            scales = torch.randint(121, 125, (experts, outputs, inputs // 32), generator=generator).to(torch.uint8)
            weight = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            tensors.update({f"{key}_blocks": blocks, f"{key}_scales": scales})
            if ".1." in key:
                golden[f"rows.{key}"] = torch.cat([weight[-1, :, :4].T, weight[-1, :, -4:].T]).contiguous()
        else:
            weight = (1.0 + 0.3 * noise if "norm" in key else noise if key.endswith("sinks") else
                      0.3 * noise if key.endswith("bias") else
                      0.5 * noise if "embed_tokens" in key or "lm_head" in key else
                      noise * (1.5 / tensor.shape[1] ** 0.5)).half().float()
            tensors[key] = weight.half()
        tensor.copy_(weight)
    save_file({key: value.contiguous() for key, value in tensors.items()}, directory / "model.safetensors",
              {"format": "pt"})
    config = json.loads(model.config.to_json_string())
    config.pop("rope_parameters")
    config.pop("dtype", None)
    config.update(rope_theta=15000.0, rope_scaling=rope, torch_dtype="float16", experts_per_token=2,
                  initial_context_length=32,
                  quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": [
                      "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]})
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    write_golden(model, directory, seed, golden)


GGUF_NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
              "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
              "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
              "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def gguf_name(name):
    if name.startswith("model.layers."):
        number, rest = name.removeprefix("model.layers.").split(".", 1)
        module, kind = rest.rsplit(".", 1)
        return f"blk.{number}.{GGUF_NAMES[module]}.{kind}"
    return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
            "lm_head.weight": "output.weight"}[name]


def random_blocks(weight, kind, seed):
    """Any bytes are codes and scales; fp16 numbers are set so that weights have about the size of these."""
    random = np.random.RandomState(seed)
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = random.randint(0, 256, (weight.shape[0], weight.shape[1] // 256, size), np.uint8)
    spread = float(weight.std())

    def numbers(scale):
        values = (scale * random.uniform(0.7, 1.3, blocks.shape[:2])).astype(np.float16)
        return values[..., None].view(np.uint8)

    if kind == gguf.GGMLQuantizationType.Q4_K:  # about 4.6 * 32 * d wide around 7.5 * 32 * d - 32 * m
        blocks[..., 0:2] = numbers(spread / 180)
        blocks[..., 2:4] = numbers(spread / 180 * 7.5)
    else:  # Q6_K: 18 * 74 * d
        blocks[..., 208:210] = numbers(spread / 1300)
    return blocks.reshape(weight.shape[0], -1)


def pairs_of_rows(weight, heads):
    """convert_hf_to_gguf: rows of q and k for a rotation of neighbours."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def halves_of_rows(weight, heads):
    return weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def add_tokenizer(writer, size):
    """Bytes as GPT-2 writes them, a few merges, and what a chat needs."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + len(letters) - len(printable)))
    merges = [("h", "e"), ("t", "he"), ("i", "n"), ("\u0120", "the")]
    tokens = [letters[byte] for byte in range(256)] + ["".join(pair) for pair in merges]
    control = ["<|im_start|>", "<|im_end|>"]
    unused = [f"<unused{i}>" for i in range(size - len(tokens) - len(control))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens + control + unused)
    writer.add_token_types([1] * len(tokens) + [3] * len(control) + [5] * len(unused))
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(len(tokens) + 1)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                             "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def write_gguf(root, name, family, seed, sizes, type_of):
    """type_of: from a GGUF name to a ggml type; norms and biases are F32."""
    directory = root / name
    directory.mkdir(parents=True)
    model = random_model(family, seed, torch.float32, sizes)
    config = model.config
    writer = gguf.GGUFWriter(directory / "model.gguf", family)
    writer.add_name("tiny random model")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.head_dim)
    if config.head_dim * config.num_attention_heads != config.hidden_size or family == "qwen3":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if config.vocab_size > 256:
        add_tokenizer(writer, config.vocab_size)
    else:
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
    golden = {}
    for number, (key, tensor) in enumerate(sorted(model.state_dict().items())):
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        heads = config.num_attention_heads if ".q_proj." in key else config.num_key_value_heads
        is_paired = family == "llama" and (".q_proj." in key or ".k_proj." in key)
        weight = pairs_of_rows(tensor.numpy(), heads) if is_paired else tensor.numpy()
        kind = gguf.GGMLQuantizationType.F32 if tensor.dim() == 1 else type_of(gguf_name(key))
        if kind in (gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K):
            stored = random_blocks(weight, kind, seed + number)
        else:
            stored = gguf.quants.quantize(np.ascontiguousarray(weight), kind)
        writer.add_tensor(gguf_name(key), stored, raw_dtype=kind)
        weight = gguf.quants.dequantize(stored, kind).reshape(weight.shape).astype(np.float32)
        weight = torch.from_numpy(np.ascontiguousarray(halves_of_rows(weight, heads) if is_paired else weight))
        tensor.copy_(weight)
        if tensor.dim() == 2 and kind not in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16,
                                              gguf.GGMLQuantizationType.BF16) and key != "lm_head.weight":
            golden[f"rows.{key}"] = torch.cat([weight[:4], weight[-4:]]).contiguous()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_golden(model, directory, seed, golden)


def write_gguf_formats(root):
    kind = gguf.GGMLQuantizationType
    mixed = {"attn_q": kind.Q4_K, "attn_k": kind.Q4_K, "attn_v": kind.Q6_K, "attn_output": kind.Q4_0, "ffn_gate": kind.Q8_0,
             "ffn_up": kind.Q4_K, "ffn_down": kind.Q6_K, "token_embd": kind.Q4_0, "output": kind.Q6_K}
    write_gguf(root, "gguf-llama-mixed", "llama", 8,
               dict(hidden_size=256, num_hidden_layers=1, head_dim=64, intermediate_size=256, vocab_size=96),
               lambda name: mixed[name.removeprefix("blk.0.").removesuffix(".weight")])
    write_gguf(root, "gguf-qwen3-q8", "qwen3", 9, dict(head_dim=32, vocab_size=272), lambda name: kind.Q8_0)
    write_gguf(root, "gguf-qwen2-halves", "qwen2", 10, dict(tie_word_embeddings=True),
               lambda name: kind.F16 if "attn" in name else kind.BF16)


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "formats"
    shutil.rmtree(root, ignore_errors=True)
    torch.set_num_threads(1)
    write_safetensors_formats(root)
    write_mxfp4(root, "mxfp4", 11)
    write_gguf_formats(root)


if __name__ == "__main__":
    main()
