#!/usr/bin/env python3
"""The simulator against real runs of several processes: tokens/s over acceptance x gamma x pipeline.

  tests/bench/simulator_against_runs.py [--outrider build/release/outrider] [--repetitions 3] [--csv FILE]

Every cell is run with `mpirun -n 3` and a synthetic acceptance, so that model time is real and what is accepted is
known. The simulator gets what those runs measured: passes of the target from the cell's own runs, passes of the drafter
from lockstep (where they are not hidden), and for pipelines the hit rate. Messages take the shorter of what they took in
both: in lockstep they wake a drafter that sleeps, with a pipeline they may wait for the end of a pass, which the simulator
adds itself. It plays the same rounds, because both draw from one process with one seed. What is left is time that no role
accounts for. Repetitions are interleaved; a cell's figure
is its median. Needs Open MPI, and a machine that does nothing else: three processes that share cores with anything
measure that thing.
"""
import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outrider", default=os.path.join(ROOT, "build/release/outrider"))
    parser.add_argument("--model", default=os.path.join(ROOT, "launch/demo_pair/target"))
    parser.add_argument("--draft-model", default=os.path.join(ROOT, "launch/demo_pair/draft"))
    parser.add_argument("--acceptance", type=float, nargs="+", default=[0.5, 0.8, 0.95])
    parser.add_argument("--gamma", type=int, nargs="+", default=[1, 3, 6])
    parser.add_argument("--pipeline", nargs="+", default=["lockstep", "fanout"])
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--csv", help="write the table here, too")
    return parser.parse_args()


def call(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("failed: %s\n%s" % (" ".join(command), done.stderr))


def read(path):
    with open(path) as file:
        return json.load(file)


def real_run(o, cell, report):
    acceptance, gamma, pipeline = cell
    call(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", o.outrider, "generate", "--quiet",
          "--layout", "coordinator=1,draft=1,target=1", "--threads", "1", "--model", o.model, "--draft-model",
          o.draft_model, "--prompt", "Once upon a time", "--max-tokens", str(o.max_tokens), "--num-speculative-tokens",
          str(gamma), "--pipeline", pipeline, "--synthetic-acceptance", "rates:%g" % acceptance, "--report", report,
          "--output", os.devnull])
    return read(report)


def decode_rate(report):
    """Tokens/s after the first token: reading the prompt is not what is compared."""
    metrics = report["metrics"]
    return (metrics["rounds"]["emitted_tokens"] - 1) / (metrics["wall_seconds"] - metrics["ttft"]["mean_ms"] * 1e-3)


def simulated_run(o, cell, own, lockstep, folder):
    acceptance, gamma, pipeline = cell
    costs = json.loads(json.dumps(own))
    drafts = [report["metrics"]["cost_model"]["mean"]["draft"] for report in (own, lockstep)]
    costs["metrics"]["cost_model"]["mean"]["draft"] = {
        "ms_per_token": drafts[1]["ms_per_token"], "exchange_ms": min(draft["exchange_ms"] for draft in drafts)}
    path, report = os.path.join(folder, "costs.json"), os.path.join(folder, "simulated.json")
    with open(path, "w") as file:
        json.dump(costs, file)
    process = "rates:%g" % acceptance
    if pipeline != "lockstep":
        process += ",hit=%.4f" % own["metrics"]["outcome_cache"]["hit_rate"]
    call([o.outrider, "simulate", "run", "--costs", path, "--acceptance", process, "--gamma-policy",
          "fixed:gamma=%d" % gamma, "--pipeline", pipeline, "--requests", "1", "--prompt-tokens",
          str(own["metrics"]["prompt_tokens"]), "--output-tokens", str(o.max_tokens), "--seed", "0", "--report", report])
    return read(report)


def main():
    o = arguments()
    cells = [(a, g, p) for a in o.acceptance for g in o.gamma for p in o.pipeline]
    runs = {cell: [] for cell in cells}
    with tempfile.TemporaryDirectory() as folder:
        for repetition in range(o.repetitions):
            for cell in cells if repetition % 2 == 0 else reversed(cells):
                runs[cell].append(real_run(o, cell, os.path.join(folder, "real.json")))
        rows, worst = [], 0.0
        print("acceptance gamma pipeline   measured (lowest to highest)   simulated   off")
        for cell in cells:
            acceptance, gamma, pipeline = cell
            # Each repetition is compared with what it measured itself; slow spells of the machine then cancel.
            pairs = []
            for at, own in enumerate(runs[cell]):
                lockstep = runs.get((acceptance, gamma, "lockstep"), runs[cell])[at]
                pairs.append((decode_rate(own), decode_rate(simulated_run(o, cell, own, lockstep, folder))))
            measured = [pair[0] for pair in pairs]
            off = statistics.median(simulated / real - 1 for real, simulated in pairs)
            worst = max(worst, abs(off))
            row = (acceptance, gamma, pipeline, statistics.median(measured), min(measured), max(measured),
                   statistics.median(pair[1] for pair in pairs), off)
            rows.append(row)
            print("%10g %5d %-9s %10.1f (%.1f to %.1f) %14.1f %+6.1f %%" % (row[:7] + (100 * off,)))
        print("\nlargest difference %.1f %%, mean %.1f %%" % (100 * worst,
              100 * statistics.mean(abs(row[7]) for row in rows)))
    if o.csv:
        with open(o.csv, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["acceptance", "gamma", "pipeline", "measured", "lowest", "highest", "simulated", "off"])
            writer.writerows(rows)


if __name__ == "__main__":
    main()
