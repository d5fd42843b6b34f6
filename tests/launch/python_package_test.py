"""outrider.Server with programs of a few lines in the place of outrider.

    python_package_test.py launch/python
"""

import http.server
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, sys.argv[1])
import outrider

# The program is never ready, and its child writes until its output is closed.
NEVER_READY = """
(trap '' TERM; while :; do echo child >&2; sleep 0.01; done) &
while :; do sleep 0.05; done
"""
SERVER = "echo serving demo on http://127.0.0.1:1 >&2; while :; do sleep 0.05; done"


def program(directory, text):
    path = pathlib.Path(directory) / "program"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    os.environ["OUTRIDER_PROGRAM"] = str(path)


class SlowDeque(outrider.collections.deque):
    """While it is read, the reader gets the time to append."""

    def __iter__(self):
        for line in super().__iter__():
            threading.Event().wait(0.02)
            yield line


def test_time_out_while_the_program_writes(directory):
    program(directory, NEVER_READY)
    original, outrider.collections.deque = outrider.collections.deque, SlowDeque
    try:
        outrider.Server("target", startup_seconds=0.2)
        raise AssertionError("it was never ready")
    except outrider.OutriderError as error:
        assert "not ready within 0.2 s" in str(error), error
    finally:
        outrider.collections.deque = original


def test_close_waits_for_the_drain(directory):
    program(directory, SERVER)
    for options, expected in (({}, 60), ({"drain_timeout": 300}, 330), ({"drain_timeout": "7"}, 37)):
        server = outrider.Server("target", **options)
        waited = []
        wait = server._process.wait
        server._process.wait = lambda seconds=None: waited.append(seconds) or wait(seconds)
        server.close()
        assert waited[0] == expected, (options, waited)


def test_the_server_ends_with_python(directory):
    program(directory, f"echo $$ > {directory}/pid; " + SERVER)
    script = f"import sys; sys.path.insert(0, {sys.argv[1]!r}); import outrider; outrider.Server('target')"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    pid = int(pathlib.Path(directory, "pid").read_text())
    try:
        os.kill(pid, 0)
        raise AssertionError("the server outlives Python")
    except ProcessLookupError:
        pass


def test_a_text_is_one_prompt(directory):
    program(directory, 'for a; do case $a in --prompts=*) in=${a#*=};; --output=*) out=${a#*=};; esac; done; cp "$in" "$out"')
    assert outrider.generate("target", "Once") == [{"prompt": "Once"}]
    assert outrider.generate("target", {"prompt": "a", "seed": 1}) == [{"prompt": "a", "seed": 1}]
    assert outrider.generate("target", ["a", "b"]) == [{"prompt": "a"}, {"prompt": "b"}]


def test_errors_name_prompts(directory):
    program(directory, 'for a; do case $a in --prompts=*) in=${a#*=};; esac; done; '
                       'echo "outrider: $in:2: \\"seed\\" must be a number" >&2; echo "--prompts $in: is odd" >&2; exit 2')
    try:
        outrider.generate("target", ["a", {"prompt": "b", "seed": "x"}])
        raise AssertionError("it was refused")
    except outrider.OutriderError as error:
        assert str(error) == 'outrider: prompts[1]: "seed" must be a number\nprompts: is odd', error


class Events(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        last = b'data: {"error": {"message": "lost", "code": 503}}' if "fails" in self.path else b"data: [DONE]"
        self.wfile.write(b'event: x\r\ndata: {"n": 1}\r\n\r\n: comment\n\ndata: {"n": 2}\n\n' + last + b"\n\n")

    def log_message(self, *_):
        pass


def test_a_stream_yields_objects(directory):
    with http.server.HTTPServer(("127.0.0.1", 0), Events) as events:
        threading.Thread(target=events.serve_forever, daemon=True).start()
        program(directory, f"echo serving demo on http://127.0.0.1:{events.server_port} >&2; exec sleep 60")
        with outrider.Server("target") as server:
            assert list(server.complete("Once", stream=True)) == [{"n": 1}, {"n": 2}]
            got = []
            try:
                for event in server.request("/fails", {"stream": True}):
                    got.append(event)
                raise AssertionError("the stream failed")
            except outrider.OutriderError as error:
                assert (str(error), error.code) == ("lost", 503), error
            assert got == [{"n": 1}, {"n": 2}]
        events.shutdown()


if __name__ == "__main__":
    for test in (test_errors_name_prompts, test_a_stream_yields_objects, test_time_out_while_the_program_writes, test_close_waits_for_the_drain, test_the_server_ends_with_python,
                 test_a_text_is_one_prompt):
        with tempfile.TemporaryDirectory() as directory:
            test(directory)
