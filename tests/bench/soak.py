#!/usr/bin/env python3
"""Mixed load on `outrider serve` for minutes, while draft workers and target groups are killed and clients leave.

Every text that ends is compared with that of `outrider generate` without drafts; every request must end; no program may end
that was not killed; the memory of the server is told at the beginning, in the middle and at the end. Exit code 1 where anything
was lost or differs. With --pause it runs beside other work for an hour.

    tests/bench/soak.py --outrider build/release/outrider --model launch/demo_pair/target --minutes 10
    nice -n 10 tests/bench/soak.py --minutes 60 --pause 3 --between-faults 20
"""
import argparse
import collections
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

PROMPTS = ["Once upon a time", "Once upon a time there was a little dog and", "One day a girl named Lily", "The sun was",
           "Once upon a time there was a little dog and a cat who"]


def requests_to_ask():
    """Prompts, lengths, seeds and temperatures; few enough that their plain texts are quickly made."""
    asked = []
    for i in range(60):
        asked.append({"prompt": PROMPTS[i % len(PROMPTS)], "seed": i, "max_tokens": [8, 40, 120][i % 3],
                      "temperature": [0, 0.8, 1][i // 3 % 3], "ignore_eos": True})
    return asked


def plain_texts(options, asked, folder):
    path = os.path.join(folder, "asked.jsonl")
    with open(path, "w") as file:
        for request in asked:
            file.write(json.dumps(request) + "\n")
    run = subprocess.run([options.outrider, "generate", "--model", options.model, "--prompts", path, "--quiet", "--threads", "1"],
                         stdout=subprocess.PIPE, check=True)
    return [json.loads(line)["text"] for line in run.stdout.decode().splitlines()]


class Program:
    """A child that can be killed and started again, and whose standard error can be looked at."""

    def __init__(self, name, folder, arguments):
        self.name, self.arguments = name, arguments
        self.log = os.path.join(folder, name + ".err")
        self.starts = 0
        self.start()

    def start(self):
        self.starts += 1
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.arguments, stderr=log, stdout=subprocess.DEVNULL)

    def said(self):
        with open(self.log, errors="replace") as log:
            return log.read()

    def waits_for(self, pattern, seconds=120):
        for _ in range(int(seconds * 20)):
            found = re.search(pattern, self.said())
            if found:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        sys.exit(f"{self.name} did not say {pattern}:\n{self.said()}")

    def has_died(self):
        return self.process.poll() is not None

    def kill_and_restart(self, pause):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        time.sleep(pause)
        self.start()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "hung"

    def resident_mib(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1)) / 1024


class Soak:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.asked = requests_to_ask()
        self.plain = plain_texts(options, self.asked, folder)
        self.counts = collections.Counter()
        self.wrong = []
        self.lock = threading.Lock()
        self.ends = 0.0
        common = ["--model", options.model, "--threads", "1"]
        self.server = Program("server", folder, [
            options.outrider, "serve", "--port", "0", "--data-parallel-size", str(options.groups), "--max-num-seqs", "4",
            "--listen-targets", "tcp://127.0.0.1:*", "--listen", "tcp://127.0.0.1:*", "--kv-cache-tokens", "0",
            "--max-model-len", "512", "--drafter", "suffix", *common])
        targets = self.server.waits_for(r"target-group --connect (\S+)").group(1)
        workers = self.server.waits_for(r"draft-worker --connect (\S+)").group(1)
        self.groups = [Program(f"group{i}", folder, [options.outrider, "target-group", "--connect", targets, "--max-num-seqs", "4",
                                                     "--max-model-len", "512", "--drafter", "suffix", *common])
                       for i in range(options.groups)]
        self.workers = [Program(f"worker{i}", folder, [options.outrider, "draft-worker", "--connect", workers, "--drafter",
                                                       ["ngram", "suffix"][i % 2]]) for i in range(options.workers)]
        self.address = self.server.waits_for(r"serving \S+ on (http\S+)").group(1)

    def note(self, what, wrong=None):
        with self.lock:
            self.counts[what] += 1
            if wrong:
                self.wrong.append(wrong)

    def ask(self, index, dice):
        """One request: whole, streamed, or streamed and left in the middle."""
        kind = dice.choice(["whole", "whole", "streamed", "streamed", "left"])
        body = dict(self.asked[index], stream=kind != "whole")
        if dice.random() < 0.3:
            body["num_speculative_tokens"] = dice.choice([0, 1, 5])
        request = urllib.request.Request(self.address + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                if kind == "whole":
                    text = json.load(answer)["choices"][0]["text"]
                else:
                    text, is_done = "", False
                    leave_after = dice.randrange(1, 20) if kind == "left" else None
                    for events, line in enumerate(answer):
                        if leave_after is not None and events >= leave_after:
                            return self.note("left")
                        if line.startswith(b"data: [DONE]"):
                            is_done = True
                        elif line.startswith(b"data: "):
                            event = json.loads(line[6:])
                            if "error" in event:
                                return self.note("error", f"request {index}: {event['error']}")
                            text += event["choices"][0]["text"] if event.get("choices") else ""
                    if not is_done:
                        return self.note("lost", f"request {index}: the stream broke off")
        except urllib.error.HTTPError as error:
            return self.note("error", f"request {index}: {error.code} {error.read()[:300]}")
        except OSError as error:
            return self.note("lost", f"request {index}: {error}")
        if text != self.plain[index]:
            return self.note("differs", f"request {index} ({kind}): {text!r} is not {self.plain[index]!r}")
        return self.note(kind)

    def client(self, seed):
        dice = random.Random(seed)
        while time.time() < self.ends:
            self.ask(dice.randrange(len(self.asked)), dice)
            self.rest(dice.uniform(0, 2) * self.options.pause)

    def rest(self, seconds):
        time.sleep(max(0, min(seconds, self.ends - time.time())))

    def break_things(self):
        """At any time all groups but one, and all workers, may be away."""
        dice = random.Random(self.options.seed)
        while time.time() < self.ends:
            self.rest(dice.uniform(0.5, 2) * self.options.between_faults)
            for program in self.groups + self.workers:
                if program.has_died():
                    self.note("died by themselves", f"{program.name} ended with {program.process.returncode}: "
                                                    f"{program.said()[-300:]}")
                    program.start()
            victim = dice.choice(self.groups + self.workers)
            victim.kill_and_restart(dice.uniform(0, 2))
            self.note("groups killed" if victim in self.groups else "workers killed")

    def counter(self, name):
        with urllib.request.urlopen(self.address + "/metrics", timeout=60) as metrics:
            return re.search(rf"^{name}(?:{{.*}})? (\d+)", metrics.read().decode(), re.M).group(1)

    @staticmethod
    def cpu_seconds():
        """Of all programs, those that were killed and waited for, and this one."""
        children, mine = resource.getrusage(resource.RUSAGE_CHILDREN), resource.getrusage(resource.RUSAGE_SELF)
        return sum(usage.ru_utime + usage.ru_stime for usage in (children, mine))

    def run(self):
        begin = time.time()
        self.ends = begin + 60 * self.options.minutes
        threads = [threading.Thread(target=self.client, args=(self.options.seed + i,)) for i in range(self.options.clients)]
        threads.append(threading.Thread(target=self.break_things))
        for thread in threads:
            thread.start()
        memory = []
        while any(thread.is_alive() for thread in threads):
            if self.server.has_died():
                self.note("died by themselves", f"the server ended with {self.server.process.returncode}: "
                                                f"{self.server.said()[-1000:]}")
                self.ends = 0
                break
            memory.append(self.server.resident_mib())
            time.sleep(1)
        for thread in threads:
            thread.join()
        quarter = memory[len(memory) // 4] if memory else 0
        seconds = time.time() - begin
        print(f"{seconds:.0f} s: " + ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items())))
        print(f"server: {memory[0]:.0f} MiB at first, {quarter:.0f} after a quarter, {memory[-1]:.0f} at the end, at most "
              f"{max(memory):.0f}")
        if not self.server.has_died():
            print(f"went on in another group, or in the next one: {self.counter('outrider_failovers_total')} requests")
        codes = {program.name: program.stop() for program in [self.server, *self.groups, *self.workers]}
        bad = {name: code for name, code in codes.items() if code != 0}
        print(f"processor: {self.cpu_seconds() / seconds:.2f} of a core")
        print("all ended with code 0" if not bad else f"exit codes: {bad}")
        for wrong in self.wrong[:10]:
            print("  " + wrong)
        grows = self.options.minutes >= 5 and memory[-1] > 1.2 * quarter + 8
        if grows:
            print("memory grows")
        return 1 if self.wrong or bad or grows else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outrider", default="build/release/outrider")
    parser.add_argument("--model", default="launch/demo_pair/target")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--between-faults", type=float, default=3, help="seconds, about")
    parser.add_argument("--pause", type=float, default=0, help="seconds, about, that a client waits between two requests")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(options, folder)
        try:
            return soak.run()
        finally:
            for program in [soak.server, *soak.groups, *soak.workers]:
                if program.process.poll() is None:
                    program.process.kill()


if __name__ == "__main__":
    sys.exit(main())
