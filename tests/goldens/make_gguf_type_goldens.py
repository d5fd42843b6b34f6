#!/usr/bin/env python3
"""Writes tests/goldens/gguf_types: blocks of every tensor type of GGUF with random bytes, and the numbers that they stand for.

    python3 -m venv goldvenv && goldvenv/bin/pip install gguf safetensors numpy
    goldvenv/bin/python tests/goldens/make_gguf_type_goldens.py [output directory]

blocks.gguf         a tensor of two rows of 256 columns for each type, named as the type
numbers.safetensors the same names, float32: gguf.quants.dequantize (release 0.19)
Bytes are random, but fp16 scales are finite, and scales of MXFP4 and NVFP4 are not NaN.
"""

import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from safetensors.numpy import save_file

# Where fp16 numbers lie in a block.
HALVES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
          T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ2_XXS: [0], T.IQ2_XS: [0], T.IQ3_XXS: [0], T.IQ1_S: [0],
          T.IQ4_NL: [0], T.IQ3_S: [0], T.IQ2_S: [0], T.IQ4_XS: [0], T.IQ1_M: [], T.TQ1_0: [52], T.TQ2_0: [64],
          T.MXFP4: [], T.NVFP4: [], T.BF16: [], T.F16: [0], T.F32: []}
ROWS, COLUMNS = 2, 256

out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "gguf_types")
out.mkdir(exist_ok=True)
random = np.random.RandomState(17)
writer = gguf.GGUFWriter(out / "blocks.gguf", "llama")
numbers = {}
for kind, halves in HALVES.items():
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.randint(0, 256, (ROWS * COLUMNS // elements, size), dtype=np.uint8)
    for at in halves:  # mostly small, some subnormal
        values = random.choice([0x03ff, 0x1234, 0x2e66, 0x0001, 0x3c00], len(blocks)).astype(np.uint16)
        values = values + random.randint(0, 200, len(blocks)).astype(np.uint16) | (random.randint(0, 2, len(blocks)) << 15).astype(np.uint16)
        blocks[:, at:at + 2] = values.reshape(-1, 1).view(np.uint8)
    if kind == T.IQ1_M:  # quarters of an fp16 number in the upper halves of four words: below infinity
        blocks[:, 55] = blocks[:, 55] & 0xbf
    if kind == T.MXFP4:
        blocks[:, 0] %= 160  # of 254 and 255 the package makes large numbers; they are infinity and NaN
    if kind == T.NVFP4:
        blocks[:, :4] &= 0x7f
    if kind in (T.F32, T.BF16):  # exponents below infinity
        blocks[:, size - 1] &= 0xbf
    rows = blocks.reshape(ROWS, -1)
    writer.add_tensor(kind.name, rows if kind not in (T.F32, T.F16) else rows.view(np.float32 if kind == T.F32 else np.float16),
                      raw_dtype=kind)
    numbers[kind.name] = np.ascontiguousarray(gguf.quants.dequantize(rows, kind).reshape(ROWS, COLUMNS).astype(np.float32))
    assert np.isfinite(numbers[kind.name]).all(), kind.name
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
save_file(numbers, out / "numbers.safetensors")
