#!/usr/bin/env python3
"""Measures published models on this machine: loading, prompts and decoding, with and without drafts, and another engine.

  launch/models
  tests/bench/real_models.py [--outrider build/release/outrider] [--models models] [--turns 3] [--tokens 128]
      [--only single,pair] [--files TEXT] [--tasks code,prose] [--peer path/to/llama-bench]

single: each model alone. Loading (the time until the first token of a prompt of one token, whole process), tokens/s of a
prompt of 512 tokens and of decoding behind it. With --peer the same file in llama-bench, in turns with ours.
pair: Qwen2.5-Coder 1.5B with its 0.5B as the draft model, by task (tests/bench/real_prompts.jsonl): tokens/s of plain decoding,
of the default policy and of fixed lengths, in turns, behind the first token, and their median ratio to plain decoding within a turn. The texts are
compared byte for byte.
Prints Markdown: medians, with the lowest and the highest of the turns. Nothing else may run on the machine. Needs Python alone.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
         "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"]
TARGET, DRAFT = FILES[3], FILES[2]
PLANS = {"plain": ["--num-speculative-tokens", "0"], "default": [], "fixed 2": ["-g", "2"], "fixed 4": ["-g", "4"],
         "fixed 8": ["-g", "8"]}


def spread(values, digits=1):
    middle, low, high = (f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})"


def generate(options, model, *flags):
    """The report, the text, and the seconds of the whole process."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        begin = time.monotonic()
        run = subprocess.run([options.outrider, "generate", "--model", str(model), "--quiet", "--report", report.name, *flags],
                             capture_output=True, check=False)
        seconds = time.monotonic() - begin
        if run.returncode != 0:
            sys.exit(run.stderr.decode(errors="replace"))
        return json.loads(Path(report.name).read_text()), run.stdout, seconds


def long_prompt(options, model, tokens):
    """A text of about so many tokens of this model."""
    text = (ROOT / "docs/a-tokens-way.md").read_text(encoding="utf-8")
    characters = 4 * tokens
    for _ in range(4):
        found = generate(options, model, "--prompt", text[:characters], "-n", "1")[0]["metrics"]["prompt_tokens"]
        characters = characters * tokens // found
    return text[:characters]


def ours(options, model, prompt):
    _, _, loading = generate(options, model, "--prompt", "a", "-n", "1")
    metrics = generate(options, model, "--prompt", prompt, "-n", str(options.tokens), "--ignore-eos")[0]["metrics"]
    return {"loading s": loading, "prompt": metrics["prompt_tokens"] / metrics["ttft"]["mean_ms"] * 1e3,
            "decoding": 1e3 / metrics["itl"]["mean_ms"]}


def peers(options, model):
    def rate(*flags):
        run = subprocess.run([options.peer, "-m", str(model), *flags, "-r", "1", "-t", str(options.threads), "-o", "json"],
                             capture_output=True, text=True, check=True)
        return json.loads(run.stdout)[0]["avg_ts"]

    # llama-bench decodes from an empty context unless -d gives it a depth.
    return {"prompt of llama.cpp": rate("-p", "512", "-n", "0"),
            "decoding of llama.cpp": rate("-p", "0", "-n", str(options.tokens), "-d", "512")}


def single(options):
    print("| model | loading, s | prompt of 512, tokens/s | llama.cpp | decoding, tokens/s | llama.cpp | ratio |")
    print("|---|---|---|---|---|---|---|")
    for file in filter(lambda name: options.files in name, FILES):
        model = options.models / file
        prompt = long_prompt(options, model, 512)
        turns = [{**ours(options, model, prompt), **(peers(options, model) if options.peer else {})}
                 for _ in range(options.turns)]
        column = {name: [turn[name] for turn in turns] for name in turns[0]}
        ratio = [turn["decoding"] / turn["decoding of llama.cpp"] for turn in turns] if options.peer else []
        print(f"| {file} | {spread(column['loading s'])} | {spread(column['prompt'], 0)} | "
              f"{spread(column['prompt of llama.cpp'], 0) if options.peer else '-'} | {spread(column['decoding'])} | "
              f"{spread(column['decoding of llama.cpp']) if options.peer else '-'} | {spread(ratio, 2) if ratio else '-'} |",
              flush=True)


def pair(options):
    print("| task | " + " | ".join(f"{name}, tokens/s" for name in PLANS) + " | accepted of drafted (fixed 4) |")
    print("|---|" + "---|" * (len(PLANS) + 1))
    for line in (ROOT / "tests/bench/real_prompts.jsonl").read_text(encoding="utf-8").splitlines():
        asked = json.loads(line)
        if options.tasks and asked["category"] not in options.tasks.split(","):
            continue
        rates, texts, accepted = {name: [] for name in PLANS}, set(), 0.0
        for _ in range(options.turns):
            for name, flags in PLANS.items():
                report, text, _ = generate(options, options.models / TARGET, "--draft-model", str(options.models / DRAFT),
                                           "--chat", "--prompt", asked["prompt"], "-n", str(options.tokens), *flags)
                metrics = report["metrics"]
                seconds = (metrics["e2e"]["mean_ms"] - metrics["ttft"]["mean_ms"]) / 1e3
                rates[name].append((metrics["rounds"]["emitted_tokens"] - 1) / seconds)
                texts.add(text)
                rounds = metrics["rounds"]
                if name == "fixed 4":
                    accepted = rounds["accepted_tokens"] / max(1, rounds["drafted_tokens"])
        if len(texts) != 1:
            sys.exit(f"{asked['category']}: the texts differ")
        cells = [spread(rates["plain"])]
        for name in list(PLANS)[1:]:
            ratios = [mine / plain for mine, plain in zip(rates[name], rates["plain"])]
            cells.append(f"{statistics.median(rates[name]):.1f}: {spread(ratios, 2)}")
        print(f"| {asked['category']} | {' | '.join(cells)} | {accepted:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrider", default=str(ROOT / "build/release/outrider"))
    parser.add_argument("--models", type=Path, default=ROOT / "models")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2, help="of the peer; ours takes what it finds")
    parser.add_argument("--only", default="single,pair")
    parser.add_argument("--files", default="", help="of single: only files with this text in their names")
    parser.add_argument("--tasks", help="of pair: only these, such as code,prose")
    parser.add_argument("--peer", help="llama-bench of llama.cpp, of the same machine")
    options = parser.parse_args()
    missing = [file for file in FILES if not (options.models / file).exists()]
    if missing:
        sys.exit(f"{options.models} lacks {', '.join(missing)}; launch/models fetches them")
    for name in options.only.split(","):
        {"single": single, "pair": pair}[name](options)


if __name__ == "__main__":
    main()
