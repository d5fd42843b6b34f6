#!/usr/bin/env python3
"""Time to the first token of short prompts, alone and beside long ones, with and without drafts.

  outrider serve --model launch/demo_pair/target --draft-model launch/demo_pair/draft --max-num-seqs 8 --quiet
  tests/bench/mixed_prompts.py --url http://127.0.0.1:8000

One client asks short prompts, one after the other. Beside it --long-clients ask long ones without a pause. Prompts
are random tokens, so that none is in the prefix cache. Ways of drafting take turns; told are medians over the
turns of each turn's percentile, with the least and the most."""
import argparse
import http.client
import json
import random
import statistics
import threading
import time
from urllib.parse import urlparse

WAYS = {"plain": {"num_speculative_tokens": 0}, "drafts": {}}


def ask(address, tokens, max_tokens, more, rng):
    """Seconds to the first token, and per token from there."""
    body = {"prompt": [rng.randrange(100, 4000) for _ in range(tokens)], "max_tokens": max_tokens, "temperature": 0,
            "stream": True, "ignore_eos": True, **more}
    connection = http.client.HTTPConnection(address, timeout=60)
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    first = None
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(response.read().decode())
    for line in response:
        if first is None and line.startswith(b"data: {"):
            first = time.perf_counter()
    end = time.perf_counter()
    connection.close()
    return first - start, (end - first) / max(max_tokens - 1, 1)


def turn(args, more, long_clients, seed):
    stopped = threading.Event()
    counts = [0] * long_clients

    def ask_long(index):
        rng = random.Random(seed * 100 + index)
        while not stopped.is_set():
            ask(args.address, args.long_tokens, args.max_tokens, more, rng)
            counts[index] += 1

    threads = [threading.Thread(target=ask_long, args=(i,)) for i in range(long_clients)]
    for thread in threads:
        thread.start()
    rng = random.Random(seed)
    ask(args.address, args.short_tokens, args.max_tokens, more, rng)
    start = time.perf_counter()
    times = [ask(args.address, args.short_tokens, args.max_tokens, more, rng) for _ in range(args.requests)]
    seconds = time.perf_counter() - start
    stopped.set()
    for thread in threads:
        thread.join()
    firsts = sorted(t[0] for t in times)
    return {"p50": statistics.median(firsts) * 1e3, "p95": firsts[int(0.95 * (len(firsts) - 1))] * 1e3,
            "per_token": statistics.median(t[1] for t in times) * 1e3, "long": sum(counts) / seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--requests", type=int, default=40, help="short ones of a turn")
    parser.add_argument("--short-tokens", type=int, default=16)
    parser.add_argument("--long-tokens", type=int, default=440)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--long-clients", default="0,1,3")
    args = parser.parse_args()
    args.address = urlparse(args.url).netloc
    loads = [int(n) for n in args.long_clients.split(",")]
    told = {(load, way): [] for load in loads for way in WAYS}
    for number in range(args.turns):
        for (load, way), turns in told.items():
            turns.append(turn(args, WAYS[way], load, seed=number * 10 + load + 1))
    print("| long prompts beside | drafts | first token, median ms | 95th percentile, ms | ms per token | long ones/s |")
    print("|---|---|---|---|---|---|")
    for (load, way), turns in told.items():
        def cell(key):
            values = [t[key] for t in turns]
            return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"
        print(f"| {load} | {way} | {cell('p50')} | {cell('p95')} | {cell('per_token')} | {cell('long')} |")


main()
