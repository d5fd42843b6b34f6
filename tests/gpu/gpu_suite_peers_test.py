"""What gpu_suite_peers.py says of its peers, where torch and transformers are planted: a model whose next token follows from
all tokens before it, so that a peer that forgets one, or puts it elsewhere, writes another text.

  gpu_suite_peers_test.py LAUNCH_FOLDER
"""
import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import types
import unittest

VOCABULARY = 997


class Tensor:
    """Nested lists, with what the peers ask of a tensor."""

    def __init__(self, values):
        self.values = values

    def tolist(self):
        return self.values

    def clone(self):
        return Tensor(json.loads(json.dumps(self.values)))

    def argmax(self, axis):
        assert axis == -1
        return Tensor([[row.index(max(row)) for row in rows] for rows in self.values])

    def __getitem__(self, key):
        if key is None:
            return Tensor([self.values])
        if key == (slice(None), slice(-1, None)):
            return Tensor([rows[-1:] for rows in self.values])
        if isinstance(key, tuple):
            return Tensor(self.values[key[0]][key[1]])
        return Tensor(self.values[key])


def next_token(tokens):
    value = 7
    for token in tokens:
        value = (31 * value + token + 1) % VOCABULARY
    return value


class StaticCache:
    def __init__(self, config, max_cache_len):
        self.tokens = [None] * max_cache_len

    def reset(self):
        self.tokens = [None] * len(self.tokens)


class Model:
    """`faults`: of all models, by name."""

    def __init__(self, directory, faults):
        self.directory, self.faults = directory, faults
        self.config, self.generation_config = {}, types.SimpleNamespace(eos_token_id=0)

    def to(self, device):
        assert device == "cuda"
        return self

    def eval(self):
        return self

    def generate(self, ids, attention_mask, do_sample, max_new_tokens, min_new_tokens, pad_token_id, assistant_model=None):
        assert max_new_tokens == min_new_tokens and not do_sample and self.generation_config.eos_token_id is None
        tokens = list(ids.values[0])
        for _ in range(max_new_tokens):
            tokens.append(next_token(tokens))
        if assistant_model:
            assert assistant_model.directory == "draft"
            if "assistant fails" in self.faults:
                raise RuntimeError("no assistant today")
            if "assistant differs" in self.faults:
                tokens[-1] += 1
        return Tensor([tokens])

    def __call__(self, input_ids, position_ids, cache_position, past_key_values, use_cache):
        assert position_ids.values == [cache_position.values] and use_cache
        rows = []
        for token, position in zip(input_ids.values[0], cache_position.values):
            past_key_values.tokens[position] = token
            following = next_token(past_key_values.tokens[:position + 1])
            rows.append([float(i == following) for i in range(VOCABULARY)])
        return types.SimpleNamespace(logits=Tensor([rows]))


def plant(faults):
    def from_pretrained(directory, **options):
        if "old names" in faults and "dtype" in options:
            raise TypeError("unexpected keyword argument 'dtype'")
        assert list(options.values()) == ["bf16"]
        return Model(directory, faults)

    sys.modules["torch"] = types.SimpleNamespace(
        __version__="planted", bfloat16="bf16", tensor=lambda values, device: Tensor(values),
        arange=lambda count, device: Tensor(list(range(count))), ones_like=lambda ids: Tensor([[1] * len(ids.values[0])]),
        cat=lambda parts, axis: Tensor([[token for part in parts for token in part.values[0]]]),
        compile=lambda work, mode: work, inference_mode=lambda: lambda work: work,
        cuda=types.SimpleNamespace(synchronize=lambda: None),
        compiler=types.SimpleNamespace(cudagraph_mark_step_begin=lambda: None))
    sys.modules["transformers"] = types.SimpleNamespace(
        __version__="planted", StaticCache=StaticCache,
        AutoModelForCausalLM=types.SimpleNamespace(from_pretrained=from_pretrained))
    sys.modules.pop("gpu_suite_peers", None)
    return importlib.import_module("gpu_suite_peers")


class Peers(unittest.TestCase):
    def report(self, *faults, flags=()):
        peers = plant(faults)
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said:
            path = os.path.join(folder, "peers.json")
            sys.argv = ["peers", "--model", "target", "--draft", "draft", "--tokens", "24", "--json", path, *flags]
            peers.main()
            with open(path, encoding="utf-8") as file:
                return {peer["name"]: peer for peer in json.load(file)["peers"]}, said.getvalue()

    def test_all_write_the_text_of_plain_generation(self):
        for faults in ((), ("old names",)):
            peers, said = self.report(*faults)
            self.assertEqual(list(peers), ["plain", "assisted", "compiled_loop"])
            for peer in peers.values():
                self.assertGreater(peer["tokens_per_s"], 0)
                self.assertTrue(peer["same_as_plain"], peer)
            self.assertEqual(said.count("same tokens as plain: yes"), 3)

    def test_another_text_is_told(self):
        peers, said = self.report("assistant differs")
        self.assertEqual([peer["same_as_plain"] for peer in peers.values()], [True, False, True])
        self.assertIn("same tokens as plain: no", said)

    def test_one_that_fails_hides_no_other(self):
        peers, _ = self.report("assistant fails")
        self.assertEqual(peers["assisted"], {"name": "assisted", "not_run": "RuntimeError: no assistant today"})
        self.assertTrue(peers["compiled_loop"]["same_as_plain"])

    def test_without_time_nothing_runs_and_all_say_so(self):
        peers, said = self.report(flags=("--seconds", "-1"))
        self.assertEqual(len(peers), 3)
        for peer in peers.values():
            self.assertIn("--seconds is used up", peer["not_run"])
        self.assertEqual(said.count("not run"), 3)


if __name__ == "__main__":
    sys.path.insert(0, sys.argv.pop(1))
    sys.dont_write_bytecode = True
    unittest.main()
