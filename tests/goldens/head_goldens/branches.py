"""Branches: Medusa's over a state, Hydra's over a state and the tokens behind it."""
import torch

from .common import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, TARGET_THETA, VOCAB, Noise, attention_of_heads, load_target, rms, rotated, silu, write_head


def write_medusa(root, name, seed, layers, renamed, known=VOCAB):
    """Three branches over one state; each adds `layers` times silu of a linear map, and has an output head of its own, or, with fewer known
    tokens, one that is shared."""
    generator, tensors, target = torch.Generator().manual_seed(seed), {}, load_target()
    states = torch.randn((9, HIDDEN), generator=generator)
    logits = []
    for i in range(3):
        x = rms(states, target["model.norm.weight"])
        for l in range(layers):
            weight = torch.randn((HIDDEN, HIDDEN), generator=generator) * 1.5 / HIDDEN ** 0.5
            bias = 0.3 * torch.randn(HIDDEN, generator=generator)
            x = x + silu(x @ weight.T + bias)
            prefix = f"blocks.{i}.layers.{l}." if renamed else f"{i}.{l}.linear."
            tensors |= {prefix + "weight": weight, prefix + "bias": bias}
        if i == 0 or known == VOCAB:
            head = 0.5 * torch.randn((known, HIDDEN), generator=generator)
            tensors[f"lm_heads.{i}.weight" if renamed else f"{i}.{layers}.weight"] = head
        logits.append(x @ head.T)
    if known < VOCAB:
        tensors["token_map"] = torch.randperm(VOCAB, generator=generator)[:known]
    config = dict(architectures=["MedusaModel"], hidden_size=HIDDEN, vocab_size=VOCAB, num_heads=3) if renamed else dict(
        medusa_num_heads=2, medusa_num_layers=layers, base_model_name_or_path="qwen3")  # published files count wrongly
    if known < VOCAB:
        config |= dict(truncated_vocab_size=known, original_lm_head=True)
    write_head(root, name, config, tensors, {"states": states, "logits": torch.stack(logits, 1).contiguous()})


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
    q, k = rotated(q, TARGET_THETA), rotated(k, TARGET_THETA)
    x = x + attention_of_heads(q, k, v) @ t[at + "self_attn.o_proj.weight"].T
    h = rms(x, t[at + "post_attention_layernorm.weight"])
    gate, up = (h @ t[f"{at}mlp.{n}_proj.weight"].T for n in ("gate", "up"))
    x = x + silu(gate) * up @ t[at + "mlp.down_proj.weight"].T
    return rms(x, t["prefix_embeding_layer.norm.weight"])


def write_hydra(root, name, seed, o):
    """Three branches; branch i reads the state of a position and the i + 1 tokens behind it, and has an output head of its own."""
    noise, target, branches, T = Noise(seed, ("embed_", "lm_head")), load_target(), 3, 11
    add, t, ffn = noise.add, noise.tensors, target["model.layers.0.mlp.gate_proj.weight"].shape[0]
    embedding = target["model.embed_tokens.weight"]
    if o.get("prefix"):
        at, q, kv = "prefix_embeding_layer.layers.0.", HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        for n in (at + "input_layernorm", at + "post_attention_layernorm", "prefix_embeding_layer.norm"):
            add(n + ".weight", HIDDEN)
        for n, rows, columns in (("self_attn.q", q, HIDDEN), ("self_attn.k", kv, HIDDEN), ("self_attn.v", kv, HIDDEN),
                                 ("self_attn.o", HIDDEN, q), ("mlp.gate", ffn, HIDDEN), ("mlp.up", ffn, HIDDEN), ("mlp.down", HIDDEN, ffn)):
            add(f"{at}{n}_proj.weight", rows, columns)
        add("input_embed_fn.weight", VOCAB, HIDDEN)
        embedding = t["input_embed_fn.weight"]
    place = lambda l: 2 * l + 1 if o.get("prefix") else l       # a dropout in front of every module
    states, ids = noise.states(T, HIDDEN), noise.ids(T + branches)
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
            x = (linear(names[1]) if len(names) > 1 else x) + silu(linear(names[0]))
        head = f"hydra_lm_head.{i}." + ("1." if o.get("prefix") else "")
        add(head + "weight", VOCAB, HIDDEN)
        add(head + "bias", VOCAB)
        logits.append(x @ t[head + "weight"].T + t[head + "bias"])
    config = dict(hydra_num_heads=branches, hydra_num_layers=o["layers"], hydra_head_arch="prefix-mlp" if o.get("prefix") else "mlp",
                  grounded_heads=o["grounded"], hidden_state_offset=0, base_model_name_or_path="qwen3")
    write_head(root, name, config, t, {"states": states, "ids": ids.to(torch.int32), "logits": torch.stack(logits, 1).contiguous()})


def write_all(root):
    write_medusa(root, "medusa", 20, layers=1, renamed=False)
    write_medusa(root, "medusa-renamed", 21, layers=2, renamed=True)
    write_medusa(root, "medusa-shared", 22, layers=1, renamed=True, known=100)
    for seed, (name, o) in enumerate(HYDRAS.items()):
        write_hydra(root, name, 40 + seed, o)
