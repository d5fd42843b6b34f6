#!/usr/bin/env python3
"""Trains the demo pair: a small Llama-architecture target and a smaller draft distilled on it.

  train.py tokenizer --data DIR --work W             clean the corpora, train the BPE, encode
  train.py target    --data DIR --work W --minutes M train the target (resumes from W/target.pt)
  train.py grow      --data DIR --work W             deepen the best target so far to the shape below
  train.py draft     --data DIR --work W --minutes M distil the draft on W/target.best.pt (resumes)
  train.py export    --data DIR --work W --out DIR   write OUT/target and OUT/draft (Hugging Face layout)
  train.py report    --data DIR --work W --out DIR   measure the exported pair, print Markdown

DIR holds tinystories/tinystories_{cased_1MB,lower_4MB}.txt and novels/*.txt.
Learning rates follow the training time used against --minutes, so that a run always ends annealed.
Needs torch >= 2.9 (for torch.optim.Muon), tokenizers, safetensors, numpy.
"""
import argparse, collections, concurrent.futures, json, math, os, pathlib, re, shutil, time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

BOS, EOS, VOCAB, MAX_POS, EPS, THETA = 0, 1, 4096, 512, 1e-5, 10000.0
HELD_NOVELS = ("Doyle_Hound_1902", "Burnett_Garden_1911", "Stevenson_Treasure_1883")
SHAPES = {"target": (256, 10, 8, 4, 704), "draft": (96, 2, 8, 4, 256)}  # hidden, layers, heads, kv heads, ffn
SEEDLING = (256, 4, 8, 4, 704)                                      # the target begins as this; `grow` deepens it
FINAL = {"target": "target.best.pt", "draft": "draft.pt"}           # the draft aims at acceptance, not at its own held-out loss
TEXTS = ("stories_train", "stories_held", "novels_train", "novels_held")


# ---------------------------------------------------------------- corpora
def plain(text):
    """Undo lower-cased UTF-8-read-as-cp1252 quotes and dashes; straighten the typographic ones."""
    for bad, good in (("â€œ", '"'), ("â€\x9d", '"'), ("â€™", "'"), ("â€˜", "'"), ("â€“", " - "), ("â€”", " - "), ("â€¦", "..."), ("â€", '"'),
                      ("\r\n", "\n"), ("\t", " "), ("\xa0", " "), ("—", "--"), ("…", "...")):
        text = text.replace(bad, good)
    return text.translate({0x201c: '"', 0x201d: '"', 0x2018: "'", 0x2019: "'", 0x2013: "-", 0xfeff: None, 0xad: None})


def split_stories(text):
    """A single line end separates stories (a blank line separates paragraphs). A few stories use it inside,
    so the story before it must have some length, or the next line must be a usual opening."""
    opening = re.compile(r"\s*(once|one (sunny |rainy |hot |cold |fine )?(day|night|morning)|there (once )?(was|were|lived)|long ago)\b", re.I)
    stories = [""]
    for block in re.split(r"(?<!\n)\n(?!\n)", text):
        if stories[-1] and (len(stories[-1]) >= 350 or opening.match(block)):
            stories.append(block)
        else:
            stories[-1] += ("\n\n" if stories[-1] else "") + block
    return [re.sub(r" +\n|\n{3,}", lambda m: "\n" if m[0][0] == " " else "\n\n", s).strip() for s in stories]


def recase(lower, cased):
    """Give lower-cased stories their capitals back: sentence starts, I, and names. A word is a name if the cased part
    writes it with a capital inside sentences, or if it is unknown there and follows 'named' or 'called'."""
    inner = collections.defaultdict(collections.Counter)
    for m in re.finditer(r"(?<=[a-z,;] )[A-Za-z]+", cased):
        inner[m[0].lower()][m[0]] += 1
    case = {w: c.most_common(1)[0][0] for w, c in inner.items()}
    for name in set(re.findall(r"\b(?:named|called|name (?:was|is)) ([a-z]{3,})\b", lower)):
        case.setdefault(name, name.capitalize())
    case = {w: c for w, c in case.items() if c != w and len(w) > 1} | {"i": "I", "mr": "Mr", "mrs": "Mrs"}
    text = re.sub(r"(?<![a-z]')\b[a-z]+", lambda m: case.get(m[0], m[0]), lower)
    start = r"(^|[.!?][\"']?\s+[\"']?|\n\s*[\"']?|[,:] \")([a-z])"                          # also of speech: said, "
    text = re.sub(start, lambda m: m[1] + m[2].upper(), text)
    return re.sub(r"([!?]\" )(He|She|They|The|It|His|Her)(?= (?:said|asked|cried|shouted|replied|yelled|exclaimed)\b)",
                  lambda m: m[1] + m[2].lower(), text)


