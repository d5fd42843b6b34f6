#!/usr/bin/env python3
"""Plain decoding, fixed draft lengths and the default policy on a machine that other programs keep busy.

  tests/bench/under_load.py [--busy 0,4] [--outrider build/release/outrider ...] [--flags "--threads 1"] [--repetitions 9]

Load: so many processes that do nothing but count, each wanting a core of its own (`while :; do :; done`). One turn runs, for every
program, plain decoding (no drafter), each fixed length, and the default policy, in an order that is shuffled anew; turns of all
loads take turns, too, so that other work on the machine meets all alike. Tokens/s are medians over the turns (lowest to
highest); a ratio is that of two runs of one turn: its median over the turns, with the 95 % interval of a bootstrap over turns.
Several --outrider compare programs.
"""
import argparse
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outrider", nargs="+", default=[os.path.join(ROOT, "build/release/outrider")])
    parser.add_argument("--model", default=os.path.join(ROOT, "launch/demo_pair/target"))
    parser.add_argument("--draft-model", default=os.path.join(ROOT, "launch/demo_pair/draft"))
    parser.add_argument("--prompts", default=os.path.join(ROOT, "lab/study/openings.jsonl"), help="texts to go on from")
    parser.add_argument("--texts", type=int, default=4, help="how many of its lines; more make a run longer, and its rate surer")
    parser.add_argument("--busy", default="0,4", help="loads: numbers of processes")
    parser.add_argument("--gammas", default="2,3,4,5", help="fixed draft lengths")
    parser.add_argument("--flags", default="", help="further flags of every run, e.g. '--threads 1'")
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--temperature", default="0.7")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--json", help="all rates, for other looks at them")
    return parser.parse_args()


class Busy:
    """So many processes that count, while it lasts."""

    def __init__(self, count):
        self.count = count

    def __enter__(self):
        self.processes = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(self.count)]

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()


class Bench:
    def __init__(self, options, folder):
        self.options = options
        self.prompts, self.report = os.path.join(folder, "prompts.jsonl"), os.path.join(folder, "report.json")
        with open(options.prompts) as all_lines, open(self.prompts, "w") as some:
            some.writelines(all_lines.readlines()[:options.texts])
        self.ways = {"plain": None, **{"fixed %d" % g: ["-g", str(g)] for g in map(int, options.gammas.split(","))},
                     "default": []}

    def rate(self, program, flags):
        o = self.options
        command = [program, "generate", "--quiet", "--model", o.model, "--prompts", self.prompts, "--max-num-seqs", "1",
                   "--max-tokens", str(o.max_tokens), "--ignore-eos", "--temperature", o.temperature, "--seed", "1", "--report",
                   self.report, "--output", os.devnull, *shlex.split(o.flags)]
        if flags is not None:
            command += ["--draft-model", o.draft_model, *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit("failed: %s\n%s" % (" ".join(command), done.stderr))
        with open(self.report) as file:
            metrics = json.load(file)["metrics"]
        return metrics["rounds"]["emitted_tokens"] / metrics["wall_seconds"]

    def turn(self, busy, rates):
        runs = [(program, way) for program in range(len(self.options.outrider)) for way in self.ways]
        random.shuffle(runs)
        with Busy(busy):
            for program, way in runs:
                rate = self.rate(self.options.outrider[program], self.ways[way])
                rates.setdefault((busy, program, way), []).append(rate)


def spread(values):
    return "%.0f (%.0f to %.0f)" % (statistics.median(values), min(values), max(values))


def ratio(ways, others):
    """Median of the ratios within turns, and the 95 % interval that a bootstrap over turns gives it."""
    ratios = [a / b for a, b in zip(ways, others)]
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return "%.2f (%.2f to %.2f)" % (statistics.median(ratios), medians[49], medians[1949])


def table(options, bench, rates, busy, program):
    plain, default = rates[busy, program, "plain"], rates[busy, program, "default"]
    fixed = [way for way in bench.ways if way.startswith("fixed")]
    best = max(fixed + ["plain"], key=lambda way: statistics.median(rates[busy, program, way]))
    print("\n%s, %d busy processes" % (options.outrider[program], busy))
    print("| | tokens/s | of plain |\n|---|---|---|")
    for way in bench.ways:
        own = rates[busy, program, way]
        print("| %s | %s | %s |" % (way, spread(own), ratio(own, plain)))
    print("default over the best length, %s: %s" %
          (best, ratio(default, rates[busy, program, best])))


def main():
    options = arguments()
    loads = [int(busy) for busy in options.busy.split(",")]
    rates = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, folder)
        for turn in range(options.repetitions):
            for busy in loads:
                bench.turn(busy, rates)
            print("turn %d of %d" % (turn + 1, options.repetitions), file=sys.stderr)
    for busy in loads:
        for program in range(len(options.outrider)):
            table(options, bench, rates, busy, program)
    if options.json:
        with open(options.json, "w") as file:
            json.dump([{"busy": k[0], "program": options.outrider[k[1]], "way": k[2], "rates": v} for k, v in rates.items()], file)


if __name__ == "__main__":
    main()
