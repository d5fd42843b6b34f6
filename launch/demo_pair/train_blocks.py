#!/usr/bin/env python3
"""Trains heads that say several tokens in one pass for the demo target: a DSpark block and Medusa's branches (docs/heads.md has
their equations). Reads the texts that `train_heads.py sample` wrote.

  train_blocks.py dspark --work W --minutes M             train (resumes from W/dspark.pt)
  train_blocks.py medusa --work W --minutes M
  train_blocks.py export --work W --out .                 write OUT/dspark and OUT/medusa, those that were trained
  train_blocks.py report --work W                         acceptance on texts that were held out, as Markdown

Shapes are chosen by what a pass reads: one layer, few keys and values, an output head of the 2048 tokens that the target writes
most, which all rows share, and transitions of rank 48.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from train import EPS, MAX_POS, THETA, VOCAB, rotate
from train_heads import ANCHORS, agrees, arguments, distance, draft_vocabulary, export, kept_tokens, linear, report, target_rows, train

HEADS, KV_HEADS, HEAD_DIM, FFN, KNOWN, RANK = 8, 2, 32, 384, 2048, 48
TOKENS, MASK, TAPS = 4, 3, (5, 9)           # tokens of a block or branch; id of a masked token; layers whose inputs are read


# ---------------------------------------------------------------- heads
class Block(nn.Module):
    """DFlash with DSpark's transitions: row j of a block at position t says token t + j + 1."""

    def __init__(self, target, kept):
        super().__init__()
        d = target.shape[0]
        self.q, self.o = linear(d, HEADS * HEAD_DIM), linear(HEADS * HEAD_DIM, d)
        self.k, self.v = linear(d, KV_HEADS * HEAD_DIM), linear(d, KV_HEADS * HEAD_DIM)
        self.gate, self.up, self.down = linear(d, FFN), linear(d, FFN), linear(FFN, d)
        for small in (self.o, self.down):
            small.weight.data *= 0.2
        self.input_norm, self.mlp_norm, self.norm, self.hidden_norm = (nn.RMSNorm(d, EPS) for _ in range(4))
        self.q_norm, self.k_norm = nn.RMSNorm(HEAD_DIM, EPS), nn.RMSNorm(HEAD_DIM, EPS)
        self.norm.weight.data.copy_(target.norm.weight.data)
        self.fc, self.lm_head = linear(len(TAPS) * d, d), linear(d, len(kept))
        self.lm_head.weight.data.copy_(target.embed_tokens.weight.data[kept])
        self.markov_from, self.markov_to = nn.Embedding(VOCAB, RANK), linear(RANK, len(kept))
        self.markov_from.weight.data *= 0.1
        self.markov_to.weight.data *= 0.1
        self.register_buffer("kept", kept)
        self.target = [target]                                      # no part of it

    def logits(self, ids, taps, hn, anchors):
        """[B, anchors, TOKENS, known]; the block at t reads the states of positions before t, and its transitions the text's own
        tokens, as they are where everything in front was accepted."""
        target, (B, T), A = self.target[0], ids.shape, len(anchors)
        context = self.hidden_norm(self.fc(taps))
        at = anchors[:, None] + torch.arange(TOKENS)                # positions of rows, [A, TOKENS]
        x = torch.cat((target.embed_tokens(ids[:, anchors])[:, :, None],
                       target.embed_tokens.weight[MASK].expand(B, A, TOKENS - 1, -1)), 2)
        y = self.input_norm(x).view(B, A * TOKENS, -1)
        cos, sin = target.cos[at.flatten()], target.sin[at.flatten()]
        split = lambda p, rows: p(rows).view(B, rows.shape[1], -1, HEAD_DIM).transpose(1, 2)
        q = rotate(self.q_norm(split(self.q, y)), cos, sin)
        kb, vb = rotate(self.k_norm(split(self.k, y)), cos, sin), split(self.v, y)
        kc, vc = rotate(self.k_norm(split(self.k, context)), target.cos[:T], target.sin[:T]), split(self.v, context)
        wide = lambda t: t.repeat_interleave(HEADS // KV_HEADS, 1)
        kc, vc = wide(kc), wide(vc)
        kb, vb = (wide(t).view(B, HEADS, A, TOKENS, HEAD_DIM) for t in (kb, vb))
        seen = (torch.arange(T) < anchors[:, None]).repeat_interleave(TOKENS, 0)
        far = (q @ kc.transpose(-1, -2)).masked_fill(~seen, -1e30).view(B, HEADS, A, TOKENS, T)
        near = q.view(B, HEADS, A, TOKENS, HEAD_DIM) @ kb.transpose(-1, -2)
        p = F.softmax(torch.cat((far, near), -1) * HEAD_DIM ** -0.5, -1)
        out = (p[..., :T].reshape(B, HEADS, A * TOKENS, T) @ vc).view(B, HEADS, A, TOKENS, HEAD_DIM) + p[..., T:] @ vb
        x = x + self.o(out.permute(0, 2, 3, 1, 4).reshape(B, A, TOKENS, -1))
        h = self.mlp_norm(x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return self.lm_head(self.norm(x)) + self.markov_to(self.markov_from(ids[:, at]))


class Branches(nn.Module):
    """Medusa: branch j reads what the target's head read at t - 1, where token t was chosen, and says token t + j + 1."""

    def __init__(self, target, kept):
        super().__init__()
        d = target.shape[0]
        self.branch = nn.ModuleList(linear(d, d) for _ in range(TOKENS))
        for branch in self.branch:
            branch.weight.data *= 0.1
        self.lm_head = linear(d, len(kept))
        self.lm_head.weight.data.copy_(target.embed_tokens.weight.data[kept])
        self.register_buffer("kept", kept)
        self.target = [target]                                      # no part of it

    def logits(self, ids, taps, hn, anchors):
        x = hn[:, anchors - 1]
        return torch.stack([self.lm_head(x + F.silu(branch(x))) for branch in self.branch], 2)


def new_head(kind, target, windows):
    return {"dspark": Block, "medusa": Branches}[kind](target, kept_tokens(windows, KNOWN))


def losses(head, ids, taps, hn, progress):
    """Later tokens count less."""
    anchors = torch.randperm(ids.shape[1] - TOKENS - 1)[:ANCHORS] + 1
    p, weight = target_rows(head, hn)[:, rows_of(anchors)], 0.8 ** torch.arange(TOKENS)
    by_token = distance(p, head.logits(ids, taps, hn, anchors), progress).mean((0, 1))
    return (weight * by_token).sum() / weight.sum()


def rows_of(anchors):
    """Positions whose rows of the target say what the draft at each anchor says: [anchors, TOKENS]."""
    return anchors[:, None] + torch.arange(TOKENS)


def agreement(head, ids, taps, hn):
    anchors = torch.arange(1, ids.shape[1] - TOKENS, 3)
    return agrees(head, hn[:, rows_of(anchors)], head.logits(ids, taps, hn, anchors))


# ---------------------------------------------------------------- export
LAYER = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj", "gate": "mlp.gate_proj",
         "up": "mlp.up_proj", "down": "mlp.down_proj", "input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
         "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
NAMES = {"fc": "fc", "lm_head": "lm_head", "norm": "norm", "hidden_norm": "hidden_norm", "markov_from": "markov_head.markov_w1",
         "markov_to": "markov_head.markov_w2", **{n: "layers.0." + to for n, to in LAYER.items()}}


def published(kind, weights, kept):
    if kind == "medusa":
        named = {f"blocks.{n.split('.')[1]}.layers.0.weight" if n.startswith("branch") else "lm_heads.0.weight": v
                 for n, v in weights.items()}
        return named | {"token_map": kept}, dict(
            architectures=["MedusaModel"], model_type="medusa", hidden_size=256, vocab_size=VOCAB, num_heads=TOKENS,
            num_hidden_layers=1, truncated_vocab_size=len(kept), original_lm_head=True, medusa_fc_bias=False)
    layer = dict(model_type="qwen3", hidden_size=256, intermediate_size=FFN, num_hidden_layers=1, num_attention_heads=HEADS,
                 num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, hidden_act="silu", max_position_embeddings=MAX_POS,
                 rms_norm_eps=EPS, rope_theta=THETA, vocab_size=VOCAB, attention_bias=False)
    return {NAMES[n] + ".weight": v for n, v in weights.items()} | draft_vocabulary(kept), dict(
        architectures=["DSparkSpeculator"], model_type="speculators", speculators_model_type="dspark", block_size=TOKENS,
        sample_from_anchor=True, mask_token_id=MASK, aux_hidden_state_layer_ids=list(TAPS), draft_vocab_size=len(kept),
        target_hidden_size=256, markov_rank=RANK, markov_head_type="vanilla", enable_confidence_head=False,
        transformer_layer_config=layer)


def main():
    kinds = ("dspark", "medusa")
    a = arguments(__doc__, (*kinds, "export", "report"))
    if a.command == "export":
        return export(a, kinds, published)
    if a.command == "report":
        return report(a, kinds, new_head, agreement, TAPS, TOKENS)
    train(a, a.command, new_head, losses, TAPS)


if __name__ == "__main__":
    main()
