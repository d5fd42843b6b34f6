"""Heads over pairs of a state and the token behind it: EAGLE-3, EAGLE, and MiMo's module of multi-token prediction."""
import torch

from .common import (HEAD_DIM, HIDDEN, FFN, HEADS, KV_HEADS, LAYER, VOCAB, Noise, attention_of_heads, load_target, rms, rotated, silu,
                     three_steps, write_head)

# name -> (kind, options)
NAMES = {
    "eagle3": ("eagle3", dict(draft_vocab=90, layer="midlayer.")),
    "eagle3-speculators": ("eagle3", dict(draft_vocab=120, layer="layers.0.", wrapper=True, norm_before_residual=True,
                                          norm_before_fc=True, norm_output=True, own_embedding=True)),
    "eagle3-fc-norm": ("eagle3", dict(draft_vocab=VOCAB, layer="midlayer.", fc_norm=True, bias=True)),
    "eagle": ("eagle", dict(layer="layers.0.")),
    "mtp": ("mtp", dict(layer="model.mtp_layers.0.", bias=True)),
}


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
        out = attention_of_heads(q, k, v) @ self.layer("self_attn.o_proj.weight").T
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
        y = y + silu(gate) * up @ self.layer("mlp.down_proj.weight").T + self.t.get(
            self.o["layer"] + "mlp.down_proj.bias", 0)
        if self.kind == "eagle":
            return y @ self.head.T, y
        final = rms(y, self.t["norm.weight"] if self.kind == "eagle3" else self.layer("final_layernorm.weight"))
        return final @ self.head.T, final if self.kind == "mtp" or self.o.get("norm_output") else y


def random_tensors(kind, o, noise):
    layer, add = o["layer"], noise.add
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
            noise.add_known_tokens(o["draft_vocab"])
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


def write_all(root):
    target = load_target()
    for seed, (name, (kind, o)) in enumerate(NAMES.items()):
        noise, golden = Noise(seed, ("embed", "lm_head")), {}
        random_tensors(kind, o, noise)
        reference = Reference(kind, noise.tensors, o, target)
        for n, length in enumerate((1, 37)):
            three_steps(noise, golden, n, length, (3 if kind == "eagle3" else 1) * HIDDEN, reference.committed, reference.rows)
        write_head(root, name, config_of(kind, o), noise.tensors, golden)
