#!/usr/bin/env python3
"""Writes tests/goldens/heads: tiny heads with random weights for tests/goldens/models/qwen3, and the logits of their equations.

    python3 -m venv goldvenv && goldvenv/bin/pip install torch safetensors numpy
    goldvenv/bin/python tests/goldens/make_head_goldens.py [output directory]

Every sub-directory is a head as it is published, plus
    golden.safetensors  of Medusa: states [9, hidden] and the logits [9, 3, own vocabulary] of its branches; of Hydra: states [11, hidden], ids int32
                        [14], and logits [11, 3, vocabulary] of its branches behind each state, each after those of ids; of DFlash for N = 0, 1: states.N float32
                        [T, taps * hidden], random, ids.N int32 [T + 1 + tokens], and logits.N float32 [2, tokens, own vocabulary] of the
                        block's tokens behind the first T - 1 states and behind all, each after those of ids; of others for N = 0, 1: ids.N int32 [T + 3], of which the last two are drafted; states.N float32 [T, taps * hidden],
                        random; logits.N float32 [3, draft vocabulary] behind T - 1 pairs, and behind each drafted token
    goldvenv/bin/pip install transformers && goldvenv/bin/python tests/goldens/make_head_goldens.py --compare

says instead how far the modules' logits are from those of the layers of transformers.

The equations are written down here once more, without caches and by whole sequences, so that they share nothing with the engine
or with launch/demo_pair/train_heads.py.
"""
import json
import math
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

TARGET = Path(__file__).parent / "models" / "qwen3"
HIDDEN, VOCAB, LAYERS, EPS, THETA, TARGET_THETA = 64, 302, 2, 1e-3, 10000.0, 1e6
HEADS, KV_HEADS, HEAD_DIM, FFN = 6, 2, 16, 52

LAYER = dict(model_type="llama", hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=1, num_attention_heads=HEADS,
             num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, hidden_act="silu", max_position_embeddings=128, rms_norm_eps=EPS,
             rope_theta=THETA, vocab_size=VOCAB)

# name -> (kind, options)
NAMES = {
    "eagle3": ("eagle3", dict(draft_vocab=90, layer="midlayer.")),
    "eagle3-speculators": ("eagle3", dict(draft_vocab=120, layer="layers.0.", wrapper=True, norm_before_residual=True,
                                          norm_before_fc=True, norm_output=True, own_embedding=True)),
    "eagle3-fc-norm": ("eagle3", dict(draft_vocab=VOCAB, layer="midlayer.", fc_norm=True, bias=True)),
    "eagle": ("eagle", dict(layer="layers.0.")),
    "mtp": ("mtp", dict(layer="model.mtp_layers.0.", bias=True)),
}


