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
    # DFlash 2: convolutions in a block, and the best tokens of a row, scored by the token before the row.
    "dflash2": dict(layers=2, block=5, taps=[1, 2], norms=True, mask=301, window=9, types="sf", conv=2, group=8, selector=12, candidates=16,
                    embedding_scale=1.5, factor=0.8, cap=20.0),
}


def rotated_at(x, first):
    """[T, heads, head_dim], row i at position first + i."""
    filler = torch.zeros((first, *x.shape[1:]))
    return rotated(torch.cat((filler, x)))[first:]


def convolved(x, base, coefficients, group):
    """Rows of a block: base [taps, H] and coefficients [rows, taps, groups] of each row and the rows in front of it."""
    out = torch.zeros_like(x)
    for i in range(len(x)):
        for tap in range(min(len(base), i + 1)):
            out[i] += (base[tap] + coefficients[i, tap].repeat_interleave(group)) * x[i - tap]
    return out


def selected(t, o, x, logits, before):
    """The best tokens of each row, scored by the token in front of them; others are out."""
    of = lambda n: t["candidate_selector." + n]
    rows = torch.full_like(logits, float("-inf"))
    for i, row in enumerate(logits):
        best = row.topk(o["candidates"]).indices
        rows[i, best] = row[best] + of("successor_codebook")[best] @ (
            of("predecessor_codebook")[before[i]] * (of("hidden_projection.weight") @ x[i]))
    return rows


def block_logits(t, o, target, states, last, before):
    """Whole sequences: keys of all states and of the block; `before`: the tokens in front of those that the rows say."""
    T, b = len(states), o["block"]
    embedding = t.get("embed_tokens.weight", target["model.embed_tokens.weight"])
    context = rms(states @ t["fc.weight"].T, t["hidden_norm.weight"])
    x = embedding[[last] + [o["mask"]] * (b - 1)] * o.get("embedding_scale", 1)
    for l in range(o["layers"]):
        w = lambda n: t[f"layers.{l}.{n}.weight"]
        bias = lambda n: t.get(f"layers.{l}.{n}.bias", 0)
        normed = rms(x, w("input_layernorm"))
        sides = {n: (t[f"layers.{l}.{n}_conv.base_kernel"], w(n + "_conv.kernel_projection")) for n in ("attention", "mlp")} if o.get("group") else {}
        def coefficients(n, inputs, side):
            base, projection = sides[n]
            return base[side], (inputs @ projection.T).view(len(inputs), 2, len(base[0]), -1)[:, side], o["group"]
        around = lambda n, inputs, side, y: convolved(y, *coefficients(n, inputs, side)) if o.get("group") else y
        read = normed
        normed = around("attention", read, 0, read)
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
        x = x + around("attention", read, 1, attention_of_heads(q, k, v, seen) @ w("self_attn.o_proj").T + bias("self_attn.o_proj"))
        read = rms(x, w("post_attention_layernorm"))
        h = around("mlp", read, 0, read)
        gate, up = (h @ w(f"mlp.{n}_proj").T + bias(f"mlp.{n}_proj") for n in ("gate", "up"))
        x = x + around("mlp", read, 1, silu(gate) * up @ w("mlp.down_proj").T + bias("mlp.down_proj"))
    x = rms(x, t["norm.weight"])
    logits = x @ t.get("lm_head.weight", target["model.embed_tokens.weight"]).T * o.get("factor", 1)
    if o.get("cap"):
        logits = (logits / o["cap"]).tanh() * o["cap"]
    if o.get("candidates"):
        return selected(t, o, x[1:], logits[1:], before)
    if not o.get("rank"):
        return logits[1:]
    return logits + t["markov_head.markov_w1.weight"][before] @ t["markov_head.markov_w2.weight"].T  # from the anchor on


def write_block(root, name, seed, o):
    noise, target = Noise(seed, ("embed", "lm_head", "markov", "codebook")), load_target()
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
        if o.get("group"):
            for n in ("attention_conv", "mlp_conv"):
                add(f"layers.{l}.{n}.base_kernel", 2, o["conv"], HIDDEN)
                add(f"layers.{l}.{n}.kernel_projection.weight", 2 * o["conv"] * (HIDDEN // o["group"]), HIDDEN)
                t[f"layers.{l}.{n}.base_kernel"] *= 3
                t[f"layers.{l}.{n}.kernel_projection.weight"] /= 3
    if o.get("candidates"):
        add("candidate_selector.hidden_projection.weight", o["selector"], HIDDEN)
        for n in ("predecessor", "successor"):
            add(f"candidate_selector.{n}_codebook", VOCAB, o["selector"])
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
        if o.get("group"):
            config |= dict(architectures=["DFlash2DraftModel"])
            config["dflash_config"] |= dict(conv_kernel_size=o["conv"], conv_group_size=o["group"], selector_rank=o["selector"],
                                            selector_top_k=o["candidates"], input_embedding_scale=o["embedding_scale"],
                                            output_multiplier=o["factor"], final_logit_softcapping=o["cap"])
            config["dflash_config"]["block_size"] = config.pop("block_size")
    tokens, golden = o["block"] - (0 if o.get("rank") else 1), {}
    for n, T in enumerate((1, 37)):
        states, ids = noise.states(T, len(o["taps"]) * HIDDEN), noise.ids(T + 1 + tokens)
        rows = [block_logits(t, o, target, states[:end], ids[end].item(), ids[end:end + tokens]) for end in (T - 1, T)]
        golden |= {f"states.{n}": states, f"ids.{n}": ids.to(torch.int32), f"logits.{n}": torch.stack(rows).contiguous()}
    write_head(root, name, config, t, golden)


def write_all(root):
    for seed, (name, o) in enumerate(BLOCKS.items()):
        write_block(root, name, 30 + seed, o)
