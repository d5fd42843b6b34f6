#!/usr/bin/env python3
"""Tables of drafters by kind of text: code edits, summaries, chat and stories.

  tests/bench/drafters.py --data DIR [--outrider build/release/outrider] [--target DIR] [--draft DIR]

DIR holds humaneval/HumanEval.jsonl.gz and spec_bench/*.jsonl (MT-bench's questions) below `workloads`, and `corpora/tinystories/*cased*.txt`.
Prompts are cut so that they fit the demo pair, which was trained on stories alone: what it writes behind other prompts is no code and
no summary, and its tables say how the drafters compare, not what a larger model would bring.

Every drafter writes the text of plain decoding, which is checked. Prints, for each kind of text, accepted of drafted tokens and tokens a
pass with at most 4 and 12 drafted tokens; and with --repeats, on a machine that does nothing else, tokens/s under the default policy as a
ratio to plain decoding: the geometric mean over repeats, in which all drafters take turns, with the smallest and the largest.
"""
import argparse
import glob
import gzip
import json
import math
import pathlib
import subprocess
import tempfile

LENGTHS = [4, 12]  # drafted tokens at most
ROOT = pathlib.Path(__file__).resolve().parents[2]


def prompts_of(data, count):
    data = pathlib.Path(data)
    with gzip.open(data / "workloads/humaneval/HumanEval.jsonl.gz", "rt") as file:
        tasks = [json.loads(line) for line in file][:count]
    edits = ["%s%s\n# The same with another name\n%s" % (t["prompt"][-260:], t["canonical_solution"][:200], t["prompt"][-260:][:120])
             for t in tasks]
    questions = []
    for path in sorted(glob.glob(str(data / "workloads/spec_bench/*.jsonl"))):
        with open(path) as file:
            questions += [json.loads(line)["turns"][0] for line in file]
    chat = ["User: %s\nAssistant:" % q[:400] for q in questions[::max(1, len(questions) // count)][:count]]
    path = sorted(glob.glob(str(data / "corpora/tinystories/*cased*.txt")))[0]
    stories = [s for s in pathlib.Path(path).read_text().split("\n\n") if len(s) > 600][:count]
    if len(stories) < count:
        text = pathlib.Path(path).read_text()
        stories = [text[i * 5000:i * 5000 + 700] for i in range(count)]
    summaries = ["%s\nSummary: %s" % (s[:500], s[:60]) for s in stories]
    return {"code edits": edits, "summaries": summaries, "chat": chat, "stories": [s[:60] for s in stories]}


def run(options, directory, prompts, flags):
    report, out = directory / "report.json", directory / "out.txt"
    subprocess.run([options.outrider, "generate", "-m", options.target, "--prompts", str(prompts), "--max-tokens", str(options.tokens),
                    "--max-num-seqs", "1", "--ignore-eos", "-q", "--report", str(report), "--output", str(out), "--overwrite"] + flags, check=True)
    return json.loads(report.read_text())["metrics"], out.read_text()


def texts(out):
    return [json.loads(line)["text"] for line in out.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--outrider", default=str(ROOT / "build/release/outrider"))
    parser.add_argument("--target", default=str(ROOT / "launch/demo_pair/target"))
    parser.add_argument("--draft", default=str(ROOT / "launch/demo_pair/draft"))
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=0)
    options = parser.parse_args()
    draft = ["-d", options.draft]
    drafters = {
        "ngram": ["--drafter", "ngram"],
        "suffix": ["--drafter", "suffix"],
        "recycling": ["--drafter", "recycling"],
        "recycling, best-first:8": ["--drafter", "recycling", "--speculative-tree", "best-first:8"],
        "lookahead, best-first:24": ["--drafter", "lookahead", "--speculative-tree", "best-first:24"],
        "lookahead, best-first:48": ["--drafter", "lookahead", "--speculative-tree", "best-first:48"],
        "model": draft,
        "model, --draft-drafter ngram": draft + ["--draft-drafter", "ngram"],
        "model, --draft-drafter suffix": draft + ["--draft-drafter", "suffix"],
        "model+suffix": draft + ["--drafter", "model+suffix"],
    }
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        for kind, prompts in prompts_of(options.data, options.prompts).items():
            file = directory / "prompts.jsonl"
            file.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts))
            speeds = {name: [] for name in drafters}
            per_pass = {}
            plain_text = texts(run(options, directory, file, [])[1])
            for name, flags in drafters.items():
                per_pass[name] = ()
                for length in LENGTHS:
                    metrics, out = run(options, directory, file, flags + ["-g", str(length)])
                    assert texts(out) == plain_text, name
                    r = metrics["rounds"]
                    per_pass[name] += (r["accepted_tokens"] / max(1, r["drafted_tokens"]), r["emitted_tokens"] / r["rounds"])
            for _ in range(options.repeats):
                metrics, out = run(options, directory, file, [])
                plain = metrics["tokens_per_second"]
                for name, flags in drafters.items():
                    metrics, out = run(options, directory, file, flags)
                    assert texts(out) == plain_text, name
                    speeds[name].append(metrics["tokens_per_second"] / plain)
            speed = " tokens/s over plain |" if options.repeats else ""
            print("\n| %s |%s%s\n|---|%s%s" % (kind, "".join(" accepted, %d | tokens a pass |" % n for n in LENGTHS), speed,
                                              "---|" * (2 * len(LENGTHS)), "---|" if speed else ""))
            for name in drafters:
                line = "| `%s` |" % name + "".join(" %.2f |" % x for x in per_pass[name])
                if speed:
                    mean = math.exp(sum(math.log(x) for x in speeds[name]) / len(speeds[name]))
                    line += " %.2f (%.2f to %.2f) |" % (mean, min(speeds[name]), max(speeds[name]))
                print(line, flush=True)


if __name__ == "__main__":
    main()
