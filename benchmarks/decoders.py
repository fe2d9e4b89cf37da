"""How fast the server decodes each wire type, against a plain loop, in one run on one machine.

    python -m benchmarks.decoders [--parameters 2048 4200000] [--rounds 25]

The server's decoder refuses illegal bytes; the plain loop only converts, and writes as simply as one writes it first.
Both decode the same bytes, each into its own memory, and take turns. The table has the shortest time of all rounds and
the ratio of the two; a round of a small vector runs it many times in a row. The limit for int4 at 4.2 million
parameters is 1.05.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numba
import numpy as np

from benchmarks.kernel import Call, rounds_of
from gem_core.aligned import aligned_empty
from gem_core.wire_kernels import COMPILED
from gem_core.wire_types import BLOCK_ELEMENTS, WireType

SIZES = (2_048, 4_200_000)


def main() -> None:
    """Measure and print a table a size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, nargs="+", default=SIZES, help="sizes of the model")
    parser.add_argument("--rounds", type=int, default=25, help="times each is measured (default 25)")
    arguments = parser.parse_args()
    for elements in arguments.parameters:
        compare(elements, arguments.rounds)


def compare(elements: int, rounds: int) -> None:
    """Measure at one size, in whole blocks, and print a table."""
    elements -= elements % BLOCK_ELEMENTS
    values = np.random.default_rng(0).standard_normal(elements, np.float32)
    print(f"\n{elements:,} parameters\n{'':16}{'decoder ms':>12}{'plain ms':>12}{'ratio':>8}")
    for wire_type, plain in PLAIN_LOOPS.items():
        encoded = COMPILED.encode(wire_type, values)
        decoded, wanted = aligned_empty(elements), aligned_empty(elements)
        contenders: dict[str, Call] = {
            "decoder": partial(COMPILED.decode, wire_type, encoded, decoded),
            "plain": partial(plain, np.frombuffer(encoded, np.uint8), wanted),
        }
        taken = rounds_of(contenders, rounds)
        assert np.array_equal(decoded, wanted), wire_type
        decoder, alone = min(taken["decoder"]), min(taken["plain"])
        print(f"{wire_type.name:16}{decoder * 1e3:12.4f}{alone * 1e3:12.4f}{decoder / alone:8.2f}", flush=True)


@numba.njit(nogil=True)
def _copy(data, out):  # type: ignore[no-untyped-def]
    values = data.view(np.float32)
    for i in range(out.size):
        out[i] = values[i]


@numba.njit(nogil=True)
def _widen(data, out):  # type: ignore[no-untyped-def]
    halves, words = data.view(np.uint16), out.view(np.uint32)
    for i in range(out.size):
        words[i] = np.uint32(halves[i]) << np.uint32(16)


@numba.njit(nogil=True)
def _dequantise_int4(data, out):  # type: ignore[no-untyped-def]
    blocks = out.size // BLOCK_ELEMENTS
    block_bytes = data.size // blocks
    for block in range(blocks):
        encoded = data[block * block_bytes : (block + 1) * block_bytes]
        values = out[block * BLOCK_ELEMENTS : (block + 1) * BLOCK_ELEMENTS]
        scale, pairs = encoded[:4].view(np.float32)[0], encoded[4:].view(np.int8)
        for i in range(pairs.size):
            values[2 * i] = np.float32(np.int8(pairs[i] << 4) >> 4) * scale
            values[2 * i + 1] = np.float32(pairs[i] >> 4) * scale


@numba.njit(nogil=True)
def _dequantise_sparse(data, out):  # type: ignore[no-untyped-def]
    blocks = out.size // BLOCK_ELEMENTS
    block_bytes = data.size // blocks
    for block in range(blocks):
        encoded = data[block * block_bytes : (block + 1) * block_bytes]
        values = out[block * BLOCK_ELEMENTS : (block + 1) * BLOCK_ELEMENTS]
        scale, groups = encoded[:4].view(np.float32)[0], encoded[4:].view(np.int8)
        values[:] = 0
        for i in range(groups.size):
            values[4 * i + (groups[i] & 3)] = np.float32(groups[i] >> 2) * scale


PLAIN_LOOPS: dict[WireType, Callable[..., Any]] = {
    WireType.FLOAT32: _copy,
    WireType.BFLOAT16: _widen,
    WireType.INT4_BLOCK: _dequantise_int4,
    WireType.SPARSE_BLOCK: _dequantise_sparse,
}


if __name__ == "__main__":
    main()
