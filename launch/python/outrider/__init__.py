"""Outrider from Python: starts the program that the wheel holds, and reads what it writes. Standard library only.

    import outrider
    for result in outrider.generate("TARGET", ["Once upon a time"], draft_model="DRAFT", max_tokens=40):
        print(result["text"])
    with outrider.Server("TARGET", draft_model="DRAFT") as server:
        print(server.complete("Once upon a time", max_tokens=40)["choices"][0]["text"])

Keyword arguments are the long options of the program: draft_model="D" is --draft-model D, stay=True is --stay, a list
repeats the option, and None or False leaves it out. `outrider help COMMAND` lists them.
"""

import atexit
import collections
import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request


class OutriderError(RuntimeError):
    """The program or the server refused or failed. `code`: its exit code, or the HTTP status."""

    def __init__(self, message, code=None):
        super().__init__(message)
        self.code = code


def program():
    """The program: OUTRIDER_PROGRAM, or the one of this wheel."""
    return os.environ.get("OUTRIDER_PROGRAM") or os.path.join(os.path.dirname(__file__), "program", "outrider")


def main():
    """The command `outrider` of the wheel becomes the program."""
    os.execv(program(), [program(), *sys.argv[1:]])


def arguments(options):
    out = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is None or one is False:
                continue
            out.append(flag if one is True else f"{flag}={one}")
    return out


def generate(model, prompts, **options):
    """The results of `outrider generate`, one dictionary a prompt, in their order. A prompt is a text, or a
    dictionary with "prompt" and its own fields, such as "seed" and "max_tokens"; one alone needs no list. A request
    that fails while it runs has "error"; one that is refused before, such as a prompt too long, raises."""
    if isinstance(prompts, (str, dict)):
        prompts = [prompts]
    lines = [prompt if isinstance(prompt, dict) else {"prompt": prompt} for prompt in prompts]
    with tempfile.TemporaryDirectory() as directory:
        source, output = os.path.join(directory, "prompts.jsonl"), os.path.join(directory, "results.jsonl")
        with open(source, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        options = {"prompts": source, "output": output, "quiet": True, **options}
        command = [program(), "generate", os.fspath(model), *arguments(options)]
        run = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if run.returncode not in (0, 1) or not os.path.exists(options["output"]):
            raise OutriderError(_in_words_of_the_caller(run.stderr.strip(), source, output), run.returncode)
        with open(options["output"], encoding="utf-8") as file:
            return [json.loads(line) for line in file]


def _in_words_of_the_caller(message, source, output):
    """Prompts by their place in the list, from 0, in place of lines of a file that the caller never saw."""
    message = re.sub(re.escape(source) + r":(\d+)", lambda found: f"prompts[{int(found.group(1)) - 1}]", message)
    message = message.replace("--prompts " + source, "prompts").replace(source, "prompts")
    return message.replace("--output " + output, "output").replace(output, "output")


def rounds(file):
    """The table of `generate --rounds FILE`, or rounds.csv of a study: a data frame if pandas is installed, else a
    list of dictionaries with numbers where there are numbers."""
    try:
        import pandas
    except ImportError:
        with open(file, newline="", encoding="utf-8") as source:
            return [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(source)]
    return pandas.read_csv(file)


def _number(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _events(answer):
    """The JSON objects of a stream of server-sent events. An event with "error" raises."""
    with answer:
        for line in answer:
            text = line.decode().rstrip("\r\n")
            if not text.startswith("data:"):
                continue  # the event's name, which its object has too, a comment, or the end of an event
            text = text[len("data:"):].strip()
            if text == "[DONE]":
                return
            event = json.loads(text)
            if isinstance(event, dict) and isinstance(event.get("error"), dict):
                raise OutriderError(event["error"].get("message", text), event["error"].get("code"))
            yield event


class Server:
    """`outrider serve` as a child process, ready when the constructor returns. Ends with close(), with `with`, or when
    Python exits; if a signal kills Python, the server stays."""

    def __init__(self, model, startup_seconds=600, **options):
        options = {"port": 0, **options}
        self._key = options.get("api_key")
        self._drain_seconds = float(options.get("drain_timeout", 30))
        self._tail = collections.deque(maxlen=50)  # of standard error; guarded by the lock
        self._tail_lock = threading.Lock()
        self._ready = threading.Event()
        self.url = None
        environment = dict(os.environ)
        if self._key is not None:  # not as an argument, which others on this machine can see
            environment["OUTRIDER_API_KEY"] = options.pop("api_key")
        self._process = subprocess.Popen(
            [program(), "serve", os.fspath(model), *arguments(options)],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", env=environment)
        atexit.register(self.close)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        is_told = self._ready.wait(startup_seconds)
        if self.url is None:
            code = self._process.poll()
            self.close(seconds=5)
            why = "" if is_told else f"not ready within {startup_seconds} s\n"
            self._reader.join(5)  # for the last lines; a child of the program may hold standard error longer
            with self._tail_lock:
                tail = "".join(self._tail)
            raise OutriderError(why + tail.strip(), code)

    def _read(self):
        for line in self._process.stderr:
            with self._tail_lock:
                self._tail.append(line)
            found = re.search(r"serving .* on (http://\S+)", line)
            if found and self.url is None:
                self.url = found.group(1).rstrip("/")
                self._ready.set()
        self._process.wait()
        self._ready.set()

    def request(self, path, body=None):
        """POST of `body` as JSON, or GET without one. JSON answers are parsed, others are text. With "stream": True the
        answer is an iterator of the parsed events; it ends with the stream, and close() of it ends the request."""
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            answer = urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers))
        except urllib.error.HTTPError as error:
            raise OutriderError(error.read().decode(errors="replace"), error.code) from None
        kind = answer.headers.get_content_type()
        if kind == "text/event-stream":
            return _events(answer)
        with answer:
            text = answer.read().decode()
        return json.loads(text) if kind == "application/json" else text

    def complete(self, prompt, **fields):
        return self.request("/v1/completions", {"prompt": prompt, **fields})

    def chat(self, messages, **fields):
        return self.request("/v1/chat/completions", {"messages": messages, **fields})

    def status(self):
        return self.request("/status")

    def metrics(self):
        return self.request("/metrics")

    def close(self, seconds=None):
        """SIGTERM: requests under way are finished. After `seconds` the program is killed; without them 30 s after its
        drain_timeout. Returns the exit code."""
        atexit.unregister(self.close)
        if seconds is None:
            seconds = self._drain_seconds + 30
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
