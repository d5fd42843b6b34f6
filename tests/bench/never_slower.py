#!/usr/bin/env python3
"""What speculation costs where it cannot pay, as a share of plain decoding: useless, slow, far, lossy and dead drafters.

  tests/bench/never_slower.py [--outrider build/release/outrider] [--repetitions 3] [--only REGEX] [--keep DIR]

Makes three pairs of models (25 MB in all that runs; target 17 MB, so that it stays in a last-level cache): one whose draft is
accepted 8 times in 10, another whose draft guesses a different target's text (never accepted), and a draft that takes fifty
times as long. Plain decoding, without any drafter, of the same target with the same threads and the same kind of processes runs
before and after every condition, and a condition's figure is its rate over the mean of these two: slow spells of the machine
then cancel. Medians, lowest and highest of the repetitions, and their mean with its standard error, which says what so many
repetitions can tell. Needs Open MPI, and a machine that does nothing else.
"""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHAPE = ("--shape tiny --hidden 256 --heads 4 --kv-heads 1 --ffn 896 --vocab 1024 --tied --max-positions 2048 "
         "--temperature 1 --entropy 2.5 --acceptance 0.8 --quiet --force").split()
OVERLAP = "--threads 2 --draft-threads 1 "


class Condition:
    def __init__(self, name, drafter, flags="--threads 1", ranks=False, tokens=400, fault=None):
        self.name, self.drafter, self.flags, self.ranks = name, drafter, flags.split(), ranks
        self.tokens, self.fault = tokens, fault  # fault: sent to a draft worker that joined, in the middle


CONDITIONS = [
    Condition("useless draft, one thread", "useless"),
    Condition("useless n-grams, one thread", "ngram"),
    Condition("useless draft, draft thread, lockstep", "useless", OVERLAP),
    Condition("useless draft, draft thread, auto", "useless", OVERLAP + "--pipeline auto"),
    Condition("useless draft, draft thread, fanout", "useless", OVERLAP + "--pipeline fanout"),
    Condition("useless draft, token rule, draft thread, fanout", "useless", OVERLAP + "--pipeline fanout --rule token"),
    Condition("fifty times slower, one thread", "slow"),
    Condition("fifty times slower, draft thread", "slow", OVERLAP),
    Condition("good draft, 25 ms away, one thread", "good", "--threads 1 --emulate-link delay=25ms"),
    Condition("good draft, 10 ms away, 200 tokens", "good", OVERLAP + "--emulate-link delay=10ms", tokens=200),
    Condition("good draft, 30 % of messages lost", "good", OVERLAP + "--emulate-link loss=0.3"),
    Condition("the same, gamma pinned to 3", "good", OVERLAP + "-g 3 --emulate-link loss=0.3"),
    Condition("useless draft, killed in the middle", "useless", fault=signal.SIGKILL),
    Condition("useless draft, stopped in the middle", "useless", fault=signal.SIGSTOP),
    Condition("mpirun: useless draft", "useless", ranks=True),
    Condition("mpirun: useless draft, fanout", "useless", "--threads 1 --pipeline fanout", ranks=True),
    Condition("mpirun: useless n-grams", "ngram", ranks=True),
    Condition("mpirun: fifty times slower", "slow", ranks=True),
    Condition("mpirun: good draft, 30 % of messages lost", "good", "--threads 1 --emulate-link loss=0.3", ranks=True),
]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outrider", default=os.path.join(ROOT, "build/release/outrider"))
    parser.add_argument("--prompts", default=os.path.join(ROOT, "lab/study/openings.jsonl"), help="its first four lines")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--only", default="", help="conditions whose name has this regular expression")
    parser.add_argument("--keep", help="make the pairs here, and use those that are here already")
    return parser.parse_args()


