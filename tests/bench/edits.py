#!/usr/bin/env python3
"""Real edits of files as texts for `outrider simulate texts`: the newest commits of a git repository that changed a
file of these kinds, each as a prompt (the file before, and what the commit says it does) and an output (the file
after), oldest first. Standard output is JSON lines.

    tests/bench/edits.py --repository . --suffix .h .cpp --edits 200 > edits.jsonl
"""
import argparse
import json
import subprocess
import sys


def git(repository, *arguments):
    run = subprocess.run(["git", "-C", repository, *arguments], capture_output=True)
    if run.returncode != 0:
        sys.exit(f"{repository}: git {arguments[0]}: {run.stderr.decode('utf-8', 'replace').strip()}")
    return run.stdout.decode("utf-8", "replace")


def edits(options):
    log = git(options.repository, "log", "--first-parent", "--no-renames", "--diff-filter=M", "--name-only",
              "--format=%x00%H%x01%s", options.revision)
    for commit in log.split("\0")[1:]:
        head, *names = commit.split("\n")
        revision, subject = head.split("\x01")
        for name in filter(None, names):
            if not name.endswith(tuple(options.suffix)):
                continue
            before = git(options.repository, "show", f"{revision}^:{name}")
            after = git(options.repository, "show", f"{revision}:{name}")
            if max(len(before), len(after)) <= options.characters:
                yield {"prompt": f"{name}\n\n{before}\n\n{subject}\n\n", "output": after}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", default=".")
    parser.add_argument("--revision", default="HEAD", help="the newest commit that is looked at")
    parser.add_argument("--suffix", nargs="+", default=[".h", ".cpp"], help="of file names")
    parser.add_argument("--edits", type=int, default=200, help="at most")
    parser.add_argument("--characters", type=int, default=8000, help="longer files are left out")
    options = parser.parse_args()
    found = []
    for edit in edits(options):
        found.append(edit)
        if len(found) == options.edits:
            break
    if not found:
        sys.exit(f"{options.repository}: no commit of {options.revision} changes such a file")
    for edit in reversed(found):
        print(json.dumps(edit))


if __name__ == "__main__":
    main()
