#!/usr/bin/env python3
"""Writes model_files/gguf_codebooks.inc from the package gguf (0.19): the codebooks that ggml defines.

    python3 -m venv goldvenv && goldvenv/bin/pip install gguf
    goldvenv/bin/python tests/goldens/make_gguf_codebooks.py model_files/gguf_codebooks.inc
"""

import sys
from importlib import metadata

import numpy as np
from gguf import quants


def words_of(kind):
    """A 16-bit word an entry: numbers of grid_map, the first in the lowest bits."""
    per_entry = kind.grid_shape[1]
    kind.init_grid()
    grid = kind.grid.reshape(kind.grid_shape)
    place = {value: i for i, value in enumerate(kind.grid_map)}
    bits = 16 // per_entry
    return [sum(place[int(v)] << bits * i for i, v in enumerate(row)) for row in grid]


out = [f"// Made by tests/goldens/make_gguf_codebooks.py from gguf {metadata.version('gguf')} (MIT licence, the ggml authors).",
       "// A word an entry: numbers of its magnitudes, two bits each, of IQ3 four; the first in the lowest bits.", "// clang-format off"]
for name in ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]:
    words = words_of(getattr(quants, name))
    out.append(f"constexpr uint16_t k{name.replace('_', '')}[{len(words)}]{{")
    for i in range(0, len(words), 15):
        out.append("  " + " ".join(f"{w}," for w in words[i:i + 15]))
    out.append("};")
out.append("// clang-format on")
open(sys.argv[1], "w").write("\n".join(out) + "\n")
