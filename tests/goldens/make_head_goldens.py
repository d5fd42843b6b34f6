#!/usr/bin/env python3
"""Writes tests/goldens/heads: tiny heads with random weights for tests/goldens/models/qwen3, and the logits of their equations.

    python3 -m venv goldvenv && goldvenv/bin/pip install torch safetensors numpy
    goldvenv/bin/python tests/goldens/make_head_goldens.py [output directory]

Every sub-directory is a head as it is published, plus
    golden.safetensors  of Medusa: states [9, hidden] and the logits [9, 3, own vocabulary] of its branches; of Hydra: states [11, hidden], ids int32
                        [14], and logits [11, 3, vocabulary] of its branches behind each state, each after those of ids; of DFlash for N = 0, 1: states.N float32
                        [T, taps * hidden], random, ids.N int32 [T + 1 + tokens], and logits.N float32 [2, tokens, own vocabulary] of the
                        block's tokens behind the first T - 1 states and behind all, each after those of ids; of others for N = 0, 1: ids.N int32 [T + 3], of which the last two are drafted; states.N float32 [T, taps * hidden],
                        random; logits.N float32 [3, draft vocabulary] behind T - 1 pairs, and behind each drafted token
    goldvenv/bin/pip install transformers && goldvenv/bin/python tests/goldens/make_head_goldens.py --compare

says instead how far the modules' logits are from those of the layers of transformers.

The equations are written down once more in head_goldens/, a file for each kind of head.
"""
import sys
from pathlib import Path

from head_goldens import blocks, branches, modules, pairs
from head_goldens.common import HEADS_FOLDER


def main():
    if sys.argv[1:] == ["--compare"]:
        return modules.compare_all(HEADS_FOLDER)
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else HEADS_FOLDER
    for kind in (pairs, branches, blocks, modules):
        kind.write_all(root)


if __name__ == "__main__":
    main()
