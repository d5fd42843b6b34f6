#!/usr/bin/env python3
"""Trains drafters that read the demo target's states: an EAGLE-3 head and an MTP module (docs/heads.md has their equations).
train_blocks.py trains the heads that say several tokens in one pass, with the texts, the loop and the exporter from here.

  train_heads.py sample --program OUTRIDER --work W --windows N   let the engine write texts with the demo target
  train_heads.py eagle3 --work W --minutes M                      train (resumes from W/eagle3.pt)
  train_heads.py mtp    --work W --minutes M
  train_heads.py export --work W --out .                          write OUT/eagle3 and OUT/mtp, those that were trained
  train_heads.py report --work W                                  acceptance on texts that were held out, as Markdown

What the target computes on the texts is stored in W/states.bin by whichever training comes first (2.6 GB, some minutes). The
learning rate follows the training time used against --minutes. Needs what train.py needs.
"""
import argparse, json, math, os, pathlib, shutil, subprocess, time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from train import EPS, MAX_POS, THETA, VOCAB, load_export, rotate

HERE = pathlib.Path(__file__).parent
HEADS, KV_HEADS, FFN, DRAFT_VOCAB, STEPS = 8, 4, 384, 2048, 4
TAPS = (2, 5, 7)                            # layers (of n = 10) whose inputs are read: 2, n / 2 and n - 3
STORED = (2, 5, 7, 9)                       # layers whose inputs are stored, for all kinds of heads
WINDOW, HELD = 512, 64                      # tokens of a text; texts that no head is trained on
ANCHORS = 160                               # places in each text that a step of training looks at


# ---------------------------------------------------------------- texts
def cmd_sample(a):
    """Texts from nothing at temperatures 1 and 0.7, and from their first words at 0."""
    windows = []
    for share, temperature, is_begun in ((0.5, 1.0, False), (0.25, 0.7, False), (0.25, 0.0, True)):
        n = int(a.windows * share)
        prompts = [tokenizer().decode(w[1:10 + i % 8]) for i, w in enumerate(windows[:n])] if is_begun else [""] * n
        lines = [{"prompt": p, "temperature": temperature, "seed": 1000 * len(windows) + i, "max_tokens": WINDOW - 20,
                  "ignore_eos": True} for i, p in enumerate(prompts)]
        (a.work / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        subprocess.run([a.program, "generate", "--model", str(HERE / "target"), "--prompts", str(a.work / "prompts.jsonl"),
                        "--output", str(a.work / "texts.jsonl"), "--max-num-seqs", "64", "--threads", "1", "--quiet", "--overwrite"], check=True)
        for p, line in zip(prompts, (a.work / "texts.jsonl").read_text().splitlines()):
            ids = tokenizer().encode(p).ids + json.loads(line)["token_ids"]
            windows.append(ids[:WINDOW - 20])
    np.save(a.work / "windows.npy", np.array([w for w in windows if len(w) == WINDOW - 20], np.uint16)[
        np.random.default_rng(a.seed).permutation(len(windows))])


def tokenizer():
    from tokenizers import Tokenizer
    return Tokenizer.from_file(str(HERE / "target" / "tokenizer.json"))


# ---------------------------------------------------------------- the target's side
@torch.no_grad()
def states_of(target, ids):
    """The residual stream at the stored layers, one behind the other, and what the head of the target reads, at each position."""
    x, states = target.embed_tokens(ids), []
    for i, layer in enumerate(target.layers):
        if i in STORED:
            states.append(x)
        x = layer(x, target.cos[:ids.shape[1]], target.sin[:ids.shape[1]], None)
    return torch.cat(states + [target.norm(x)], -1)


class Texts:
    """The texts of `sample` with the target's states, in bf16 as the engine keeps them. Writes the states where they are missing."""

    def __init__(self, a, target, taps):
        self.ids = torch.from_numpy(np.load(a.work / "windows.npy").astype(np.int64))
        self.width, path = target.shape[0], a.work / "states.bin"
        shape = (*self.ids.shape, (len(STORED) + 1) * self.width)
        text_bytes = 2 * shape[1] * shape[2]
        with open(path, "ab") as f:
            done = f.tell() // text_bytes
            f.truncate(done * text_bytes)
            for ids in self.ids[done:].split(16) if done < len(self.ids) else ():
                with torch.autocast("cpu", torch.bfloat16, enabled=a.bf16):
                    states = states_of(target, ids)
                f.write(states.bfloat16().view(torch.int16).numpy().tobytes())
                done += len(ids)
                if done % 256 == 0:
                    print(f"states of {done} of {len(self.ids)} texts, {time.process_time() / 60:.1f} min", flush=True)
        self.states = np.memmap(path, np.int16, "r", shape=shape)
        self.columns = [STORED.index(layer) for layer in taps]

    def read(self, rows):
        """Token ids, states at the taps, and what the target's head reads."""
        states = torch.from_numpy(self.states[rows.numpy()]).view(torch.bfloat16).float().split(self.width, -1)
        taps = torch.cat([states[i] for i in self.columns], -1) if self.columns else None
        return self.ids[rows], taps, states[-1]

    def held_out(self):
        return (self.read(rows) for rows in torch.arange(HELD).split(4))


def target_rows(head, hn):
    """What the target says behind these positions, over the tokens that the head knows."""
    with torch.autocast("cpu", enabled=False):
        p = F.softmax(F.linear(hn, head.target[0].embed_tokens.weight), -1)
    return p if len(head.kept) == VOCAB else p[..., head.kept]


# ---------------------------------------------------------------- heads
def linear(inputs, outputs):
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=inputs ** -0.5)
    return layer


