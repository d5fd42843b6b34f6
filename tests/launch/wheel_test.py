"""Builds a wheel of the program, installs it into a new environment without a network, and uses it on the demo pair.

    wheel_test.py SOURCE PROGRAM WORK
"""

import os
import pathlib
import shutil
import subprocess
import sys
import venv

USE = """
import pathlib, sys
import outrider

target, draft, work = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
options = {"draft_model": draft, "num_speculative_tokens": 3, "temperature": 0}
table = work / "rounds.csv"
results = outrider.generate(target, ["Once upon a time", {"prompt": "The little dog", "max_tokens": 4}], rounds=table, max_tokens=16, **options)
assert len(results) == 2, results
text = results[0]["text"]
assert len(text) > 10, results
rows = outrider.rounds(table)
assert len(rows) > 2, rows
assert isinstance(rows[0]["drafted"] if isinstance(rows, list) else int(rows["drafted"][0]), int), rows
try:
    outrider.generate(target, ["x"], no_such_flag=1)
    raise AssertionError("an unknown flag was taken")
except outrider.OutriderError as error:
    assert error.code == 2 and "no-such-flag" in str(error), error

with outrider.Server(target, api_key="secret", **options) as server:
    answer = server.complete("Once upon a time", max_tokens=16)
    assert answer["choices"][0]["text"] == text, (answer, text)
    assert server.status()["state"] == "ready"
    assert "outrider_draft_workers_wanted" in server.metrics()
    try:
        server.complete("x", max_tokens=-1)
        raise AssertionError("a wrong field was taken")
    except outrider.OutriderError as error:
        assert error.code == 400, error
    assert server.close() == 0
try:
    outrider.Server(work / "nothing")
    raise AssertionError("a missing model was served")
except outrider.OutriderError as error:
    assert error.code == 2, error
"""


def main():
    source, program, work = (pathlib.Path(path) for path in sys.argv[1:])
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    os.environ.pop("OUTRIDER_PROGRAM", None)
    builder = [sys.executable, source / "launch/python/build_wheel", program, work]
    wheel = subprocess.run(builder, check=True, capture_output=True, text=True).stdout.strip()
    venv.create(work / "venv", with_pip=True)
    python = work / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", wheel], check=True)
    version = subprocess.run([work / "venv/bin/outrider", "--version"], check=True, capture_output=True, text=True)
    assert version.stdout.startswith("outrider "), version
    pair = source / "launch/demo_pair"
    subprocess.run([python, "-c", USE, pair / "target", pair / "draft", work], check=True, cwd=work)


if __name__ == "__main__":
    main()
