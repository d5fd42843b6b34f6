#!/usr/bin/env python3
"""Replays recorded rounds through length policies, each text alone, as if a fresh process wrote it.

  tests/bench/replay_texts.py [--record lab/simulate/qwen2.5-coder.rounds.jsonl] [--prompts tests/bench/recorded_prompts.jsonl]
      [--policies ewma logistic fixed:gamma=2] [--costs "--row-costs 2=1.11 3=1.37 5=2.17 9=3.56 17=6.5 --draft-cost 0.4 ..."]

The record is of `outrider generate --prompts PROMPTS --max-num-seqs N --record-rounds FILE`, one request a line of PROMPTS. Prints
Markdown: for each policy plain decoding's seconds over its own, of all texts together, of the worst text and by category, and how
many texts are under 0.99 and 0.95 of plain decoding. No model runs. Needs Python alone.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLAIN = "fixed:gamma=0"
COSTS = "--row-costs 2=1.11 3=1.37 5=2.17 9=3.56 17=6.5 --draft-cost 0.4 --draft-prefill-cost 0.088"


def texts_of(record):
    """The header, and each request's lines."""
    header, *lines = record.read_text(encoding="utf-8").splitlines()
    requests = defaultdict(list)
    for line in lines:
        row = json.loads(line)
        requests[row["request"] if "request" in row else row["round"][0]].append(line)
    return {**json.loads(header), "max_num_seqs": 1}, [requests[number] for number in sorted(requests)]


def seconds_of(options, header, lines):
    """Seconds of one text by policy."""
    with tempfile.TemporaryDirectory() as folder:
        record, report = Path(folder, "record"), Path(folder, "report")
        record.write_text("\n".join([json.dumps(header), *lines]) + "\n", encoding="utf-8")
        run = subprocess.run([options.outrider, "simulate", "replay", record, *options.costs.split(), "--policies", PLAIN,
                              *options.policies, "--report", report], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            sys.exit(run.stderr)
        return {row["policy"]: row["seconds"] for row in json.loads(report.read_text())["policies"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrider", default=str(ROOT / "build/release/outrider"))
    parser.add_argument("--record", type=Path, default=ROOT / "lab/simulate/qwen2.5-coder.rounds.jsonl")
    parser.add_argument("--prompts", type=Path, default=ROOT / "tests/bench/recorded_prompts.jsonl")
    parser.add_argument("--policies", nargs="+", default=["ewma", "logistic", "goodput", "fixed:gamma=1", "fixed:gamma=2"])
    parser.add_argument("--costs", default=COSTS, help="of simulate replay; default: %(default)s")
    options = parser.parse_args()
    for path in (options.outrider, options.record, options.prompts):
        if not Path(path).is_file():
            sys.exit(f"{path}: no such file")
    header, texts = texts_of(options.record)
    categories = [json.loads(line)["category"] for line in options.prompts.read_text(encoding="utf-8").splitlines()]
    if len(texts) != len(categories):
        sys.exit(f"{options.record} has {len(texts)} requests, {options.prompts} has {len(categories)} prompts")
    times = [seconds_of(options, header, lines) for lines in texts]
    names = sorted(set(categories))
    print("| policy | all | worst text | under 0.99 | under 0.95 | " + " | ".join(names) + " |")
    print("|---" * (5 + len(names)) + "|")
    for policy in options.policies:
        gains = [time[PLAIN] / time[policy] for time in times]

        def gain(chosen):
            plain, own = (sum(time[name] for time, one in zip(times, chosen) if one) for name in (PLAIN, policy))
            return f"{plain / own:.2f}"

        cells = [gain([True] * len(times)), f"{min(gains):.2f}", str(sum(g < 0.99 for g in gains)),
                 str(sum(g < 0.95 for g in gains)), *(gain([c == name for c in categories]) for name in names)]
        print(f"| `{policy}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
