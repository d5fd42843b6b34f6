"""What the golden heads share: the sizes of their target, the equations that several kinds have, random tensors, and how a head is
written. Equations are by whole sequences and without caches, so that they share nothing with the engine or with
launch/demo_pair/train_heads.py.
"""
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

HEADS_FOLDER = Path(__file__).parent.parent / "heads"
TARGET = Path(__file__).parent.parent / "models" / "qwen3"
HIDDEN, VOCAB, LAYERS, EPS, THETA, TARGET_THETA = 64, 302, 2, 1e-3, 10000.0, 1e6
HEADS, KV_HEADS, HEAD_DIM, FFN = 6, 2, 16, 52

LAYER = dict(model_type="llama", hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=1, num_attention_heads=HEADS,
             num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, hidden_act="silu", max_position_embeddings=128, rms_norm_eps=EPS,
             rope_theta=THETA, vocab_size=VOCAB)


def load_target():
    return {k: v.float() for k, v in load_file(TARGET / "model.safetensors").items()}


def rms(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def rotated(x, theta=THETA):
    """[T, heads, head_dim], each row at its own index."""
    T, _, d = x.shape
    angle = torch.outer(torch.arange(T).float(), theta ** (-torch.arange(0, d, 2).float() / d))
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., : d // 2], x[..., d // 2:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attention_of_heads(q, k, v, seen=None):
    """[rows, heads, head_dim], heads in groups over those of k and v; causal, unless `seen` says which keys a row sees."""
    if seen is None:
        seen = torch.ones(len(q), len(k)).tril().bool()
    outs = []
    for h in range(q.shape[1]):
        kv = h // (q.shape[1] // k.shape[1])
        scores = (q[:, h] @ k[:, kv].T / HEAD_DIM ** 0.5).masked_fill(~seen, float("-inf"))
        outs.append(scores.softmax(-1) @ v[:, kv])
    return torch.cat(outs, -1)


def silu(x):
    return torch.nn.functional.silu(x)


class Noise:
    """Random tensors in the order in which they are asked for. Norms are around 1, biases small, tables (names with one of `tables` in
    them) of deviation 0.5, and matrices keep the size of what they are given."""

    def __init__(self, seed, tables, bias=0.3):
        self.generator, self.tables, self.bias, self.tensors = torch.Generator().manual_seed(seed), tables, bias, {}

    def add(self, name, *shape):
        noise = torch.randn(shape, generator=self.generator)
        self.tensors[name] = 1 + 0.3 * noise if "norm" in name else self.bias * noise if name.endswith("bias") else noise * (
            0.5 if any(table in name for table in self.tables) else 1.5 / shape[-1] ** 0.5)

    def add_known_tokens(self, count):
        """A draft vocabulary: which of the target's tokens it has."""
        kept = torch.randperm(VOCAB, generator=self.generator)[:count].sort().values
        self.tensors["d2t"] = kept - torch.arange(count)
        self.tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, kept, True)

    def states(self, *shape):
        return torch.randn(shape, generator=self.generator)

    def ids(self, count):
        return torch.randint(0, VOCAB, (count,), generator=self.generator)


def three_steps(noise, golden, n, length, width, committed, rows_of):
    """Of a head over pairs: logits behind length - 1 pairs, and behind each of two drafted tokens."""
    ids, states = noise.ids(length + 3), noise.states(length, width)
    g, rows = committed(states), []
    for step in range(3):  # the pair of position t has the token at t + 1
        logits, out = rows_of(ids[1:length + 1 + step], g)
        rows.append(logits[-1])
        g = torch.cat((g, out[-1:]))
    golden |= {f"ids.{n}": ids.to(torch.int32), f"states.{n}": states, f"logits.{n}": torch.stack(rows)}


def write_head(root, name, config, tensors, golden):
    directory = root / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(golden, directory / "golden.safetensors")
    for file in directory.iterdir():
        file.chmod(0o644)
    largest = max(v.abs().max().item() for k, v in golden.items() if k.startswith("logits"))
    print(f"{name:20} {sum(f.stat().st_size for f in directory.iterdir()):7} bytes, largest |logit| {largest:.2f}")
