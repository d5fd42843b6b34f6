#!/usr/bin/env python3
"""What a client of `outrider serve` sees: tokens per second, time to the first token and per token, for several numbers
of clients at a time, with the draft model and without. Both servers get the same requests, in turns, and must answer
with the same texts."""
import argparse
import concurrent.futures
import http.client
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outrider", default=os.path.join(ROOT, "build/release/outrider"))
    parser.add_argument("--model", default=os.path.join(ROOT, "launch/demo_pair/target"))
    parser.add_argument("--draft-model", default=os.path.join(ROOT, "launch/demo_pair/draft"))
    parser.add_argument("--prompts", default=os.path.join(ROOT, "lab/study/openings.jsonl"))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--requests", type=int, default=4, help="of each client")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--body", type=json.loads, default={}, help="JSON object: further fields of every request")
    parser.add_argument("flags", nargs="*", help="further flags of both servers, after --")
    return parser.parse_args()


class Server:
    def __init__(self, name, command):
        self.name = name
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.port = None
        said = []
        for line in self.process.stderr:
            said.append(line)
            if " on http://" in line:
                self.port = int(line.rsplit(":", 1)[1])
                return
        sys.exit("%s did not start:\n%s" % (name, "".join(said)))

    def stop(self):
        self.process.terminate()
        self.process.stderr.read()
        if self.process.wait() != 0:
            sys.exit("%s ended with code %d" % (self.name, self.process.returncode))


class Answer:
    """One streamed completion, as it comes."""

    def __init__(self, server, request):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
        begin = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            sys.exit("%s answered %d: %s" % (server.name, reply.status, reply.read().decode()))
        self.text, self.tokens, first, last = "", 0, None, begin
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                sys.exit("%s: %s" % (server.name, event["error"]["message"]))
            if event["choices"] and event["choices"][0]["text"]:
                self.text += event["choices"][0]["text"]
                last = time.perf_counter()
                first = first or last
            if event.get("usage"):
                self.tokens = event["usage"]["completion_tokens"]
        connection.close()
        self.first = (first or last) - begin
        self.per_token = (last - (first or last)) / max(self.tokens - 1, 1)


def load(server, requests, clients):
    """Every client asks for its share, one after the other. Tokens per second of all, and the answers."""
    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        shares = [requests[c::clients] for c in range(clients)]
        answers = list(pool.map(lambda share: [Answer(server, request) for request in share], shares))
    seconds = time.perf_counter() - begin
    of_all = [answer for share in answers for answer in share]
    return sum(answer.tokens for answer in of_all) / seconds, of_all


def main():
    options = arguments()
    with open(options.prompts) as lines:
        prompts = [json.loads(line)["prompt"] for line in lines if line.strip()]
    most = max(options.clients)
    base = [options.outrider, "serve", "--quiet", "--port", "0", "--model", options.model, "--max-num-seqs", str(most),
            *options.flags]
    servers = [Server("plain", base), Server("speculative", [*base, "--draft-model", options.draft_model])]

    def requests(count):
        common = {"max_tokens": options.max_tokens, "temperature": options.temperature, "ignore_eos": True, "stream": True,
                  "stream_options": {"include_usage": True}, **options.body}
        return [{"prompt": prompts[i % len(prompts)], "seed": i, **common} for i in range(count)]

    print("%7s  %26s  %26s  %s" % ("", "plain", "speculative", "speculative"))
    columns = ("tokens/s", "TTFT ms", "TPOT ms")
    print("%7s  %8s %8s %8s  %8s %8s %8s  %s" % ("clients", *columns, *columns, "of plain"))
    for server in servers:
        load(server, requests(most), most)  # warm
    for clients in options.clients:
        rates, answers = {"plain": [], "speculative": []}, {"plain": [], "speculative": []}
        for turn in range(options.repetitions):
            texts = []
            for server in servers if turn % 2 == 0 else servers[::-1]:
                rate, all_answers = load(server, requests(clients * options.requests), clients)
                rates[server.name].append(rate)
                answers[server.name] += all_answers
                texts.append([answer.text for answer in all_answers])
            if texts[0] != texts[1]:
                sys.exit("the texts differ")
        row = ["%7d" % clients]
        for name in ("plain", "speculative"):
            first = statistics.median(a.first for a in answers[name])
            per_token = statistics.median(a.per_token for a in answers[name])
            row.append(" %8.0f %8.1f %8.2f" % (statistics.median(rates[name]), 1e3 * first, 1e3 * per_token))
        ratios = [s / p for p, s in zip(rates["plain"], rates["speculative"])]
        row.append(" %.2f (%.2f to %.2f)" % (statistics.median(ratios), min(ratios), max(ratios)))
        print(" ".join(row), flush=True)
    for server in servers:
        server.stop()


if __name__ == "__main__":
    main()
