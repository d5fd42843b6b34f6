#!/usr/bin/env python3
"""Writes a model in the formats in which quantised models are published, its weights rounded to nearest, for timing
(lab/study/packed_formats.toml). Needs what ../goldens/make_format_goldens.py needs; about eight minutes for 1.1 B
parameters.

    packed_formats.py pair/target packed            writes packed/gptq-4bit, packed/awq-4bit, ...
"""
import argparse
import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a Llama in bf16 with one model.safetensors, as outrider synth writes it")
    parser.add_argument("output", type=Path)
    return parser.parse_args()


def write_formats(model, output):
    sys.path.insert(0, str(ROOT / "goldens"))
    import make_format_goldens as formats
    import torch
    from safetensors.torch import load_file, save_file

    bfloat, half = torch.bfloat16, torch.float16
    kinds = {
        "gptq-4bit": formats.gptq(4, 128, True, False, False),
        "gptq-4bit-act-order": formats.gptq(4, 128, False, True, True),
        "gptq-8bit": formats.gptq(8, 128, True, False, False),
        "awq-4bit": ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
                      "modules_to_not_convert": None}, lambda name, weight, number: formats.pack_awq(name, weight, 128)),
        "compressed-4bit": formats.compressed(
            "pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}, [],
            lambda name, weight, number: formats.pack_compressed(name, weight, 4, 128, True, bfloat)),
        "fp8-blocks": ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
                        "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]},
                       lambda name, weight, number: formats.pack_float8(name, weight, 128, 128, "weight_scale_inv",
                                                                        torch.float32)),
    }
    weights = load_file(model / "model.safetensors")
    linear = [name for name in weights if name.endswith("proj.weight")]
    for kind, (config, pack) in kinds.items():
        directory = output / kind
        if (directory / "model.safetensors").exists():
            continue
        directory.mkdir(parents=True, exist_ok=True)
        own_type = half if config["quant_method"] in ("gptq", "awq") else bfloat
        tensors = {name: tensor.to(own_type) for name, tensor in weights.items() if name not in linear}
        for number, name in enumerate(linear):
            tensors.update(pack(name.removesuffix(".weight"), weights[name].float(), number)[0])
        for file in model.iterdir():
            if file.name not in ("config.json", "model.safetensors"):
                shutil.copy(file, directory)
        described = json.loads((model / "config.json").read_text())
        described.update(quantization_config=config, torch_dtype=str(own_type).removeprefix("torch."))
        (directory / "config.json").write_text(json.dumps(described, indent=2))
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors",
                  {"format": "pt"})
        print(f"wrote {directory}", file=sys.stderr)


def main():
    options = arguments()
    write_formats(options.model, options.output)


if __name__ == "__main__":
    main()
