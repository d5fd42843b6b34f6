"""Blocks of tokens in one pass: DFlash and DSpark."""
import torch

from .common import (FFN, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYER, LAYERS, VOCAB, Noise, attention_of_heads, load_target, rms, rotated, silu,
                     write_head)

# name -> what its config and tensors have
BLOCKS = {
    "dflash": dict(layers=2, block=5, taps=[1, 2], norms=True, mask=301),
    "dflash-causal": dict(layers=1, block=3, taps=[2], causal=True, bias=True, mask=0, known=VOCAB),
    "dspark": dict(layers=1, block=4, taps=[0, 1, 2], norms=True, mask=7, known=120, rank=12, wrapper=True, embedding=True),
    # Without "is_causal", layers with a window are causal and others are not.
    "dflash-window": dict(layers=3, block=4, taps=[1, 2], norms=True, mask=301, window=6, types="sfs"),
    "dflash-window-ahead": dict(layers=2, block=5, taps=[1, 2], norms=True, mask=11, window=7, types="sf", causal=False),
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
        slides = o.get("types", "f" * o["layers"])[l] == "s"
        behind = torch.arange(T, T + b)[:, None] - torch.arange(T + b)  # of a query, how far a key is
        seen = behind >= 0 if o.get("causal", slides) else torch.ones(b, T + b).bool()
        if slides:
            seen = seen & (behind < o["window"])
        x = x + attention_of_heads(q, k, v, seen) @ w("self_attn.o_proj").T + bias("self_attn.o_proj")
        h = rms(x, w("post_attention_layernorm"))
        gate, up = (h @ w(f"mlp.{n}_proj").T + bias(f"mlp.{n}_proj") for n in ("gate", "up"))
        x = x + silu(gate) * up @ w("mlp.down_proj").T + bias("mlp.down_proj")
    logits = rms(x, t["norm.weight"]) @ t.get("lm_head.weight", target["model.embed_tokens.weight"]).T
    if not o.get("rank"):
        return logits[1:]
    return logits + t["markov_head.markov_w1.weight"][before] @ t["markov_head.markov_w2.weight"].T  # from the anchor on


def write_block(root, name, seed, o):
    noise, target = Noise(seed, ("embed", "lm_head", "markov")), load_target()
    add, t = noise.add, noise.tensors
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
        noise.add_known_tokens(known)
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
        if "window" in o:
            config |= dict(sliding_window=o["window"], use_sliding_window=True, max_window_layers=o["layers"],
                           layer_types=[dict(s="sliding_attention", f="full_attention")[t] for t in o["types"]])
            config |= dict(is_causal=False) if "causal" in o else {}
    tokens, golden = o["block"] - (0 if o.get("rank") else 1), {}
    for n, T in enumerate((1, 37)):
        states, ids = noise.states(T, len(o["taps"]) * HIDDEN), noise.ids(T + 1 + tokens)
        rows = [block_logits(t, o, target, states[:end], ids[end].item(), ids[end:end + tokens]) for end in (T - 1, T)]
        golden |= {f"states.{n}": states, f"ids.{n}": ids.to(torch.int32), f"logits.{n}": torch.stack(rows).contiguous()}
    write_head(root, name, config, t, golden)


def write_all(root):
    for seed, (name, o) in enumerate(BLOCKS.items()):
        write_block(root, name, 30 + seed, o)
