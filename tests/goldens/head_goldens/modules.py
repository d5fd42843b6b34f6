"""Modules of multi-token prediction with the layers of DeepSeek-V3, of Qwen3, of GLM-4.5, of Qwen3.5 and of Qwen3-Next, in one file with what compares them with transformers."""
import json
import math

import torch
from safetensors.torch import load_file

from .common import HEAD_DIM, HIDDEN, LAYER, THETA, VOCAB, Noise, load_target, rms, rotated, silu, three_steps, write_head

# Modules of multi-token prediction whose layers are others than MiMo's: names of the tensors, and the layer. Stored in fp16.
MODULES = {
    "mtp-deepseek": dict(prefix="model.layers.2.", layer="model.layers.2.", names=("eh_proj", "enorm", "hnorm", "shared_head.norm"),
                         latent=True, experts=6, own_head=True),
    "mtp-qwen": dict(prefix="mtp.", layer="mtp.layers.0.", names=("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")),
    "mtp-qwen-moe": dict(prefix="mtp.", layer="mtp.layers.0.", names=("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"),
                         experts=5),
    "mtp-glm": dict(prefix="model.layers.2.", layer="model.layers.2.", names=("eh_proj", "enorm", "hnorm", "shared_head.norm"), glm=True,
                    experts=7, own_head=True),
    # Attention with a gate, a quarter of a head turned, norms of 1 + weight; of Qwen3-Next also experts beside a gated shared one.
    "mtp-qwen35": dict(prefix="mtp.", layer="mtp.layers.0.", names=("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"),
                       gated=True),
    "mtp-qwen-next": dict(prefix="mtp.", layer="mtp.layers.0.", names=("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"),
                          gated=True, experts=6),
}
M_HEADS, M_KV_HEADS, M_FFN, EXPERT_FFN, SHARED_FFN, GROUPS, GROUPS_CHOSEN, CHOSEN, ROUTED_FACTOR = 4, 2, 20, 10, 12, 3, 2, 3, 2.5
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