def rms(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def rotated(x, theta=THETA):
    """[T, heads, head_dim], each row at its own index."""
    T, _, d = x.shape
    angle = torch.outer(torch.arange(T).float(), theta ** (-torch.arange(0, d, 2).float() / d))
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., : d // 2], x[..., d // 2:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Reference:
    def __init__(self, kind, tensors, options, target):
        self.kind, self.t, self.o, self.target = kind, tensors, options, target
        self.embedding = tensors.get("embed_tokens.weight", target["model.embed_tokens.weight"])
        self.head = tensors.get("lm_head.weight", target["model.embed_tokens.weight"])  # the target's are tied

    def layer(self, tail):
        return self.t[self.o["layer"] + tail]

    def committed(self, states):
        if self.kind != "eagle3":
            return rms(states, self.target["model.norm.weight"])
        if self.o.get("norm_before_fc"):
            states = rms(states, self.t["input_norm.weight"])
        if self.o.get("fc_norm"):
            states = torch.cat([rms(s, self.t[f"fc_norm.{i}.weight"]) for i, s in enumerate(states.split(HIDDEN, -1))], -1)
        return states @ self.t["fc.weight"].T

    def attention(self, x):
        T = len(x)
        project = lambda n: x @ self.layer(f"self_attn.{n}_proj.weight").T + self.t.get(f"{self.o['layer']}self_attn.{n}_proj.bias", 0)
        q, k, v = (project(n).view(T, -1, HEAD_DIM) for n in "qkv")
        q, k = rotated(q), rotated(k)
        outs = []
        for h in range(HEADS):
            kv = h // (HEADS // KV_HEADS)
            scores = q[:, h] @ k[:, kv].T / HEAD_DIM ** 0.5
            scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf"))
            outs.append(scores.softmax(-1) @ v[:, kv])
        out = torch.cat(outs, -1) @ self.layer("self_attn.o_proj.weight").T
        return out + self.t.get(self.o["layer"] + "self_attn.o_proj.bias", 0)

    def rows(self, tokens, g):
        """Pairs of states g and the tokens behind them: logits, and the state that goes on."""
        e = self.embedding[tokens]
        if self.kind == "eagle3":
            state = rms(g, self.layer("hidden_norm.weight"))
            x = self.attention(torch.cat((rms(e, self.layer("input_layernorm.weight")), state), -1))
            residual = state if self.o.get("norm_before_residual") else g
        elif self.kind == "eagle":
            residual = torch.cat((e, g), -1) @ self.t["fc.weight"].T + self.t["fc.bias"]
            x = self.attention(residual)
        else:
            pair = torch.cat((rms(g, self.layer("hidden_layernorm.weight")), rms(e, self.layer("token_layernorm.weight"))), -1)
            residual = pair @ self.layer("input_proj.weight").T
            x = self.attention(rms(residual, self.layer("input_layernorm.weight")))
        y = residual + x
        h = rms(y, self.layer("post_attention_layernorm.weight"))
        gate, up = (h @ self.layer(f"mlp.{n}_proj.weight").T + self.t.get(f"{self.o['layer']}mlp.{n}_proj.bias", 0) for n in ("gate", "up"))
        y = y + torch.nn.functional.silu(gate) * up @ self.layer("mlp.down_proj.weight").T + self.t.get(
            self.o["layer"] + "mlp.down_proj.bias", 0)
        if self.kind == "eagle":
            return y @ self.head.T, y
        final = rms(y, self.t["norm.weight"] if self.kind == "eagle3" else self.layer("final_layernorm.weight"))
        return final @ self.head.T, final if self.kind == "mtp" or self.o.get("norm_output") else y


def random_tensors(kind, o, generator):
    layer, tensors = o["layer"], {}
    def add(name, *shape):
        noise = torch.randn(shape, generator=generator)
        tensors[name] = 1 + 0.3 * noise if "norm" in name else 0.3 * noise if name.endswith("bias") else noise * (
            0.5 if "embed" in name or "lm_head" in name else 1.5 / shape[-1] ** 0.5)
    taps, wide = (3, 2 * HIDDEN) if kind == "eagle3" else (1, HIDDEN)
    if kind == "mtp":
        add(layer + "input_proj.weight", HIDDEN, 2 * HIDDEN)
        for n in ("token_layernorm", "hidden_layernorm", "input_layernorm", "final_layernorm"):
            add(f"{layer}{n}.weight", HIDDEN)
    else:
        add("fc.weight", HIDDEN, taps * HIDDEN if kind == "eagle3" else 2 * HIDDEN)
    if kind == "eagle":
        add("fc.bias", HIDDEN)
    if kind == "eagle3":
        for n in (layer + "input_layernorm", layer + "hidden_norm", "norm"):
            add(n + ".weight", HIDDEN)
        add("lm_head.weight", o["draft_vocab"], HIDDEN)
        if o["draft_vocab"] < VOCAB:
            kept = torch.randperm(VOCAB, generator=generator)[:o["draft_vocab"]].sort().values
            tensors["d2t"] = kept - torch.arange(len(kept))
            tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, kept, True)
    if o.get("norm_before_fc"):
        add("input_norm.weight", taps * HIDDEN)
    if o.get("fc_norm"):
        for i in range(taps):
            add(f"fc_norm.{i}.weight", HIDDEN)
    if o.get("own_embedding"):
        add("embed_tokens.weight", VOCAB, HIDDEN)
    add(layer + "post_attention_layernorm.weight", HIDDEN)
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    for n, rows in (("q", q), ("k", kv), ("v", kv)):
        add(f"{layer}self_attn.{n}_proj.weight", rows, wide)
        if o.get("bias"):
            add(f"{layer}self_attn.{n}_proj.bias", rows)
    add(layer + "self_attn.o_proj.weight", HIDDEN, q)
    for n, rows, columns in (("gate", FFN, HIDDEN), ("up", FFN, HIDDEN), ("down", HIDDEN, FFN)):
        add(f"{layer}mlp.{n}_proj.weight", rows, columns)
        if o.get("bias") and kind == "eagle3":
            add(f"{layer}mlp.{n}_proj.bias", rows)
    if o.get("bias") and kind == "eagle3":
        add(layer + "self_attn.o_proj.bias", HIDDEN)
    return tensors