def call(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("failed: %s\n%s" % (" ".join(command), done.stderr))


def make_pairs(outrider, folder):
    for name, more in (("pair", ["--layers", "10"]), ("other", ["--layers", "10", "--seed", "5"]),
                       ("slow", ["--layers", "46", "--draft-layers", "45", "--seed", "5"])):
        if not os.path.isdir(os.path.join(folder, name)):
            call([outrider, "synth", *SHAPE, *more, "--output", os.path.join(folder, name)])


class Bench:
    def __init__(self, options, folder):
        self.outrider, self.folder = options.outrider, folder
        self.prompts, self.report = os.path.join(folder, "prompts.jsonl"), os.path.join(folder, "report.json")
        with open(options.prompts) as all_lines, open(self.prompts, "w") as four:
            four.writelines(all_lines.readlines()[:4])

    def drafter(self, name):
        paths = {"good": "pair/draft", "useless": "other/draft", "slow": "slow/draft"}
        if name is None:
            return []
        return ["--drafter", "ngram"] if name == "ngram" else ["--draft-model", os.path.join(self.folder, paths[name])]

    def command(self, condition, drafter):
        command = [self.outrider, "generate", "--quiet", "--model", os.path.join(self.folder, "pair/target"), "--prompts",
                   self.prompts, "--max-num-seqs", "1", "--max-tokens", str(condition.tokens), "--ignore-eos", "--temperature",
                   "1", "--report", self.report, "--output", os.devnull]
        if condition.ranks:
            layout = "coordinator=1,target=1" + (",draft=1" if drafter else "")
            # mpirun binds two ranks to a core each, and three to none.
            command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(layout.count("=")),
                       *command, "--layout", layout]
        return command + self.drafter(drafter)

    def rate(self):
        with open(self.report) as file:
            metrics = json.load(file)["metrics"]
        return metrics["rounds"]["emitted_tokens"] / metrics["wall_seconds"]

    def plain(self, condition):
        call(self.command(condition, None) + ["--threads", "1"])
        return self.rate()

    def speculative(self, condition):
        if condition.fault is not None:
            return self.faulty(condition)
        call(self.command(condition, condition.drafter) + condition.flags)
        return self.rate()

    # A worker of a process of its own, which dies while texts are written.
    def faulty(self, condition):
        address = "ipc://" + os.path.join(self.folder, "door")
        job = subprocess.Popen(self.command(condition, None) + condition.flags +
                               ["--listen", address, "--wait-for-draft-workers", "1"], stderr=subprocess.PIPE, text=True)
        worker = subprocess.Popen([self.outrider, "draft-worker", "--connect", address, *self.drafter(condition.drafter)],
                                  stderr=subprocess.PIPE, text=True)
        for line in worker.stderr:
            if "drafts for" in line:
                break
        time.sleep(0.3)
        worker.send_signal(condition.fault)
        error = job.stderr.read()
        worker.kill()
        worker.wait()
        if job.wait() != 0:
            sys.exit("failed: %s\n%s" % (condition.name, error))
        return self.rate()


def main():
    options = arguments()
    conditions = [c for c in CONDITIONS if re.search(options.only, c.name)]
    shares = {c.name: [] for c in conditions}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or temporary
        os.makedirs(folder, exist_ok=True)
        make_pairs(options.outrider, folder)
        bench = Bench(options, folder)
        for _ in range(options.repetitions):
            before = {}  # by kind of plain run
            for condition in conditions:
                kind = (condition.ranks, condition.tokens)
                before.setdefault(kind, bench.plain(condition))
                rate = bench.speculative(condition)
                after = bench.plain(condition)
                shares[condition.name].append(rate / ((before[kind] + after) / 2))
                before[kind] = after
    print("%-50s of plain (lowest to highest), mean +- standard error" % "")
    for name, values in shares.items():
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
        print("%-50s %.3f (%.3f to %.3f), %.3f +- %.3f" %
              (name, statistics.median(values), min(values), max(values), statistics.mean(values), error))


if __name__ == "__main__":
    main()
