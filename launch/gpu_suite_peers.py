"""Other engines on the same checkpoint, for launch/gpu_suite: transformers' plain and assisted generation, and a
loop over torch.compile. Used only where torch with CUDA and transformers are installed; Outrider needs no Python.

  gpu_suite_peers.py --model DIR --draft DIR --tokens N --json FILE [--seconds N]

One sequence, greedy, bf16. Every peer prints tokens/s and whether its tokens are those of plain generation; one that
fails, or does not fit into --seconds, says "not run" and why.
"""
import argparse
import json
import os
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import transformers
from transformers import AutoModelForCausalLM

PROMPT = [11 + 37 * i % 200 for i in range(32)]  # ids that every synthetic vocabulary has
WARM_UP_TOKENS = 16


def load(directory):
    # Named `dtype` since transformers 4.56.
    try:
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
    except TypeError:
        model = AutoModelForCausalLM.from_pretrained(directory, torch_dtype=torch.bfloat16)
    model = model.to("cuda").eval()
    model.generation_config.eos_token_id = None  # random weights mean nothing by it
    return model


def timed(work):
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    torch.cuda.synchronize()
    return result, time.perf_counter() - start


def generate(model, tokens, **options):
    ids = torch.tensor([PROMPT], device="cuda")
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens,
                         min_new_tokens=tokens, pad_token_id=0, **options)
    return out[0, len(PROMPT):].tolist()


def plain(model, draft, tokens):
    return lambda count=tokens: generate(model, count)


def assisted(model, draft, tokens):
    return lambda count=tokens: generate(model, count, assistant_model=draft)


def compiled_loop(model, draft, tokens):
    """A static cache and one graph for each step of one token: what a careful user writes."""
    length = len(PROMPT) + tokens + 1
    try:
        cache = transformers.StaticCache(config=model.config, max_cache_len=length)
    except TypeError:
        cache = transformers.StaticCache(config=model.config, max_batch_size=1, max_cache_len=length, device="cuda",
                                         dtype=torch.bfloat16)

    def step(ids, position):
        logits = model(input_ids=ids, position_ids=position[None], cache_position=position, past_key_values=cache,
                       use_cache=True).logits
        return logits[:, -1:].argmax(-1)

    fast = torch.compile(step, mode="reduce-overhead")

    @torch.inference_mode()
    def run(count=tokens):
        cache.reset()
        token = step(torch.tensor([PROMPT], device="cuda"), torch.arange(len(PROMPT), device="cuda"))
        out = [token]
        for i in range(count - 1):
            torch.compiler.cudagraph_mark_step_begin()
            token = fast(token.clone(), torch.tensor([len(PROMPT) + i], device="cuda"))
            out.append(token.clone())
        return torch.cat(out, 1)[0].tolist()

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--json", required=True)
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    report = {"torch": torch.__version__, "transformers": transformers.__version__, "peers": []}
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    model, draft = load(options.model), load(options.draft)
    expected = None
    for make in (plain, assisted, compiled_loop):
        entry = {"name": make.__name__}
        try:
            if time.monotonic() > deadline:
                raise TimeoutError("the time of --seconds is used up")
            run = make(model, draft, options.tokens)
            run(WARM_UP_TOKENS)
            tokens, seconds = min((timed(run) for _ in range(2)), key=lambda result: result[1])
            expected = expected or tokens
            entry |= {"tokens_per_s": len(tokens) / seconds, "same_as_plain": tokens == expected}
            print(f"{make.__name__:<16} {entry['tokens_per_s']:8.1f} tokens/s   same tokens as plain: "
                  f"{'yes' if entry['same_as_plain'] else 'no'}")
        except Exception as error:  # one peer that fails must not hide the others
            entry["not_run"] = f"{type(error).__name__}: {error}"[:300]
            print(f"{make.__name__:<16} not run: {entry['not_run']}")
        report["peers"].append(entry)
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
