#!/usr/bin/env python3
"""Whether the target's own probabilities tell how often a draft model is right, and what a length policy would gain by them.

  tests/bench/target_chances.py [--record lab/simulate/qwen2.5-coder.rounds.jsonl] [--costs "--row-costs 2=1.11 ... --draft-cost 0.4 ..."]

The record is of greedy texts, by `outrider generate --record-rounds FILE`, with the target's probabilities of the emitted tokens added
to each round (`chances`: exp of the numbers of --logprobs 0). Prints Markdown: acceptance of tokens by the
target's probability; how the mean of that probability over a text, or over its first tokens, goes with the text's acceptance; and
`ewma` with priors from them, each text alone, as replay_texts.py does. A prior from the whole text is more than any policy can know.
No model runs. Needs Python alone.
"""
import argparse
import json
import math
import statistics
from collections import defaultdict
from pathlib import Path

import replay_texts

FIXED = [f"fixed:gamma={length}" for length in (1, 2, 3, 4, 6, 8)]
EDGES = [0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.99, 0.999, 1.001]


def read_text(lines):
    """By position: the target's probabilities, and whether the draft model was right."""
    chances, right = {}, {}
    for line in lines:
        row = json.loads(line)
        if "round" not in row:
            continue
        _, base, _, drafted, accepted, _, _, guess = row["round"]
        for i, chance in enumerate(row["chances"]):
            chances[base + i] = chance
        for i in range(accepted):
            right[base + i] = 1
        if accepted < drafted:
            right[base + accepted] = 0
        if guess >= 0:
            right[base - 1] = min(guess, 1)
    return [chances[at] for at in sorted(chances)], {at: (chances[at], right[at]) for at in right if at in chances}


def calibration(texts):
    print("| the target's probability | tokens | its mean | accepted |\n|---|---|---|---|")
    for low, high in zip(EDGES, EDGES[1:]):
        tokens = [token for _, tested in texts for token in tested.values() if low <= token[0] < high]
        if tokens:
            print(f"| {low:g} to {min(high, 1):g} | {len(tokens)} | {statistics.mean(t[0] for t in tokens):.3f} | "
                  f"{statistics.mean(t[1] for t in tokens):.3f} |")


def correlations(texts, prompts):
    acceptance = [statistics.mean(right for _, right in tested.values()) for _, tested in texts]
    print("\n| mean probability over | correlation with the text's acceptance | root mean square of the difference |\n|---|---|---|")
    rows = [("the prompt", prompts)] if None not in prompts else []
    for name, count in (("the text", None), ("its first 16 tokens", 16), ("its first 8 tokens", 8), ("its first token", 1)):
        rows.append((name, [statistics.mean(chances[:count]) for chances, _ in texts]))
    for name, means in rows:
        error = math.sqrt(statistics.mean((a - b) ** 2 for a, b in zip(means, acceptance)))
        print(f"| {name} | {statistics.correlation(means, acceptance):.2f} | {error:.3f} |")
    print(f"| all texts alike | - | {statistics.pstdev(acceptance):.3f} |")


def priors(text):
    """ewma with priors: `prior-tests` of the default is 10."""
    chances, tested = text
    acceptance = statistics.mean(right for _, right in tested.values())

    def ewma(prior, tests):
        return f"ewma:prior={min(0.99, max(0.01, prior)):.3f},prior-tests={tests}"

    first = chances[:8]
    return {"ewma": "ewma", "ewma, prior from the first token": ewma((7 + chances[0]) / 11, 11),
            "ewma, prior from the first 8 tokens": ewma((7 + sum(first)) / (10 + len(first)), 10 + len(first)),
            "ewma, prior from the whole text's probabilities": ewma(statistics.mean(chances), 100),
            "ewma, prior is the whole text's acceptance": ewma(acceptance, 100)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrider", default=str(replay_texts.ROOT / "build/release/outrider"))
    parser.add_argument("--record", type=Path, default=replay_texts.ROOT / "lab/simulate/qwen2.5-coder.rounds.jsonl")
    parser.add_argument("--costs", default=replay_texts.COSTS, help="of simulate replay; default: %(default)s")
    options = parser.parse_args()
    header, lines = replay_texts.texts_of(options.record)
    texts = [read_text(one) for one in lines]
    calibration(texts)
    correlations(texts, [json.loads(one[0]).get("prompt_chance") for one in lines])
    seconds = defaultdict(list)
    for text, one in zip(texts, lines):
        names = {replay_texts.PLAIN: replay_texts.PLAIN, **priors(text), **{name: name for name in FIXED}}
        options.policies = list(dict.fromkeys(list(names.values())[1:]))
        times = replay_texts.seconds_of(options, header, one)
        for name, policy in names.items():
            seconds[name].append(times[policy])
    plain = seconds[replay_texts.PLAIN]
    seconds["the best of plain decoding and these lengths for each text"] = [
        min(times) for times in zip(plain, *(seconds[name] for name in FIXED))]
    best = min(FIXED, key=lambda name: sum(seconds[name]))
    print("\n| policy | all | worst text | under 0.99 | one half of the texts | the other |\n|---|---|---|---|---|---|")
    for name, times in seconds.items():
        if name in FIXED and name != best:
            continue
        gains = [p / t for p, t in zip(plain, times)]
        halves = [sum(plain[half::2]) / sum(times[half::2]) for half in (0, 1)]
        print(f"| {name} | {sum(plain) / sum(times):.3f} | {min(gains):.2f} | {sum(g < 0.99 for g in gains)} | "
              f"{halves[0]:.3f} | {halves[1]:.3f} |")


if __name__ == "__main__":
    main()
