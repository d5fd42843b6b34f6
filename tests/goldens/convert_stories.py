#!/usr/bin/env python3
"""Turns the trained 260K-parameter story model of llama2.c into a Hugging Face directory.

    goldvenv/bin/pip install torch transformers safetensors sentencepiece
    goldvenv/bin/python tests/goldens/convert_stories.py stories260K-directory output-directory

Reads stories260K.bin (legacy export: 7 int32, then fp32 tensors) and tok512.bin (int32, then float score, int32
length and bytes of each token); writes config.json, generation_config.json, model.safetensors, tokenizer.model and
tokenizer_config.json. Then generates greedily with transformers and compares with the sample in stories260K.md,
where that file lies beside the weights.
"""

import json
import struct
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

UNK, BOS, EOS = 0, 1, 2
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # SentencePiece.Type of sentencepiece_model.proto


def half_split(weight, heads):
    """Rows of q or k from llama2.c's neighbouring pairs (0, 1), (2, 3)... to rotate-half's (0, d/2), (1, d/2 + 1)..."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def read_model(path):
    raw = path.read_bytes()
    dim, hidden, layers, heads, kv_heads, vocab, positions = struct.unpack("<7i", raw[:28])
    if vocab <= 0:
        sys.exit(f"{path}: has a classifier of its own; only the shared one is converted")
    floats, at = torch.frombuffer(bytearray(raw[28:]), dtype=torch.float32), 0

    def take(*shape):
        nonlocal at
        count = torch.Size(shape).numel()
        at += count
        return floats[at - count:at].view(shape).clone()

    head_dim = dim // heads
    kv = kv_heads * head_dim
    embedding = take(vocab, dim)
    stacked = {"input_layernorm": take(layers, dim), "self_attn.q_proj": take(layers, dim, dim),
               "self_attn.k_proj": take(layers, kv, dim), "self_attn.v_proj": take(layers, kv, dim),
               "self_attn.o_proj": take(layers, dim, dim), "post_attention_layernorm": take(layers, dim),
               "mlp.gate_proj": take(layers, hidden, dim), "mlp.down_proj": take(layers, dim, hidden),
               "mlp.up_proj": take(layers, hidden, dim)}
    tensors = {"model.embed_tokens.weight": embedding, "model.norm.weight": take(dim)}
    take(2, positions, head_dim // 2)  # cosines and sines
    assert at == floats.numel(), f"{path}: {floats.numel() - at} numbers left over"
    for name, tensor in stacked.items():
        for layer in range(layers):
            one = tensor[layer].clone()
            if name.endswith("q_proj"):
                one = half_split(one, heads)
            elif name.endswith("k_proj"):
                one = half_split(one, kv_heads)
            tensors[f"model.layers.{layer}.{name}.weight"] = one.contiguous()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": dim,
              "intermediate_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
              "num_key_value_heads": kv_heads, "vocab_size": vocab, "max_position_embeddings": positions,
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None, "hidden_act": "silu",
              "tie_word_embeddings": True, "attention_bias": False, "bos_token_id": BOS, "eos_token_id": EOS,
              "torch_dtype": "float32"}
    return config, tensors


def read_tokens(path, vocab):
    raw, at, tokens = path.read_bytes(), 4, []
    for _ in range(vocab):
        score, length = struct.unpack_from("<fi", raw, at)
        tokens.append((raw[at + 8:at + 8 + length].decode("utf-8"), score))
        at += 8 + length
    assert at == len(raw), f"{path}: {len(raw) - at} bytes left over"
    return tokens


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def field(number, value):
    """One protobuf field: text and bytes length-delimited, float as fixed 32, int and bool as varint."""
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(int(value))


def sentencepiece_model(tokens):
    """A ModelProto of sentencepiece_model.proto: pieces, and the settings Llama's tokenizer was trained with."""
    special = {UNK: ("<unk>", UNKNOWN), BOS: ("<s>", CONTROL), EOS: ("</s>", CONTROL)}
    out = b""
    for i, (text, score) in enumerate(tokens):
        is_byte = len(text) == 6 and text.startswith("<0x")
        piece, kind = special.get(i, (text.replace(" ", "\u2581"), BYTE if is_byte else NORMAL))
        out += field(1, field(1, piece) + field(2, float(score)) + field(3, kind))
    trainer = (field(3, 2) + field(4, len(tokens)) + field(35, True) +  # BPE, vocab_size, byte_fallback
               field(40, UNK) + field(41, BOS) + field(42, EOS) + field(43, 2**64 - 1))  # no padding: -1
    # name, add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces
    normalizer = field(1, "identity") + field(3, True) + field(4, False) + field(5, True)
    return out + field(2, trainer) + field(3, normalizer)


def check(source, directory):
    import sentencepiece
    from transformers import AutoModelForCausalLM
    sample = source / "stories260K.md"
    if not sample.exists():
        print(f"{sample} is absent: the greedy text was NOT compared")
        return
    lines = sample.read_text().split("-t 0.0\n", 1)[1].split("\n```", 1)[0]
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    ids = model.generate(torch.tensor([[BOS]]), do_sample=False, max_new_tokens=256, eos_token_id=BOS)[0].tolist()
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
    text = tokenizer.decode([i for i in ids if i != BOS])
    if not text.startswith(lines) or len(text) - len(lines) > 20:
        sys.exit(f"greedy text differs from {sample}:\n{text}\n--- expected\n{lines}")
    assert tokenizer.decode(tokenizer.encode(text)) == text
    print(f"greedy text equals {sample} ({len(ids)} tokens; {len(text) - len(lines)} characters beyond it)")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, directory = Path(sys.argv[1]), Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    config, tensors = read_model(source / "stories260K.bin")
    tokens = read_tokens(source / "tok512.bin", config["vocab_size"])
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    # The model starts every story with BOS and never saw EOS: BOS ends a text too.
    (directory / "generation_config.json").write_text(
        json.dumps({"bos_token_id": BOS, "eos_token_id": [BOS, EOS]}, indent=2) + "\n")
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "tokenizer.model").write_bytes(sentencepiece_model(tokens))
    (directory / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>",
         "eos_token": "</s>", "unk_token": "<unk>", "legacy": True}, indent=2) + "\n")
    check(source, directory)


if __name__ == "__main__":
    main()