def glm_attention(w, x):
    """Biases, norms of heads, and a rotation of the first half of a head."""
    q, k, v = ((x @ w(n + "_proj").T + w(n + "_proj", ".bias")).view(len(x), -1, HEAD_DIM) for n in "qkv")
    turned = lambda y: torch.cat((rotated(y[..., :HEAD_DIM // 2]), y[..., HEAD_DIM // 2:]), -1)
    q, k = turned(rms(q, w("q_norm"))), turned(rms(k, w("k_norm")))
    each = M_HEADS // M_KV_HEADS
    return torch.cat([causal(q[:, h], k[:, h // each], v[:, h // each], HEAD_DIM ** -0.5) for h in range(M_HEADS)], -1) @ w("o_proj").T


def gated_attention(w, x):
    """Rows of q_proj are, head by head, those of the query and those of its gate."""
    T, quarter = len(x), HEAD_DIM // 4
    q, gate = (x @ w("q_proj").T).view(T, M_HEADS, 2, HEAD_DIM).unbind(2)
    k, v = ((x @ w(n + "_proj").T).view(T, M_KV_HEADS, HEAD_DIM) for n in "kv")
    turned = lambda y: torch.cat((rotated(y[..., :quarter]), y[..., quarter:]), -1)
    q, k = turned(rms(q, 1 + w("q_norm"))), turned(rms(k, 1 + w("k_norm")))
    each = M_HEADS // M_KV_HEADS
    heads = torch.stack([causal(q[:, h], k[:, h // each], v[:, h // each], HEAD_DIM ** -0.5) for h in range(M_HEADS)], 1)
    return (heads * gate.sigmoid()).flatten(1) @ w("o_proj").T


def qwen_attention(w, x):
    q, k, v = ((x @ w(n + "_proj").T).view(len(x), -1, HEAD_DIM) for n in "qkv")
    q, k = rotated(rms(q, w("q_norm"))), rotated(rms(k, w("k_norm")))
    each = M_HEADS // M_KV_HEADS
    return torch.cat([causal(q[:, h], k[:, h // each], v[:, h // each], HEAD_DIM ** -0.5) for h in range(M_HEADS)], -1) @ w("o_proj").T


def swiglu(w, at, x):
    return silu(x @ w(at + "gate_proj").T) * (x @ w(at + "up_proj").T) @ w(at + "down_proj").T


def mixture(w, o, x):
    """Row by row: of DeepSeek-V3 corrected sigmoids in groups beside a shared expert, of GLM-4.5 the same without groups, of Qwen3
    shares of a softmax, of Qwen3-Next the same beside a shared expert with a gate."""
    rows = []
    for row in x:
        logits = w("gate") @ row
        if o.get("glm"):
            scores = logits.sigmoid()
            chosen = (scores + w("gate.e_score_correction_bias", "")).topk(CHOSEN).indices
            weights = scores[chosen] / scores[chosen].sum() * ROUTED_FACTOR
        elif o.get("latent"):
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
        if o.get("latent") or o.get("glm"):
            out = out + swiglu(w, "shared_experts.", row)
        if o.get("gated"):
            out = out + (w("shared_expert_gate") @ row).sigmoid() * swiglu(w, "shared_expert.", row)
        rows.append(out)
    return torch.stack(rows)


def module_rows(t, o, target, tokens, g):
    """Pairs of states g and the tokens behind them: logits, and the state that goes on."""
    fc, *norms = (t[o["prefix"] + n + ".weight"] for n in o["names"])
    w = lambda at: lambda n, tail=".weight": t[o["layer"] + at + n + tail]
    one = 1 if o.get("gated") else 0  # what a norm adds to its weight
    token_norm, hidden_norm, output_norm = (one + norm for norm in norms)
    attention = (latent_attention if o.get("latent") else glm_attention if o.get("glm") else gated_attention if o.get("gated") else
                 qwen_attention)
    e = target["model.embed_tokens.weight"][tokens]
    x = torch.cat((rms(e, token_norm), rms(g, hidden_norm)), -1) @ fc.T
    x = x + attention(w("self_attn."), rms(x, one + w("")("input_layernorm")))
    h = rms(x, one + w("")("post_attention_layernorm"))
    x = x + (mixture(w("mlp."), o, h) if o.get("experts") else swiglu(w("mlp."), "", h))
    final = rms(x, output_norm)
    return final @ t.get(o["prefix"] + "shared_head.head.weight", target["model.embed_tokens.weight"]).T, final


class HalfNoise(Noise):
    """Numbers that fp16 has."""

    def add(self, name, *shape):
        super().add(name, *shape)
        self.tensors[name] = self.tensors[name].half().float()


def write_module(root, name, seed, o):
    noise, target, golden = HalfNoise(seed, ("shared_head",), bias=0.2), load_target(), {}
    add, t = noise.add, noise.tensors
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
        matrices = (("q", (2 if o.get("gated") else 1) * M_HEADS * HEAD_DIM, HIDDEN), ("k", M_KV_HEADS * HEAD_DIM, HIDDEN), ("v", M_KV_HEADS * HEAD_DIM, HIDDEN),
                    ("o", HIDDEN, M_HEADS * HEAD_DIM))
        add(at + "q_norm.weight", HEAD_DIM)
        add(at + "k_norm.weight", HEAD_DIM)
    for n, rows, columns in matrices:
        add(f"{at}{n}_proj.weight", rows, columns)
        if o.get("glm") and n != "o":
            add(f"{at}{n}_proj.bias", rows)
    at = o["layer"] + "mlp."
    blocks = [(f"experts.{e}.", EXPERT_FFN) for e in range(o["experts"])] if o.get("experts") else [("", M_FFN)]
    if o.get("experts"):
        add(at + "gate.weight", o["experts"], HIDDEN)
    if o.get("latent") or o.get("glm"):
        add(at + "gate.e_score_correction_bias", o["experts"])
        blocks.append(("shared_experts.", EXPERT_FFN))
    if o.get("gated") and o.get("experts"):
        add(at + "shared_expert_gate.weight", 1, HIDDEN)
        blocks.append(("shared_expert.", SHARED_FFN))
    for block, columns in blocks:
        for n, rows, inputs in (("gate", columns, HIDDEN), ("up", columns, HIDDEN), ("down", HIDDEN, columns)):
            add(f"{at}{block}{n}_proj.weight", rows, inputs)
    if o.get("gated"):
        for n in t:
            if "norm" in n:
                t[n] = (t[n] - 1).half().float()
    rows_of = lambda tokens, g: module_rows(t, o, target, tokens, g)
    for n, length in enumerate((1, 37)):
        three_steps(noise, golden, n, length, HIDDEN, lambda states: rms(states, target["model.norm.weight"]), rows_of)
    config = dict(LAYER, num_attention_heads=M_HEADS, num_key_value_heads=M_KV_HEADS, intermediate_size=M_FFN, attention_bias=False)
    if o.get("latent"):
        del config["head_dim"]
        config |= dict(architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", num_hidden_layers=2, num_key_value_heads=M_HEADS,
                       num_nextn_predict_layers=1, q_lora_rank=Q_RANK, kv_lora_rank=KV_RANK, qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE,
                       v_head_dim=VALUE, first_k_dense_replace=1, n_routed_experts=o["experts"], num_experts_per_tok=CHOSEN, n_group=GROUPS,
                       topk_group=GROUPS_CHOSEN, topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=True, n_shared_experts=1,
                       moe_intermediate_size=EXPERT_FFN, routed_scaling_factor=ROUTED_FACTOR, rope_scaling=YARN)
    elif o.get("glm"):
        config |= dict(architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", num_hidden_layers=2, num_nextn_predict_layers=1, attention_bias=True,
                       use_qk_norm=True, partial_rotary_factor=0.5, first_k_dense_replace=1, n_routed_experts=o["experts"],
                       num_experts_per_tok=CHOSEN, n_group=1, topk_group=1, norm_topk_prob=True, n_shared_experts=1,
                       moe_intermediate_size=EXPERT_FFN, routed_scaling_factor=ROUTED_FACTOR)
    elif o.get("gated"):
        config |= dict(layer_types=["full_attention"], partial_rotary_factor=0.25, mtp_num_hidden_layers=1, attn_output_gate=True)
        config |= dict(architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", num_experts=o["experts"], num_experts_per_tok=CHOSEN,
                       moe_intermediate_size=EXPERT_FFN, shared_expert_intermediate_size=SHARED_FFN, norm_topk_prob=True,
                       decoder_sparse_step=1, mlp_only_layers=[]) if o.get("experts") else dict(
                           architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", mtp_use_dedicated_embeddings=False)
    elif o.get("experts"):
        config |= dict(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_experts=o["experts"], num_experts_per_tok=CHOSEN,
                       moe_intermediate_size=EXPERT_FFN, norm_topk_prob=True)
    else:
        config |= dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3")
    write_head(root, name, config, {k: v.half() for k, v in t.items()}, golden)


def compare_module(root, name, o):
    """The golden logits beside those of the layer of transformers that such a module has."""
    import importlib
    from transformers import AutoConfig
    settings = json.loads((root / name / "config.json").read_text())
    family = settings["model_type"].removesuffix("_text")
    library = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    settings |= dict(num_hidden_layers=3)
    if o.get("gated"):
        settings |= dict(layer_types=["full_attention"] * 3)
    config = AutoConfig.for_model(**{k: v for k, v in settings.items() if k != "architectures"})
    config._attn_implementation = "eager"
    classes = {"deepseek_v3": "DeepseekV3", "glm4_moe": "Glm4Moe", "qwen3_moe": "Qwen3Moe", "qwen3": "Qwen3", "qwen3_5": "Qwen3_5",
               "qwen3_next": "Qwen3Next"}[family]
    layer = getattr(library, classes + "DecoderLayer")(config, 2).eval().float()
    rotation = getattr(library, classes + ("TextRotaryEmbedding" if family == "qwen3_5" else "RotaryEmbedding"))(config)
    t = {k: v.float() for k, v in load_file(root / name / "model.safetensors").items()}
    target = load_target()
    own = {k[len(o["layer"]):]: v for k, v in t.items() if k.startswith(o["layer"])}
    if o.get("experts"):  # there in two tensors
        each = lambda n: [own.pop(f"mlp.experts.{e}.{n}_proj.weight") for e in range(o["experts"])]
        own["mlp.experts.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in zip(each("gate"), each("up"))])
        own["mlp.experts.down_proj"] = torch.stack(each("down"))
    missing = layer.load_state_dict({k: v for k, v in own.items() if k in layer.state_dict()}, strict=False)
    assert not missing.missing_keys, missing
    fc, *norms = (t[o["prefix"] + n + ".weight"] for n in o["names"])
    token_norm, hidden_norm, output_norm = (norm + 1 if o.get("gated") else norm for norm in norms)
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


def write_all(root):
    for seed, (name, o) in enumerate(MODULES.items()):
        write_module(root, name, 50 + seed, o)


def compare_all(root):
    for name, o in MODULES.items():
        compare_module(root, name, o)