def read_stories(data):
    cased, lower = (plain((pathlib.Path(data) / "tinystories" / f).read_text(encoding="utf8")).strip()
                    for f in ("tinystories_cased_1MB.txt", "tinystories_lower_4MB.txt"))
    tail = cased[-60:].lower()                                      # the lower-cased file repeats the cased one first
    lower = lower[lower.index(tail) + len(tail):].strip()
    return [s for s in split_stories(cased) + split_stories(recase(lower, cased)) if len(s) > 80]


def read_novel(path):
    lines = plain(path.read_text(encoding="utf8")).split("\n")
    blank = sum(not l.strip() for l in lines) / len(lines)
    if blank >= 0.1:
        paras = re.split(r"\n\s*\n", "\n".join(lines))
    elif np.percentile([len(l) for l in lines], 90) >= 90:
        paras = lines
    else:                                                           # hard-wrapped: a short line with an end ends a paragraph
        paras = [""]
        for l in lines:
            paras[-1] += ("" if not paras[-1] or paras[-1].endswith("-") else " ") + l.strip()
            if len(l) < 55 and re.search(r"[.!?][\"']?$", l.strip()):
                paras.append("")
        paras.pop()
    docs = [""]                                                     # sections of some paragraphs, about 1500 characters
    for p in paras:
        p = re.sub(r"([a-z])- ([a-z])", r"\1\2", re.sub(r"\s+", " ", p)).strip()
        if p:
            docs[-1] += ("\n\n" if docs[-1] else "") + p
        if len(docs[-1]) >= 1500:
            docs.append("")
    return [d for d in docs if d]


def cmd_tokenizer(a):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    stories, novels = read_stories(a.data), {False: [], True: []}
    for p in sorted((pathlib.Path(a.data) / "novels").glob("*.txt")):
        novels[p.stem in HELD_NOVELS] += read_novel(p)
    cut = int(len(stories) * 0.95)
    docs = dict(zip(TEXTS, (stories[:cut], stories[cut:], novels[False], novels[True])))
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tok.train_from_iterator(docs["stories_train"] + docs["novels_train"][::5], trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<s>", "</s>"], show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", BOS)])
    assert tok.get_vocab_size() == VOCAB and tok.token_to_id("<s>") == BOS and tok.token_to_id("</s>") == EOS
    tok.save(str(a.work / "tokenizer.json"))
    for name, ds in docs.items():
        ids, text = np.concatenate([np.array(e.ids + [EOS], np.uint16) for e in tok.encode_batch(ds)]), "\n\n".join(ds)
        np.save(a.work / f"{name}.npy", ids)
        (a.work / f"{name}.txt").write_text(text, encoding="utf8")
        print(f"{name}: {len(ds)} documents, {len(text.encode())} bytes, {len(ids)} tokens", flush=True)


# ---------------------------------------------------------------- model (exactly Hugging Face Llama)
def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Layer(nn.Module):
    def __init__(self, d, heads, kv, ffn):
        super().__init__()
        self.hd = d // heads
        linears = lambda **sizes: nn.ModuleDict({k + "_proj": nn.Linear(*s, bias=False) for k, s in sizes.items()})
        self.self_attn = linears(q=(d, d), k=(d, kv * self.hd), v=(d, kv * self.hd), o=(d, d))
        self.mlp = linears(gate=(d, ffn), up=(d, ffn), down=(ffn, d))
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(d, EPS), nn.RMSNorm(d, EPS)

    def forward(self, x, cos, sin, cache):
        B, T, _ = x.shape
        s, m, h = self.self_attn, self.mlp, self.input_layernorm(x)
        q, k, v = (s[n](h).view(B, T, -1, self.hd).transpose(1, 2) for n in ("q_proj", "k_proj", "v_proj"))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is not None:
            if "k" in cache:
                k, v = torch.cat((cache["k"], k), 2), torch.cat((cache["v"], v), 2)
            cache["k"], cache["v"] = k, v
        rep = q.shape[1] // k.shape[1]
        o = F.scaled_dot_product_attention(q, k.repeat_interleave(rep, 1), v.repeat_interleave(rep, 1), is_causal=T > 1)
        x = x + s["o_proj"](o.transpose(1, 2).reshape(B, T, -1))
        h = self.post_attention_layernorm(x)
        return x + m["down_proj"](F.silu(m["gate_proj"](h)) * m["up_proj"](h))