class Head(nn.Module):
    """One layer that reads pairs: the state of position t and the token at t + 1. Row t stands at rotary position t."""

    def __init__(self, kind, target, kept=None):
        super().__init__()
        d = target.shape[0]
        self.kind, self.d, self.hd = kind, d, d // HEADS
        wide = 2 * d if kind == "eagle3" else d
        self.q, self.k, self.v = linear(wide, d), linear(wide, KV_HEADS * self.hd), linear(wide, KV_HEADS * self.hd)
        self.o, self.gate, self.up, self.down = linear(d, d), linear(d, FFN), linear(d, FFN), linear(FFN, d)
        for small in (self.o, self.down):
            small.weight.data *= 0.2
        self.token_norm, self.hidden_norm, self.mlp_norm, self.norm = (nn.RMSNorm(d, EPS) for _ in range(4))
        self.norm.weight.data.copy_(target.norm.weight.data)
        if kind == "eagle3":
            self.fc = linear(len(TAPS) * d, d)
            self.lm_head = linear(d, len(kept))
            self.lm_head.weight.data.copy_(target.embed_tokens.weight.data[kept])
        else:
            self.fc = linear(2 * d, d)
            self.input_norm = nn.RMSNorm(d, EPS)
        self.register_buffer("kept", kept if kept is not None else torch.arange(VOCAB))
        self.target = [target]                                      # no part of it

    def layer(self, e, g, cos, sin, before):
        """before: keys and values of earlier steps, of step i for the rows that it drafted. Returns the state that goes on
        and what the output head reads."""
        B, T, _ = e.shape
        if self.kind == "eagle3":
            x, residual = torch.cat((self.token_norm(e), self.hidden_norm(g)), -1), g
        else:
            residual = self.fc(torch.cat((self.hidden_norm(g), self.token_norm(e)), -1))
            x = self.input_norm(residual)
        q, k, v = (p(x).view(B, T, -1, self.hd).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
        before.append((k, v))
        j, scale = len(before), self.hd ** -0.5                     # this is step j, from 1 on
        k1, v1 = before[0]
        t = torch.arange(T)
        seen = t[None, :] <= t[:, None] - (j - 1)                   # committed pairs, up to where the draft began
        scores = (q @ k1.transpose(-1, -2) * scale).masked_fill(~seen, -1e30)
        shifted = lambda x, by: F.pad(x, (0, 0, by, 0))[:, :, :T]
        drafted = [(shifted(ki, j - 2 - i), shifted(vi, j - 2 - i)) for i, (ki, vi) in enumerate(before[1:])]
        extra = [(q * ki).sum(-1, keepdim=True) * scale for ki, _ in drafted]
        p = F.softmax(torch.cat([scores] + extra, -1), -1)
        out = p[..., :T] @ v1
        for i, (_, vi) in enumerate(drafted):
            out = out + p[..., T + i:T + i + 1] * vi
        y = residual + self.o(out.transpose(1, 2).reshape(B, T, -1))
        h = self.mlp_norm(y)
        y = y + self.down(F.silu(self.gate(h)) * self.up(h))
        final = self.norm(y)
        return (y if self.kind == "eagle3" else final), final

    def logits(self, final):
        return F.linear(final, self.lm_head.weight if self.kind == "eagle3" else self.target[0].embed_tokens.weight)

    def unrolled(self, ids, taps, hn, steps):
        """What the output head reads in steps 1, 2, ...: row t of step j drafts position t + 2, from states that end at
        t - j + 1."""
        T = ids.shape[1] - 1
        target = self.target[0]
        e, g = target.embed_tokens(ids[:, 1:]), self.fc(taps[:, :T]) if self.kind == "eagle3" else hn[:, :T]
        before, finals = [], []
        for _ in range(steps):
            out, final = self.layer(e, g, target.cos[:T], target.sin[:T], before)
            finals.append(final)
            g = F.pad(out, (0, 0, 1, 0))[:, :T]
        return finals


def kept_tokens(windows, count=DRAFT_VOCAB):
    """The tokens that the target writes most, in the order of their ids; the end of a text is among them."""
    counts = torch.bincount(windows.flatten(), minlength=VOCAB)
    counts[:2] += windows.numel()
    return counts.argsort(descending=True)[:count].sort().values


def new_head(kind, target, windows):
    return Head(kind, target, kept_tokens(windows) if kind == "eagle3" else None)


def losses(head, ids, taps, hn, progress):
    """Over all steps; later ones count less."""
    at = torch.randperm(ids.shape[1] - STEPS)[:ANCHORS] + STEPS - 1
    p, weight = target_rows(head, hn[:, at + 1]), 0.8 ** torch.arange(STEPS)
    by_step = [distance(p, head.logits(final[:, at]), progress).mean() for final in head.unrolled(ids, taps, hn, STEPS)]
    return (weight * torch.stack(by_step)).sum() / weight.sum()


def distance(p, logits, progress):
    """KL(target || head) at first, then more and more of one minus the acceptance."""
    q, w = F.log_softmax(logits.float(), -1), max(0.0, min(1.0, (progress - 0.3) / 0.5))
    return -(1 - 0.8 * w) * (p * q).sum(-1) + 2 * w * (1 - torch.minimum(p, q.exp()).sum(-1))


# ---------------------------------------------------------------- training
def train(a, kind, new_head=new_head, losses=losses, taps=TAPS):
    torch.manual_seed(a.seed)
    target = load_export(HERE / "target").requires_grad_(False)
    texts = Texts(a, target, taps)
    head, path = new_head(kind, target, texts.ids[HELD:]), a.work / f"{kind}.pt"
    of_tokens = lambda n: n.startswith(("lm_head", "markov"))       # a row for each token
    matrices = [p for n, p in head.named_parameters() if p.dim() == 2 and not of_tokens(n)]
    rest = [p for n, p in head.named_parameters() if p.dim() == 1 or of_tokens(n)]
    opts = [torch.optim.AdamW(rest, lr=a.lr, betas=(0.9, 0.95), weight_decay=0.0),
            torch.optim.Muon(matrices, lr=a.lr, weight_decay=0.02, momentum=0.95, adjust_lr_fn="match_rms_adamw")]
    step, used, running = 0, 0.0, None
    generator = torch.Generator().manual_seed(a.seed)
    if path.exists():
        ck = torch.load(path)
        head.load_state_dict(ck["head"])
        for o, s in zip(opts, ck["opts"]):
            o.load_state_dict(s)
        step, used, running = ck["step"], ck["used"], ck["running"]
        generator.set_state(ck["rng"])
        print(f"resumed at step {step}, {used / 60:.1f} min", flush=True)
    print(f"{kind}: {sum(p.numel() for p in head.parameters())} parameters, {texts.ids[HELD:].numel()} tokens of text", flush=True)

    def save():
        torch.save({"head": head.state_dict(), "opts": [o.state_dict() for o in opts], "step": step, "used": used,
                    "running": running, "rng": generator.get_state()}, str(path) + ".tmp")
        os.replace(str(path) + ".tmp", path)

    saved, first, begun = used, step, used
    while used < a.minutes * 60:
        t0, progress = time.process_time(), used / (a.minutes * 60)
        lr = a.lr * min(1.0, (step - first + 1) / 20) * (0.02 + 0.49 * (1 + math.cos(math.pi * progress)))
        for o in opts:
            for group in o.param_groups:
                group["lr"] = lr
        batch = texts.read(HELD + torch.randint(len(texts.ids) - HELD, (a.rows,), generator=generator))
        with torch.autocast("cpu", torch.bfloat16, enabled=a.bf16):
            loss = losses(head, *batch, progress)
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for o in opts:
            o.step()
            o.zero_grad()
        step, running = step + 1, loss.item() if running is None else 0.97 * running + 0.03 * loss.item()
        used += time.process_time() - t0                            # of this process: others may have the cores
        if step % 20 == 0:
            print(f"step {step} {used / 60:.1f}/{a.minutes} min loss {running:.4f} "
                  f"{batch[0].numel() * (step - first) / max(1e-9, used - begun):.0f} tok/s", flush=True)
        if used - saved > 60:
            saved = used
            save()
    save()


# ---------------------------------------------------------------- export
NAMES = {
    "eagle3": {"fc": "fc", "q": "midlayer.self_attn.q_proj", "k": "midlayer.self_attn.k_proj", "v": "midlayer.self_attn.v_proj",
               "o": "midlayer.self_attn.o_proj", "gate": "midlayer.mlp.gate_proj", "up": "midlayer.mlp.up_proj",
               "down": "midlayer.mlp.down_proj", "token_norm": "midlayer.input_layernorm", "hidden_norm": "midlayer.hidden_norm",
               "mlp_norm": "midlayer.post_attention_layernorm", "norm": "norm", "lm_head": "lm_head"},
    "mtp": {n: "model.mtp_layers.0." + to for n, to in {
        "fc": "input_proj", "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
        "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj", "token_norm": "token_layernorm",
        "hidden_norm": "hidden_layernorm", "input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
        "norm": "final_layernorm"}.items()},
}


def published(kind, weights, kept):
    """Tensors and config.json as they are published."""
    tensors = {NAMES[kind][n] + ".weight": v for n, v in weights.items()}
    config = dict(model_type="llama", hidden_size=256, intermediate_size=FFN, num_hidden_layers=1, num_attention_heads=HEADS,
                  num_key_value_heads=KV_HEADS, head_dim=32, hidden_act="silu", max_position_embeddings=MAX_POS, rms_norm_eps=EPS,
                  rope_theta=THETA, rope_scaling=None, vocab_size=VOCAB, tie_word_embeddings=False, torch_dtype="bfloat16")
    if kind == "mtp":
        return tensors, dict(config, architectures=["MiMoMTPModel"], model_type="mimo", num_nextn_predict_layers=1)
    return tensors | draft_vocabulary(kept), dict(
        architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=len(kept), target_hidden_size=256,
        eagle_aux_hidden_state_layer_ids=list(TAPS), **config)


def draft_vocabulary(kept):
    return {"d2t": kept - torch.arange(len(kept)), "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, kept, True)}


def export(a, kinds, published=published):
    from safetensors.torch import save_file
    for kind in kinds:
        if not (a.work / f"{kind}.pt").exists():
            continue
        ck = torch.load(a.work / f"{kind}.pt")
        weights = {n.removesuffix(".weight"): v.to(torch.bfloat16).contiguous() for n, v in ck["head"].items() if n != "kept"}
        tensors, config = published(kind, weights, ck["head"]["kept"])
        out = a.out / kind
        out.mkdir(parents=True, exist_ok=True)
        save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
        os.chmod(out / "model.safetensors", 0o644)
        (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        print(f"{out}: {sum(v.numel() for v in weights.values())} parameters, step {ck['step']}, {ck['used'] / 60:.1f} min")


# ---------------------------------------------------------------- report
@torch.no_grad()
def report(a, kinds, new_head=new_head, agreement=None, taps=TAPS, tokens=6):
    agreement = agreement or agreement_by_step
    target = load_export(HERE / "target")
    texts = Texts(a, target, taps)
    print("| head | temperature | " + " | ".join(f"token {j + 1}" for j in range(tokens)) + " |\n" + "|---" * (tokens + 2) + "|")
    for kind in kinds:
        if not (a.work / f"{kind}.pt").exists():
            continue
        head = new_head(kind, target, texts.ids[HELD:])
        head.load_state_dict(torch.load(a.work / f"{kind}.pt")["head"])
        sums = sum(agreement(head, *batch) * len(batch[0]) / HELD for batch in texts.held_out())
        for temperature, row in zip((0, 1), sums):
            print(f"| {kind} | {temperature} | " + " | ".join(f"{x:.3f}" for x in row) + " |", flush=True)


def agrees(head, hn, logits):
    """Share of equal best tokens, and mean acceptance."""
    best = F.linear(hn, head.target[0].embed_tokens.weight).argmax(-1)
    same = head.kept[logits.argmax(-1)] == best
    both = torch.minimum(target_rows(head, hn), F.softmax(logits, -1)).sum(-1)
    return torch.stack((same.float().mean((0, 1)), both.mean((0, 1))))


def agreement_by_step(head, ids, taps, hn):
    """[2, tokens]"""
    finals = head.unrolled(ids, taps, hn, 6)
    return torch.stack([agrees(head, hn[:, 1 + j:], head.logits(final[:, j:])) for j, final in enumerate(finals)], -1)


def arguments(description, commands):
    ap = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("command", choices=commands)
    ap.add_argument("--work", required=True, type=pathlib.Path, help="work directory (texts, checkpoints)")
    ap.add_argument("--out", type=pathlib.Path, default=HERE, help="where the heads go (export)")
    ap.add_argument("--program", default="outrider", help="the engine (sample)")
    ap.add_argument("--windows", type=int, default=2048, help="texts to write (sample)")
    ap.add_argument("--minutes", type=float, default=20, help="of processor time; the learning rate decays against it")
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--rows", type=int, default=4, help="texts a step")
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--bf16", action="store_true", help="multiply in bf16")
    ap.add_argument("--seed", type=int, default=20)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    a.work.mkdir(parents=True, exist_ok=True)
    return a


def main():
    kinds = ("eagle3", "mtp")
    a = arguments(__doc__, ("sample", *kinds, "export", "report"))
    if a.command in kinds:
        return train(a, a.command)
    {"sample": cmd_sample, "export": lambda a: export(a, kinds), "report": lambda a: report(a, kinds)}[a.command](a)


if __name__ == "__main__":
    main()
