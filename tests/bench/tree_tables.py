#!/usr/bin/env python3
"""Tables of trees against chains, from the results of lab/study/trees_demo_pair.toml.

  build/release/outrider study lab/study/trees_demo_pair.toml
  tests/bench/tree_tables.py trees_demo_pair.study/runs.csv

Prints tokens a pass by temperature, rule and number of drafted tokens, and, of studies with at least three repeats, tokens/s as a
ratio to the best chain of the same temperature and rule: the geometric mean over repeats, which are interleaved and so compared one
by one, with the interval of Student's t at 95 %.
"""
import argparse
import collections
import csv
import math
import statistics

SHAPES = {"2,1": 4, "2,1,1,1": 8, "4,1,1,1": 16, "8,1,1,1": 32}
T95 = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
KINDS = ["chain", "fixed shape", "sequoia", "best-first", "auto"]
OWN = 0  # nodes, where the policy chooses


def kind_and_nodes(row):
    tree = row["speculative-tree"]
    if tree == "off":
        return "chain", int(row["num-speculative-tokens"] or OWN)
    if tree == "auto":
        return "auto", OWN
    if ":" in tree:
        kind, nodes = tree.split(":")
        return kind, int(nodes)
    return "fixed shape", SHAPES[tree]


def read(path):
    cells = collections.defaultdict(dict)
    with open(path) as file:
        for row in csv.DictReader(file):
            if row["status"] != "ok":
                raise SystemExit("%s: cell %s: %s" % (path, row["cell"], row["error"]))
            kind, nodes = kind_and_nodes(row)
            # A parameter that the study does not vary has no column.
            cells[row.get("temperature", "-"), row.get("rule", "auto"), kind, nodes][int(row["repeat"])] = row
    return cells


def per_pass(runs):
    return statistics.mean(float(run["tokens_per_round"]) for run in runs.values())


def ratio(runs, others):
    logs = [math.log(float(run["tokens_per_second"]) / float(others[repeat]["tokens_per_second"]))
            for repeat, run in runs.items() if repeat in others]
    if len(logs) < 3:
        return None
    half = T95.get(len(logs), 2.0) * statistics.stdev(logs) / math.sqrt(len(logs))
    mean = statistics.mean(logs)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def table(cells, value):
    sizes = sorted({key[3] for key in cells})
    print("| T | rule | draft | %s |" % " | ".join("%d nodes" % n if n != OWN else "policy's choice" for n in sizes))
    print("|---" * (3 + len(sizes)) + "|")
    order = {"auto": 0, "token": 1, "block": 2}
    rows = sorted({key[:3] for key in cells}, key=lambda k: (k[0], order.get(k[1], 3), k[1], KINDS.index(k[2])))
    for temperature, rule, kind in rows:
        values = [value(temperature, rule, kind, n) if (temperature, rule, kind, n) in cells else "" for n in sizes]
        print("| %s | %s | %s | %s |" % (temperature, rule, kind, " | ".join(values)))
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", help="runs.csv of the study")
    cells = read(parser.parse_args().runs)
    print("Tokens a pass\n")
    table(cells, lambda *key: "%.2f" % per_pass(cells[key]))

    def speed(temperature, rule, kind, nodes):
        chains = [runs for key, runs in cells.items() if key[:3] == (temperature, "auto", "chain") and key[3] != OWN]
        best = max(chains, key=lambda runs: statistics.median(float(r["tokens_per_second"]) for r in runs.values()))
        found = ratio(cells[temperature, rule, kind, nodes], best)
        return "%.2f (%.2f to %.2f)" % found if found else ""

    if any(len(runs) >= 3 for runs in cells.values()):
        print("Tokens/s over those of the best chain under the match rule\n")
        table(cells, speed)


if __name__ == "__main__":
    main()