class Llama(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = tuple(shape)
        d, n, heads, kv, ffn = shape
        self.embed_tokens = nn.Embedding(VOCAB, d)                  # tied with the output
        self.layers = nn.ModuleList(Layer(d, heads, kv, ffn) for _ in range(n))
        self.norm = nn.RMSNorm(d, EPS)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * n) if name.endswith(("o_proj.weight", "down_proj.weight")) else 1))
        angles = torch.outer(torch.arange(MAX_POS).float(), 1.0 / THETA ** (torch.arange(0, d // heads, 2).float() / (d // heads)))
        self.cos, self.sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()

    def forward(self, ids, cache=None):
        past = cache[0]["k"].shape[2] if cache and "k" in cache[0] else 0
        span, x = slice(past, past + ids.shape[1]), self.embed_tokens(ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, self.cos[span], self.sin[span], cache[i] if cache is not None else None)
        return F.linear(self.norm(x), self.embed_tokens.weight)


@torch.no_grad()
def generate(model, prompt, n, temperature, specials=False):
    """Continues every row of prompt, [B, T] token ids, by n tokens; without specials, texts do not end earlier."""
    cache, out = [{} for _ in model.layers], [prompt]
    for _ in range(n):
        logits = model(out[-1], cache)[:, -1].float()
        if not specials:
            logits[:, :2] = -torch.inf
        out.append(torch.multinomial(F.softmax(logits / temperature, -1), 1) if temperature else logits.argmax(-1, keepdim=True))
    return torch.cat(out, 1)


# ---------------------------------------------------------------- training
class Batches:
    def __init__(self, work, seed):
        self.ids = {k: torch.from_numpy(np.load(work / f"{k}.npy").astype(np.int64)) for k in TEXTS}
        self.starts = {k: (v == BOS).nonzero()[:, 0] for k, v in self.ids.items()}
        self.g = torch.Generator().manual_seed(seed)

    def draw(self, rows, length, story_share):
        """Windows of the document stream; half of them begin where a document begins."""
        out = []
        for _ in range(rows):
            r = torch.rand(2, generator=self.g)
            k = "stories_train" if r[0] < story_share else "novels_train"
            ids, starts = self.ids[k], self.starts[k]
            at = starts[torch.randint(len(starts), (1,), generator=self.g)] if r[1] < 0.5 else torch.randint(len(ids), (1,), generator=self.g)
            at = min(int(at), len(ids) - length - 1)
            out.append(ids[at:at + length + 1])
        return torch.stack(out)

    @torch.no_grad()
    def held_loss(self, model, name, windows, length=256):
        """Mean cross-entropy per predicted token, over windows spread evenly."""
        ids, losses = self.ids[name], []
        for at in torch.linspace(0, len(ids) - length - 2, windows).long().split(16):
            b = torch.stack([ids[i:i + length + 1] for i in at])
            losses.append(F.cross_entropy(model(b[:, :-1]).flatten(0, 1), b[:, 1:].flatten(), reduction="none"))
        return torch.cat(losses).mean().item()


def train(a, name, data, draw, loss_of):
    """The common loop, on draw(progress, rows, length) and loss_of(model, batch, progress); progress runs 0..1 with the time
    used. Threads take small parts of each batch from a queue: on a shared machine that wastes less than splitting each
    operation between the threads, where the one beside another program is waited for every time."""
    torch.manual_seed(a.seed)
    path = a.work / f"{name}.pt"
    model = Llama(torch.load(path)["shape"] if path.exists() else SEEDLING if name == "target" else SHAPES[name])
    hidden = [p for p in model.layers.parameters() if p.dim() == 2]
    rest = [{"params": [model.embed_tokens.weight], "weight_decay": 0.02},
            {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    opts = [torch.optim.AdamW(rest, lr=a.lr, betas=(0.9, 0.95), fused=True)] + [
        torch.optim.Muon(hidden[i::4], lr=a.lr, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw") for i in range(4)]
    step, tokens, used, curve = 0, 0, 0.0, []
    if path.exists():
        ck = torch.load(path)
        model.load_state_dict(ck["model"])
        for o, s in zip(opts, ck["opts"]):                          # none after `grow`
            o.load_state_dict(s)
        step, tokens, used, curve = ck["step"], ck["tokens"], ck["used"], ck["curve"]
        data.g.set_state(ck["rng"])
        print(f"resumed at step {step}, {used / 60:.1f} min", flush=True)
    print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters", flush=True)
    budget, saved, running, first, resumed = a.minutes * 60, used, None, step, used
    pool = concurrent.futures.ThreadPoolExecutor(a.threads, initializer=torch.set_num_threads, initargs=(1,))

    def part_loss(part, progress, share):
        loss = loss_of(model, part, progress)
        (loss * share).backward()
        return loss.item() * share

    def save():
        held = {k: data.held_loss(model, k, 48) for k in ("stories_held", "novels_held")}
        curve.append({"step": step, "tokens": tokens, "minutes": used / 60, "train_loss": running, **held})
        print(f"  held-out: stories {held['stories_held']:.4f} novels {held['novels_held']:.4f}", flush=True)
        torch.save({"model": model.state_dict(), "opts": [o.state_dict() for o in opts], "step": step, "tokens": tokens, "used": used,
                    "curve": curve, "rng": data.g.get_state(), "shape": model.shape}, str(path) + ".tmp")
        os.replace(str(path) + ".tmp", path)
        if held["stories_held"] <= min(c["stories_held"] for c in curve):      # early stopping: this target is exported
            shutil.copy(path, a.work / f"{name}.best.pt")

    while used < budget:
        t0, progress = time.time(), used / budget
        scale = min(1.0, (step - first + 1) / a.warmup) * (0.02 + 0.49 * (1 + math.cos(math.pi * progress)))
        for o in opts:
            for g in o.param_groups:
                g["lr"] = a.lr * scale
        rows, length = (a.rows // 2, 512) if step % 10 == 9 else (a.rows, 256)  # every tenth step trains on 512 positions
        batch = draw(progress, rows, length)
        loss = sum(pool.map(lambda p: part_loss(p, progress, len(p) / rows), batch.split(1024 // length)))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        list(pool.map(lambda o: (o.step(), o.zero_grad()), opts))
        step, tokens = step + 1, tokens + rows * length
        running = loss if running is None else 0.98 * running + 0.02 * loss
        used += time.time() - t0
        if step % 20 == 0:
            print(f"step {step} {used / 60:.1f}/{a.minutes} min loss {running:.4f} {(step - first) * a.rows * 256 / (used - resumed):.0f} tok/s lr {a.lr * scale:.5f}", flush=True)
        if used - saved > a.save_every:
            saved = used
            save()
    save()


def cmd_target(a):
    data = Batches(a.work, a.seed)
    train(a, "target", data, lambda progress, rows, length: data.draw(rows, length, a.stories[0] + (a.stories[1] - a.stories[0]) * progress),
          lambda model, b, progress: F.cross_entropy(model(b[:, :-1]).flatten(0, 1), b[:, 1:].flatten()))


def cmd_grow(a):
    """Every layer is repeated behind itself. A copy's output projections start at zero, so that the deeper model computes what
    the small one did, and its other weights start where they are useful."""
    torch.manual_seed(a.seed)
    ck = torch.load(a.work / "target.best.pt")
    old, model = ck["shape"], Llama(SHAPES["target"])
    weights = {k: v for k, v in ck["model"].items() if not k.startswith("layers.")}
    depth, seen = model.shape[1], set()
    for i in range(depth):
        source = i * old[1] // depth
        for k in [k for k in ck["model"] if k.startswith(f"layers.{source}.")]:
            w = ck["model"][k].clone()
            if source in seen and k.endswith(("o_proj.weight", "down_proj.weight")):
                w.zero_()
            weights[k.replace(f"layers.{source}.", f"layers.{i}.", 1)] = w
        seen.add(source)
    model.load_state_dict(weights)
    shutil.copy(a.work / "target.best.pt", a.work / "target.seedling.pt")
    (a.work / "target.best.pt").unlink()
    torch.save({"model": model.state_dict(), "opts": [], "step": ck["step"], "tokens": ck["tokens"], "used": 0.0, "curve": [],
                "rng": ck["rng"], "shape": model.shape}, a.work / "target.pt")
    print(f"{old[1]} layers became {depth}: {sum(p.numel() for p in model.parameters())} parameters")


def load(work, name):
    ck = torch.load(work / FINAL[name])
    model = Llama(ck["shape"])
    model.load_state_dict(ck["model"])
    return model.eval(), ck


def cmd_draft(a):
    """Distils on corpus text and on text the target sampled: first KL(target || draft), then more and more of the total
    variation distance, which is exactly one minus the acceptance of speculative sampling."""
    data, (target, _), path = Batches(a.work, a.seed + 1), load(a.work, "target"), a.work / "sampled.pt"
    if not path.exists():
        torch.manual_seed(a.seed + 2)
        parts = []
        while 128 * len(parts) < a.sampled:
            parts.append(generate(target, data.draw(128, 256, 0.8)[:, :8], 249, (1.0, 0.7)[len(parts) % 2], specials=True))
            print(f"sampled {128 * len(parts)} windows from the target", flush=True)
        torch.save(torch.cat(parts), path)
    pool = torch.load(path)

    def draw(progress, rows, length):
        own = int(0.4 * rows) if length == 256 else 0
        b = data.draw(rows - own, length, 0.7)
        return torch.cat((pool[torch.randint(len(pool), (own,), generator=data.g)], b)) if own else b

    def loss_of(model, b, progress):
        with torch.no_grad():
            p = F.log_softmax(target(b[:, :-1]), -1)
        q = F.log_softmax(model(b[:, :-1]), -1)
        kl = F.kl_div(q, p, log_target=True, reduction="sum") / b[:, 1:].numel()
        w = max(0.0, min(1.0, (progress - 0.3) / 0.5))
        return (1 - 0.8 * w) * kl + (w * (p.exp() - q.exp()).abs().sum(-1).mean() if w else 0)
    train(a, "draft", data, draw, loss_of)


# ---------------------------------------------------------------- export
def cmd_export(a):
    from safetensors.torch import save_file
    for name in ("target", "draft"):
        model, ck = load(a.work, name)
        d, n, heads, kv, ffn = model.shape
        tmp, old, out = a.out / f".{name}.tmp", a.out / f".{name}.old", a.out / name
        for p in (tmp, old):
            shutil.rmtree(p, ignore_errors=True)
        tmp.mkdir(parents=True)
        save_file({"model." + k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}, tmp / "model.safetensors", metadata={"format": "pt"})
        os.chmod(tmp / "model.safetensors", 0o644)
        dump = lambda f, **x: (tmp / f).write_text(json.dumps(x, indent=2) + "\n", encoding="utf8")
        dump("config.json", architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=VOCAB, hidden_size=d, intermediate_size=ffn,
             num_hidden_layers=n, num_attention_heads=heads, num_key_value_heads=kv, head_dim=d // heads, hidden_act="silu",
             max_position_embeddings=MAX_POS, rms_norm_eps=EPS, rope_theta=THETA, rope_scaling=None, attention_bias=False, mlp_bias=False,
             attention_dropout=0.0, initializer_range=0.02, tie_word_embeddings=True, use_cache=True, bos_token_id=BOS, eos_token_id=EOS,
             torch_dtype="bfloat16")
        dump("generation_config.json", bos_token_id=BOS, eos_token_id=EOS, do_sample=True, temperature=0.8)
        dump("special_tokens_map.json", bos_token="<s>", eos_token="</s>")
        flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
        dump("tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast", bos_token="<s>", eos_token="</s>", add_bos_token=True,
             add_eos_token=False, clean_up_tokenization_spaces=False, model_max_length=MAX_POS,
             added_tokens_decoder={"0": {"content": "<s>", **flags}, "1": {"content": "</s>", **flags}})
        shutil.copy(a.work / "tokenizer.json", tmp)
        if out.exists():
            out.rename(old)
        tmp.rename(out)
        shutil.rmtree(old, ignore_errors=True)
        print(f"{out}: {sum(p.numel() for p in model.parameters())} parameters, step {ck['step']}, {ck['tokens']} tokens, {ck['used'] / 60:.1f} min")


def load_export(path):
    from safetensors.torch import load_file
    c = json.loads((path / "config.json").read_text())
    model = Llama([c[k] for k in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")])
    model.load_state_dict({k[len("model."):]: v.float() for k, v in load_file(path / "model.safetensors").items()})
    return model.eval()


# ---------------------------------------------------------------- report
@torch.no_grad()
def cmd_report(a):
    from tokenizers import Tokenizer
    tok, data = Tokenizer.from_file(str(a.out / "target" / "tokenizer.json")), Batches(a.work, a.seed)
    models = {n: load_export(a.out / n) for n in ("target", "draft")}
    texts = {k: (a.work / f"{k}.txt").read_text(encoding="utf8") for k in TEXTS}
    print("| model | parameters | steps | tokens seen | minutes | running train loss |\n|---|---|---|---|---|---|")
    for n, m in models.items():
        ck = torch.load(a.work / FINAL[n])
        print(f"| {n} | {sum(p.numel() for p in m.parameters())} | {ck['step']} | {ck['tokens']} | {ck['used'] / 60:.1f} | {ck['curve'][-1]['train_loss']:.4f} |")
    print("\n| model | text | nats/token | nats/byte | bits/byte |\n|---|---|---|---|---|")
    for n, m in models.items():
        for k in TEXTS:
            loss = data.held_loss(m, k, 100)
            byte = loss * len(data.ids[k]) / len(texts[k].encode())
            print(f"| {n} | {k.replace('_', ' ')} | {loss:.4f} | {byte:.4f} | {byte / math.log(2):.4f} |", flush=True)
    print("\n| 20 prompts x 100 tokens | T | expected acceptance | argmax agreement |\n|---|---|---|---|")
    for kind in ("stories", "novels"):
        ids, starts = data.ids[f"{kind}_held"], data.starts[f"{kind}_held"]
        prompts = torch.stack([ids[s:s + 8] for s in starts[:: len(starts) // 20][:20]])
        for T in (0, 0.7, 1.0):
            torch.manual_seed(a.seed)
            seq = generate(models["target"], prompts, 100, T)
            lp, lq = (models[n](seq[:, :-1])[:, 7:] for n in ("target", "draft"))
            same = (lp.argmax(-1) == lq.argmax(-1)).float().mean().item()
            accept = torch.minimum(F.softmax(lp / T, -1), F.softmax(lq / T, -1)).sum(-1).mean().item() if T else same
            print(f"| openings of held-out {kind} | {T} | {accept:.3f} | {same:.3f} |", flush=True)
    torch.manual_seed(a.seed)
    start = torch.tensor([tok.encode("Once upon a time").ids])
    corpus, longest = texts["stories_train"] + "\n\n" + texts["novels_train"], ""
    samples = [tok.decode(r.tolist()) for r in generate(models["target"], start.repeat(20, 1), 200, 0.8)]
    for s in samples:
        i = 0
        while i + len(longest) < len(s):                            # look only for longer runs than the longest so far
            more = s[i:i + len(longest) + 1]
            if more in corpus:
                longest = more
            else:                                                   # a run over an unknown second half is impossible too
                i += 1 if more[len(more) // 2:] in corpus else len(more) // 2 + 1
    print(f"\nLongest run of 20 samples x 200 tokens at T=0.8 found verbatim in the training text: {len(longest)} characters: {longest!r}")
    for T in (0, 0.8):
        print(f"\nT={T}: " + (tok.decode(generate(models["target"], start, 150, 0)[0].tolist()) if T == 0 else samples[0]))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("command", choices=("tokenizer", "target", "grow", "draft", "export", "report"))
    ap.add_argument("--data", required=True, help="directory with tinystories/ and novels/")
    ap.add_argument("--work", required=True, type=pathlib.Path, help="work directory (tokens, checkpoints)")
    ap.add_argument("--out", type=pathlib.Path, help="where target/ and draft/ go (export, report)")
    ap.add_argument("--minutes", type=float, default=20, help="training time; the learning rate decays against it")
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--warmup", type=int, default=60, help="steps")
    ap.add_argument("--rows", type=int, default=16, help="windows of 256 tokens a step")
    ap.add_argument("--stories", type=float, nargs=2, default=(0.35, 0.85), help="share of story windows at the start and at the end")
    ap.add_argument("--sampled", type=int, default=1024, help="draft: windows to sample from the target")
    ap.add_argument("--save-every", type=float, default=240, help="seconds of training between checkpoints")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--seed", type=int, default=20)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    a.work.mkdir(parents=True, exist_ok=True)
    globals()["cmd_" + a.command](a)


if __name__ == "__main__":
    main()