def config_of(kind, o):
    if kind == "mtp":
        return dict(LAYER, model_type="mimo", architectures=["MiMoMTPModel"], attention_bias=True, num_nextn_predict_layers=1)
    if kind == "eagle":
        return dict(LAYER, architectures=["LlamaForCausalLM"])
    flags = {k: o[k] for k in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output") if k in o}
    own = dict(draft_vocab_size=o["draft_vocab"], eagle_aux_hidden_state_layer_ids=[0, 1, 2], **flags)
    if o.get("wrapper"):
        return dict(own, architectures=["Eagle3Speculator"], model_type="speculators", speculators_model_type="eagle3",
                    speculators_version="0.3.0", speculators_config=dict(algorithm="eagle3"), target_hidden_size=None,
                    transformer_layer_config=LAYER)
    return dict(LAYER, architectures=["LlamaForCausalLMEagle3"], attention_bias=bool(o.get("bias")), mlp_bias=bool(o.get("bias")), **own)


# name -> what its config and tensors have
BLOCKS = {
    "dflash": dict(layers=2, block=5, taps=[1, 2], norms=True, mask=301),
    "dflash-causal": dict(layers=1, block=3, taps=[2], causal=True, bias=True, mask=0, known=VOCAB),
    "dspark": dict(layers=1, block=4, taps=[0, 1, 2], norms=True, mask=7, known=120, rank=12, wrapper=True, embedding=True),
}


def rotated_at(x, first):
    """[T, heads, head_dim], row i at position first + i."""
    filler = torch.zeros((first, *x.shape[1:]))
    return rotated(torch.cat((filler, x)))[first:]


def block_logits(t, o, target, states, last, before):
    """Whole sequences: keys of all states and of the block; `before`: the tokens in front of those that the rows say."""
    T, b = len(states), o["block"]
    embedding = t.get("embed_tokens.weight", target["model.embed_tokens.weight"])
    context = rms(states @ t["fc.weight"].T, t["hidden_norm.weight"])
    x = embedding[[last] + [o["mask"]] * (b - 1)]
    for l in range(o["layers"]):
        w = lambda n: t[f"layers.{l}.{n}.weight"]
        bias = lambda n: t.get(f"layers.{l}.{n}.bias", 0)
        normed = rms(x, w("input_layernorm"))
        project = lambda y, n: (y @ w(f"self_attn.{n}_proj").T + bias(f"self_attn.{n}_proj")).view(len(y), -1, HEAD_DIM)
        q, k, v = project(normed, "q"), project(torch.cat((context, normed)), "k"), project(torch.cat((context, normed)), "v")
        if o.get("norms"):
            q, k = rms(q, w("self_attn.q_norm")), rms(k, w("self_attn.k_norm"))
        q, k = rotated_at(q, T), rotated_at(k, 0)
        seen = torch.ones(b, T + b).tril(T).bool() if o.get("causal") else torch.ones(b, T + b).bool()
        outs = []
        for h in range(HEADS):
            kv = h // (HEADS // KV_HEADS)
            scores = (q[:, h] @ k[:, kv].T / HEAD_DIM ** 0.5).masked_fill(~seen, float("-inf"))
            outs.append(scores.softmax(-1) @ v[:, kv])
        x = x + torch.cat(outs, -1) @ w("self_attn.o_proj").T + bias("self_attn.o_proj")
        h = rms(x, w("post_attention_layernorm"))
        gate, up = (h @ w(f"mlp.{n}_proj").T + bias(f"mlp.{n}_proj") for n in ("gate", "up"))
        x = x + torch.nn.functional.silu(gate) * up @ w("mlp.down_proj").T + bias("mlp.down_proj")
    logits = rms(x, t["norm.weight"]) @ t.get("lm_head.weight", target["model.embed_tokens.weight"]).T
    if not o.get("rank"):
        return logits[1:]
    return logits + t["markov_head.markov_w1.weight"][before] @ t["markov_head.markov_w2.weight"].T  # from the anchor on


def write_block(root, name, seed, o):
    generator, t, directory = torch.Generator().manual_seed(seed), {}, root / name
    target = {k: v.float() for k, v in load_file(TARGET / "model.safetensors").items()}
    def add(name, *shape):
        noise = torch.randn(shape, generator=generator)
        t[name] = 1 + 0.3 * noise if "norm" in name else 0.3 * noise if name.endswith("bias") else noise * (
            0.5 if "embed" in name or "lm_head" in name or "markov" in name else 1.5 / shape[-1] ** 0.5)
    add("fc.weight", HIDDEN, len(o["taps"]) * HIDDEN)
    for n in ("hidden_norm.weight", "norm.weight"):
        add(n, HIDDEN)
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    for l in range(o["layers"]):
        for n in ("input_layernorm", "post_attention_layernorm"):
            add(f"layers.{l}.{n}.weight", HIDDEN)
        for n, rows, columns in (("self_attn.q", q, HIDDEN), ("self_attn.k", kv, HIDDEN), ("self_attn.v", kv, HIDDEN),
                                 ("self_attn.o", HIDDEN, q), ("mlp.gate", FFN, HIDDEN), ("mlp.up", FFN, HIDDEN), ("mlp.down", HIDDEN, FFN)):
            add(f"layers.{l}.{n}_proj.weight", rows, columns)
            if o.get("bias"):
                add(f"layers.{l}.{n}_proj.bias", rows)
        if o.get("norms"):
            for n in ("q_norm", "k_norm"):
                add(f"layers.{l}.self_attn.{n}.weight", HEAD_DIM)
    known = o.get("known", VOCAB)
    if "known" in o:
        add("lm_head.weight", known, HIDDEN)
    if known < VOCAB:
        kept = torch.randperm(VOCAB, generator=generator)[:known].sort().values
        t["d2t"] = kept - torch.arange(known)
        t["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, kept, True)
    if o.get("embedding"):
        add("embed_tokens.weight", VOCAB, HIDDEN)
    if o.get("rank"):
        add("markov_head.markov_w1.weight", VOCAB, o["rank"])
        add("markov_head.markov_w2.weight", known, o["rank"])
        add("confidence_head.proj.weight", 1, HIDDEN + o["rank"])
        add("confidence_head.proj.bias", 1)
    layer = dict(LAYER, model_type="qwen3" if o.get("norms") else "llama", num_hidden_layers=o["layers"],
                 attention_bias=bool(o.get("bias")), **({} if o.get("norms") else dict(mlp_bias=bool(o.get("bias")))))
    if o.get("wrapper"):
        config = dict(architectures=["DSparkSpeculator"], model_type="speculators", speculators_model_type="dspark", speculators_version="0.6.0",
                      speculators_config=dict(algorithm="dspark"), transformer_layer_config=layer, block_size=o["block"], mask_token_id=o["mask"],
                      aux_hidden_state_layer_ids=o["taps"], draft_vocab_size=known, markov_rank=o["rank"], markov_head_type="vanilla",
                      enable_confidence_head=True, confidence_head_with_markov=True, target_hidden_size=None)
    else:
        config = dict(layer, architectures=["DFlashDraftModel"], block_size=o["block"], num_target_layers=LAYERS,
                      dflash_config=dict(target_layer_ids=[i - 1 for i in o["taps"]], mask_token_id=o["mask"]))
        if o.get("causal"):
            config |= dict(is_causal=True, draft_vocab_size=known)
    tokens, golden, largest = o["block"] - (0 if o.get("rank") else 1), {}, 0.0
    for n, T in enumerate((1, 37)):
        states = torch.randn((T, len(o["taps"]) * HIDDEN), generator=generator)
        ids = torch.randint(0, VOCAB, (T + 1 + tokens,), generator=generator)
        rows = [block_logits(t, o, target, states[:end], ids[end].item(), ids[end:end + tokens]) for end in (T - 1, T)]
        golden |= {f"states.{n}": states, f"ids.{n}": ids.to(torch.int32), f"logits.{n}": torch.stack(rows).contiguous()}
        largest = max(largest, torch.stack(rows).abs().max().item())
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    save_file(t, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(golden, directory / "golden.safetensors")
    for file in directory.iterdir():
        file.chmod(0o644)
    print(f"{name:20} {sum(f.stat().st_size for f in directory.iterdir()):7} bytes, largest |logit| {largest:.2f}")


def write_medusa(root, name, seed, layers, renamed, known=VOCAB):
    """Three branches over one state; each adds `layers` times silu of a linear map, and has an output head of its own, or, with fewer known
    tokens, one that is shared."""
    generator, tensors, directory = torch.Generator().manual_seed(seed), {}, root / name
    target = {k: v.float() for k, v in load_file(TARGET / "model.safetensors").items()}
    states = torch.randn((9, HIDDEN), generator=generator)
    logits = []
    for i in range(3):
        x = rms(states, target["model.norm.weight"])
        for l in range(layers):
            weight = torch.randn((HIDDEN, HIDDEN), generator=generator) * 1.5 / HIDDEN ** 0.5
            bias = 0.3 * torch.randn(HIDDEN, generator=generator)
            x = x + torch.nn.functional.silu(x @ weight.T + bias)
            prefix = f"blocks.{i}.layers.{l}." if renamed else f"{i}.{l}.linear."
            tensors |= {prefix + "weight": weight, prefix + "bias": bias}
        if i == 0 or known == VOCAB:
            head = 0.5 * torch.randn((known, HIDDEN), generator=generator)
            tensors[f"lm_heads.{i}.weight" if renamed else f"{i}.{layers}.weight"] = head
        logits.append(x @ head.T)
    if known < VOCAB:
        tensors["token_map"] = torch.randperm(VOCAB, generator=generator)[:known]
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = dict(architectures=["MedusaModel"], hidden_size=HIDDEN, vocab_size=VOCAB, num_heads=3) if renamed else dict(
        medusa_num_heads=2, medusa_num_layers=layers, base_model_name_or_path="qwen3")  # published files count wrongly
    if known < VOCAB:
        config |= dict(truncated_vocab_size=known, original_lm_head=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file({"states": states, "logits": torch.stack(logits, 1).contiguous()}, directory / "golden.safetensors")
    for file in directory.iterdir():
        file.chmod(0o644)
    print(f"{name:20} {sum(f.stat().st_size for f in directory.iterdir()):7} bytes")


# name -> layers of a branch, whether it reads tokens, whether states go through a layer first
HYDRAS = {
    "hydra": dict(layers=1, grounded=True),
    "hydra-prefix": dict(layers=2, grounded=True, prefix=True),
    "hydra-ungrounded": dict(layers=2, grounded=False),
}


def prefix_states(t, states):
    """One layer of Llama over the states, as a model whose embeddings they are: its output behind the final norm."""
    at = "prefix_embeding_layer.layers.0."
    x, T = states, len(states)
    h = rms(x, t[at + "input_layernorm.weight"])
    q, k, v = ((h @ t[f"{at}self_attn.{n}_proj.weight"].T).view(T, -1, HEAD_DIM) for n in "qkv")
    q, k, outs = rotated(q, TARGET_THETA), rotated(k, TARGET_THETA), []
    for i in range(HEADS):
        scores = q[:, i] @ k[:, i // (HEADS // KV_HEADS)].T / HEAD_DIM ** 0.5
        scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf"))
        outs.append(scores.softmax(-1) @ v[:, i // (HEADS // KV_HEADS)])
    x = x + torch.cat(outs, -1) @ t[at + "self_attn.o_proj.weight"].T
    h = rms(x, t[at + "post_attention_layernorm.weight"])
    gate, up = (h @ t[f"{at}mlp.{n}_proj.weight"].T for n in ("gate", "up"))
    x = x + torch.nn.functional.silu(gate) * up @ t[at + "mlp.down_proj.weight"].T
    return rms(x, t["prefix_embeding_layer.norm.weight"])


def write_hydra(root, name, seed, o):
    """Three branches; branch i reads the state of a position and the i + 1 tokens behind it, and has an output head of its own."""
    generator, t, directory, branches, T = torch.Generator().manual_seed(seed), {}, root / name, 3, 11
    target = {k: v.float() for k, v in load_file(TARGET / "model.safetensors").items()}
    def add(name, *shape):
        noise = torch.randn(shape, generator=generator)
        t[name] = 1 + 0.3 * noise if "norm" in name else 0.3 * noise if name.endswith("bias") else noise * (
            0.5 if "embed_" in name or "lm_head" in name else 1.5 / shape[-1] ** 0.5)
    embedding = target["model.embed_tokens.weight"]
    if o.get("prefix"):
        at, q, kv = "prefix_embeding_layer.layers.0.", HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        for n in (at + "input_layernorm", at + "post_attention_layernorm", "prefix_embeding_layer.norm"):
            add(n + ".weight", HIDDEN)
        for n, rows, columns in (("self_attn.q", q, HIDDEN), ("self_attn.k", kv, HIDDEN), ("self_attn.v", kv, HIDDEN),
                                 ("self_attn.o", HIDDEN, q), ("mlp.gate", ffn_of(target), HIDDEN), ("mlp.up", ffn_of(target), HIDDEN),
                                 ("mlp.down", HIDDEN, ffn_of(target))):
            add(f"{at}{n}_proj.weight", rows, columns)
        add("input_embed_fn.weight", VOCAB, HIDDEN)
        embedding = t["input_embed_fn.weight"]
    place = lambda l: 2 * l + 1 if o.get("prefix") else l       # a dropout in front of every module
    states = torch.randn((T, HIDDEN), generator=generator)
    ids = torch.randint(0, VOCAB, (T + branches,), generator=generator)
    read = rms(states, target["model.norm.weight"])
    if o.get("prefix"):
        read = prefix_states(t, read)
    logits = []
    for i in range(branches):
        x = read
        if o["grounded"]:
            x = torch.cat([read] + [embedding[ids[1 + j:1 + j + T]] for j in range(i + 1)], -1)
        for l in range(o["layers"]):
            names = [f"hydra_mlp.{i}.{place(l)}.{n}" for n in ("linear", "res_connection")[:2 if o["grounded"] and l == 0 else 1]]
            for n in names:
                add(n + ".weight", HIDDEN, x.shape[-1])
                add(n + ".bias", HIDDEN)
            linear = lambda n: x @ t[n + ".weight"].T + t[n + ".bias"]
            x = (linear(names[1]) if len(names) > 1 else x) + torch.nn.functional.silu(linear(names[0]))
        head = f"hydra_lm_head.{i}." + ("1." if o.get("prefix") else "")
        add(head + "weight", VOCAB, HIDDEN)
        add(head + "bias", VOCAB)
        logits.append(x @ t[head + "weight"].T + t[head + "bias"])
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    save_file(t, directory / "model.safetensors", metadata={"format": "pt"})
    config = dict(hydra_num_heads=branches, hydra_num_layers=o["layers"], hydra_head_arch="prefix-mlp" if o.get("prefix") else "mlp",
                  grounded_heads=o["grounded"], hidden_state_offset=0, base_model_name_or_path="qwen3")
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file({"states": states, "ids": ids.to(torch.int32), "logits": torch.stack(logits, 1).contiguous()}, directory / "golden.safetensors")
    for file in directory.iterdir():
        file.chmod(0o644)
    print(f"{name:20} {sum(f.stat().st_size for f in directory.iterdir()):7} bytes, largest |logit| {torch.stack(logits).abs().max():.2f}")


# Modules of multi-token prediction whose layers are others than MiMo's: names of the tensors, and the layer. Stored in fp16.
MODULES = {
    "mtp-deepseek": dict(prefix="model.layers.2.", layer="model.layers.2.", names=("eh_proj", "enorm", "hnorm", "shared_head.norm"),
                         latent=True, experts=6, own_head=True),
    "mtp-qwen": dict(prefix="mtp.", layer="mtp.layers.0.", names=("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")),
    "mtp-qwen-moe": dict(prefix="mtp.", layer="mtp.layers.0.", names=("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"),
                         experts=5),
}
M_HEADS, M_KV_HEADS, M_FFN, EXPERT_FFN, GROUPS, GROUPS_CHOSEN, CHOSEN, ROUTED_FACTOR = 4, 2, 20, 10, 3, 2, 3, 2.5
Q_RANK, KV_RANK, NOPE, ROPE, VALUE, LATENT_EPS = 20, 18, 10, 6, 12, 1e-6
YARN = dict(rope_type="yarn", factor=4.0, beta_fast=4.0, beta_slow=1.0, mscale=0.8, mscale_all_dim=1.2, original_max_position_embeddings=32)


def rms_latent(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + LATENT_EPS) * weight


def yarn_turned(x):
    """[T, heads, ROPE], neighbours as real and imaginary parts, each row at its own index."""
    log = lambda scale: 0.1 * scale * math.log(YARN["factor"]) + 1
    border = lambda turns: ROPE * math.log(YARN["original_max_position_embeddings"] / (turns * 2 * math.pi)) / (2 * math.log(THETA))
    low, high = max(math.floor(border(YARN["beta_fast"])), 0), min(math.ceil(border(YARN["beta_slow"])), ROPE - 1)
    slowed = ((torch.arange(ROPE // 2).float() - low) / (high - low)).clamp(0, 1)
    frequency = THETA ** (-torch.arange(0, ROPE, 2).float() / ROPE)
    frequency = frequency * (1 - slowed) + frequency / YARN["factor"] * slowed
    turn = torch.polar(torch.tensor(log(YARN["mscale"]) / log(YARN["mscale_all_dim"])), torch.outer(torch.arange(len(x)).float(), frequency))
    return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous()) * turn[:, None]).flatten(-2)


def causal(q, k, v, scale):
    """[T, dims] of one head each."""
    scores = (q @ k.T * scale).masked_fill(torch.ones(len(q), len(q)).triu(1).bool(), float("-inf"))
    return scores.softmax(-1) @ v


def latent_attention(w, x):
    """DeepSeek-V3's, with keys and values of every head spelt out."""
    T = len(x)
    q = (rms_latent(x @ w("q_a_proj").T, w("q_a_layernorm")) @ w("q_b_proj").T).view(T, M_HEADS, NOPE + ROPE)
    latent, turned = (x @ w("kv_a_proj_with_mqa").T).split((KV_RANK, ROPE), -1)
    k, v = (rms_latent(latent, w("kv_a_layernorm")) @ w("kv_b_proj").T).view(T, M_HEADS, NOPE + VALUE).split((NOPE, VALUE), -1)
    q = torch.cat((q[..., :NOPE], yarn_turned(q[..., NOPE:])), -1)
    k = torch.cat((k, yarn_turned(turned[:, None]).expand(T, M_HEADS, ROPE)), -1)
    scale = (0.1 * YARN["mscale_all_dim"] * math.log(YARN["factor"]) + 1) ** 2 / (NOPE + ROPE) ** 0.5
    return torch.cat([causal(q[:, h], k[:, h], v[:, h], scale) for h in range(M_HEADS)], -1) @ w("o_proj").T


def qwen_attention(w, x):
    q, k, v = ((x @ w(n + "_proj").T).view(len(x), -1, HEAD_DIM) for n in "qkv")
    q, k = rotated(rms(q, w("q_norm"))), rotated(rms(k, w("k_norm")))
    each = M_HEADS // M_KV_HEADS
    return torch.cat([causal(q[:, h], k[:, h // each], v[:, h // each], HEAD_DIM ** -0.5) for h in range(M_HEADS)], -1) @ w("o_proj").T


def swiglu(w, at, x):
    return torch.nn.functional.silu(x @ w(at + "gate_proj").T) * (x @ w(at + "up_proj").T) @ w(at + "down_proj").T


def mixture(w, o, x):
    """Row by row: of DeepSeek-V3 corrected sigmoids in groups beside a shared expert, of Qwen3 shares of a softmax."""
    rows = []
    for row in x:
        logits = w("gate") @ row
        if o.get("latent"):
            scores = logits.sigmoid()
            choice = scores + w("gate.e_score_correction_bias", "")
            best = choice.view(GROUPS, -1).topk(2).values.sum(-1).topk(GROUPS_CHOSEN).indices
            allowed = torch.zeros(GROUPS, dtype=torch.bool).index_fill_(0, best, True).repeat_interleave(o["experts"] // GROUPS)
            chosen = choice.masked_fill(~allowed, float("-inf")).topk(CHOSEN).indices
            weights = scores[chosen] / scores[chosen].sum() * ROUTED_FACTOR
        else:
            weights, chosen = logits.softmax(-1).topk(CHOSEN)
            weights = weights / weights.sum()
        out = sum(weight * swiglu(w, f"experts.{e}.", row) for weight, e in zip(weights, chosen.tolist()))
        rows.append(out + swiglu(w, "shared_experts.", row) if o.get("latent") else out)
    return torch.stack(rows)


def module_rows(t, o, target, tokens, g):
    """Pairs of states g and the tokens behind them: logits, and the state that goes on."""
    fc, token_norm, hidden_norm, output_norm = (t[o["prefix"] + n + ".weight"] for n in o["names"])
    w = lambda at: lambda n, tail=".weight": t[o["layer"] + at + n + tail]
    e = target["model.embed_tokens.weight"][tokens]
    x = torch.cat((rms(e, token_norm), rms(g, hidden_norm)), -1) @ fc.T
    x = x + (latent_attention if o.get("latent") else qwen_attention)(w("self_attn."), rms(x, w("")("input_layernorm")))
    h = rms(x, w("")("post_attention_layernorm"))
    x = x + (mixture(w("mlp."), o, h) if o.get("experts") else swiglu(w("mlp."), "", h))
    final = rms(x, output_norm)
    return final @ t.get(o["prefix"] + "shared_head.head.weight", target["model.embed_tokens.weight"]).T, final


def write_module(root, name, seed, o):
    generator, t, directory = torch.Generator().manual_seed(seed), {}, root / name
    target = {k: v.float() for k, v in load_file(TARGET / "model.safetensors").items()}
    def add(name, *shape):
        noise = torch.randn(shape, generator=generator)
        scaled = 1 + 0.3 * noise if "norm" in name else 0.2 * noise if name.endswith("bias") else noise * (
            0.5 if "shared_head" in name else 1.5 / shape[-1] ** 0.5)
        t[name] = scaled.half().float()
    fc, *norms = o["names"]
    add(f"{o['prefix']}{fc}.weight", HIDDEN, 2 * HIDDEN)
    for n in norms:
        add(f"{o['prefix']}{n}.weight", HIDDEN)
    if o.get("own_head"):
        add(o["prefix"] + "shared_head.head.weight", VOCAB, HIDDEN)
    for n in ("input_layernorm", "post_attention_layernorm"):
        add(f"{o['layer']}{n}.weight", HIDDEN)
    at = o["layer"] + "self_attn."
    if o.get("latent"):
        matrices = (("q_a", Q_RANK, HIDDEN), ("q_b", M_HEADS * (NOPE + ROPE), Q_RANK), ("kv_b", M_HEADS * (NOPE + VALUE), KV_RANK),
                    ("o", HIDDEN, M_HEADS * VALUE))
        add(at + "kv_a_proj_with_mqa.weight", KV_RANK + ROPE, HIDDEN)
        add(at + "q_a_layernorm.weight", Q_RANK)
        add(at + "kv_a_layernorm.weight", KV_RANK)
    else:
        matrices = (("q", M_HEADS * HEAD_DIM, HIDDEN), ("k", M_KV_HEADS * HEAD_DIM, HIDDEN), ("v", M_KV_HEADS * HEAD_DIM, HIDDEN),
                    ("o", HIDDEN, M_HEADS * HEAD_DIM))
        add(at + "q_norm.weight", HEAD_DIM)
        add(at + "k_norm.weight", HEAD_DIM)
    for n, rows, columns in matrices:
        add(f"{at}{n}_proj.weight", rows, columns)
    at = o["layer"] + "mlp."
    blocks = [(f"experts.{e}.", EXPERT_FFN) for e in range(o["experts"])] if o.get("experts") else [("", M_FFN)]
    if o.get("experts"):
        add(at + "gate.weight", o["experts"], HIDDEN)
    if o.get("latent"):
        add(at + "gate.e_score_correction_bias", o["experts"])
        blocks.append(("shared_experts.", EXPERT_FFN))
    for block, columns in blocks:
        for n, rows, inputs in (("gate", columns, HIDDEN), ("up", columns, HIDDEN), ("down", HIDDEN, columns)):
            add(f"{at}{block}{n}_proj.weight", rows, inputs)
    golden, largest = {}, 0.0
    for n, T in enumerate((1, 37)):
        ids = torch.randint(0, VOCAB, (T + 3,), generator=generator)
        states = torch.randn((T, HIDDEN), generator=generator)
        g, rows = rms(states, target["model.norm.weight"]), []
        for step in range(3):  # the pair of position t has the token at t + 1
            logits, out = module_rows(t, o, target, ids[1:T + 1 + step], g)
            rows.append(logits[-1])
            g = torch.cat((g, out[-1:]))
        golden |= {f"ids.{n}": ids.to(torch.int32), f"states.{n}": states, f"logits.{n}": torch.stack(rows)}
        largest = max(largest, torch.stack(rows).abs().max().item())
    config = dict(LAYER, num_attention_heads=M_HEADS, num_key_value_heads=M_KV_HEADS, intermediate_size=M_FFN, attention_bias=False)
    if o.get("latent"):
        del config["head_dim"]
        config |= dict(architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", num_hidden_layers=2, num_key_value_heads=M_HEADS,
                       num_nextn_predict_layers=1, q_lora_rank=Q_RANK, kv_lora_rank=KV_RANK, qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE,
                       v_head_dim=VALUE, first_k_dense_replace=1, n_routed_experts=o["experts"], num_experts_per_tok=CHOSEN, n_group=GROUPS,
                       topk_group=GROUPS_CHOSEN, topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=True, n_shared_experts=1,
                       moe_intermediate_size=EXPERT_FFN, routed_scaling_factor=ROUTED_FACTOR, rope_scaling=YARN)
    elif o.get("experts"):
        config |= dict(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_experts=o["experts"], num_experts_per_tok=CHOSEN,
                       moe_intermediate_size=EXPERT_FFN, norm_topk_prob=True)
    else:
        config |= dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    save_file({k: v.half() for k, v in t.items()}, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(golden, directory / "golden.safetensors")
    for file in directory.iterdir():
        file.chmod(0o644)
    print(f"{name:20} {sum(f.stat().st_size for f in directory.iterdir()):7} bytes, largest |logit| {largest:.2f}")


def compare_module(root, name, o):
    """The golden logits beside those of the layer of transformers that such a module has."""
    import importlib
    from transformers import AutoConfig
    family = "deepseek_v3" if o.get("latent") else "qwen3_moe" if o.get("experts") else "qwen3"
    library = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    settings = json.loads((root / name / "config.json").read_text())
    settings |= dict(num_hidden_layers=3)
    config = AutoConfig.for_model(**{k: v for k, v in settings.items() if k != "architectures"})
    config._attn_implementation = "eager"
    classes = {"deepseek_v3": "DeepseekV3", "qwen3_moe": "Qwen3Moe", "qwen3": "Qwen3"}[family]
    layer = getattr(library, classes + "DecoderLayer")(config, 2).eval().float()
    rotation = getattr(library, classes + "RotaryEmbedding")(config)
    t = {k: v.float() for k, v in load_file(root / name / "model.safetensors").items()}
    target = {k: v.float() for k, v in load_file(TARGET / "model.safetensors").items()}
    own = {k[len(o["layer"]):]: v for k, v in t.items() if k.startswith(o["layer"])}
    if o.get("experts"):  # there in two tensors
        each = lambda n: [own.pop(f"mlp.experts.{e}.{n}_proj.weight") for e in range(o["experts"])]
        own["mlp.experts.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in zip(each("gate"), each("up"))])
        own["mlp.experts.down_proj"] = torch.stack(each("down"))
    layer.load_state_dict({k: v for k, v in own.items() if k in layer.state_dict()})
    fc, token_norm, hidden_norm, output_norm = (t[o["prefix"] + n + ".weight"] for n in o["names"])
    head = t.get(o["prefix"] + "shared_head.head.weight", target["model.embed_tokens.weight"])
    golden, apart = load_file(root / name / "golden.safetensors"), 0.0
    for n in range(2):
        ids, g = golden[f"ids.{n}"].long(), rms(golden[f"states.{n}"], target["model.norm.weight"])
        for step in range(3):
            e = target["model.embed_tokens.weight"][ids[1:len(g) + 1]]
            x = (torch.cat((rms(e, token_norm), rms(g, hidden_norm)), -1) @ fc.T)[None]
            positions = torch.arange(len(g))[None]
            mask = torch.full((len(g), len(g)), float("-inf")).triu(1)[None, None]
            with torch.no_grad():
                out = layer(x, attention_mask=mask, position_ids=positions, position_embeddings=rotation(x, positions))
            final = rms((out[0] if isinstance(out, tuple) else out)[0], output_norm)
            apart = max(apart, (final[-1] @ head.T - golden[f"logits.{n}"][step]).abs().max().item())
            g = torch.cat((g, final[-1:]))
    print(f"{name:20} logits at most {apart:.1e} apart from those of transformers")


def ffn_of(target):
    return target["model.layers.0.mlp.gate_proj.weight"].shape[0]


def main():
    if sys.argv[1:] == ["--compare"]:
        for name, o in MODULES.items():
            compare_module(Path(__file__).parent / "heads", name, o)
        return
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "heads"
    target = {k: v.float() for k, v in load_file(TARGET / "model.safetensors").items()}
    for seed, (name, (kind, o)) in enumerate(NAMES.items()):
        directory = root / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        generator = torch.Generator().manual_seed(seed)
        tensors = random_tensors(kind, o, generator)
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        (directory / "config.json").write_text(json.dumps(config_of(kind, o), indent=2, sort_keys=True) + "\n")
        reference, golden, largest = Reference(kind, tensors, o, target), {}, 0.0
        for n, T in enumerate((1, 37)):
            ids = torch.randint(0, VOCAB, (T + 3,), generator=generator)
            states = torch.randn((T, (3 if kind == "eagle3" else 1) * HIDDEN), generator=generator)
            g, rows = reference.committed(states), []
            for step in range(3):  # the pair of position t has the token at t + 1
                logits, out = reference.rows(ids[1:T + 1 + step], g)
                rows.append(logits[-1])
                g = torch.cat((g, out[-1:]))
            golden |= {f"ids.{n}": ids.to(torch.int32), f"states.{n}": states, f"logits.{n}": torch.stack(rows)}
            largest = max(largest, torch.stack(rows).abs().max().item())
        save_file(golden, directory / "golden.safetensors")
        for file in directory.iterdir():
            file.chmod(0o644)
        print(f"{name:20} {sum(f.stat().st_size for f in directory.iterdir()):7} bytes, largest |logit| {largest:.2f}")
    write_medusa(root, "medusa", 20, layers=1, renamed=False)
    write_medusa(root, "medusa-renamed", 21, layers=2, renamed=True)
    write_medusa(root, "medusa-shared", 22, layers=1, renamed=True, known=100)
    for seed, (name, o) in enumerate(BLOCKS.items()):
        write_block(root, name, 30 + seed, o)
    for seed, (name, o) in enumerate(HYDRAS.items()):
        write_hydra(root, name, 40 + seed, o)
    for seed, (name, o) in enumerate(MODULES.items()):
        write_module(root, name, 50 + seed, o)


if __name__ == "__main__":
    main()
