#!/usr/bin/env python3
"""Prints the perplexity of texts under the model of a running `outrider serve`, from the log-probabilities of prompts.

    perplexity.py http://127.0.0.1:8000 FILE... [--characters 1600] [--pieces 3]

Each file is cut into pieces, and each piece is a prompt of its own. Needs Python alone.
"""
import argparse
import json
import math
import urllib.request
from pathlib import Path


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--characters", type=int, default=1600, help="of a piece")
    parser.add_argument("--pieces", type=int, default=3, help="of each file, at equal distances")
    return parser.parse_args()


def log_probabilities(url, prompt):
    """Of every token of the prompt but the first."""
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        entries = json.load(answer)["choices"][0]["prompt_logprobs"]
    return [next(iter(entry.values()))["logprob"] for entry in entries if entry]


def main():
    options = arguments()
    total, count = 0.0, 0
    for file in options.files:
        text = file.read_text(encoding="utf-8")
        for piece in range(options.pieces):
            begin = piece * max(0, len(text) - options.characters) // max(1, options.pieces - 1)
            found = log_probabilities(options.url, text[begin:begin + options.characters])
            total, count = total + sum(found), count + len(found)
    print(f"{count} tokens, perplexity {math.exp(-total / count):.4f}")


if __name__ == "__main__":
    main()
