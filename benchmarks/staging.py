"""What it takes to stage a delta and to apply it, with vectors that lie and are written in other ways.

    python benchmarks/staging.py [--parameters 262144 4194304 61100840] [--rounds 12]

What the server does with a commit, on one thread: the delta is decoded and judged into a staging buffer (over the
stream chunk by chunk, each in the cache when its turn comes; from shared memory in one pass, with its word sum), then
gem's update reads it.

"plain" is with vectors as NumPy makes them and ordinary stores; "aligned" lets vectors begin where cache lines begin;
"past the cache" writes the staging buffer with non-temporal stores as well, whatever its size. All take turns, each on
vectors of its own. Shown are medians of processor time, and the median of the rounds' ratios to "plain". gemps itself
is "aligned", and "past the cache" for copies and chunks from a size on: gem_core/checked_copy.py, wire_kernels.py.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from gem_core import ElementType, Layout, PayloadFormat, TensorKind, TensorSpec, WireType, checked_copy, wire_kernels
from gem_core.aligned import aligned_copy
from gem_core.rules.gem import Gem, GemState

Vector = NDArray[np.float32]
Stage = Callable[[int, Vector], None]  # a worker's, to there

SHARED = "float32, shared memory"
WIRE_TYPES = {"bfloat16": WireType.BFLOAT16, "int8": WireType.INT8_BLOCK}
NEVER = 1 << 62
# Of each variant: whether vectors begin where cache lines begin, and from which size on stores pass the cache.
VARIANTS = {"plain": (False, NEVER), "aligned": (True, NEVER), "past the cache": (True, 0)}
CHUNK_BYTES = 1 << 20
# Several, so that a vector has left the cache when its turn comes again; beyond a size each does so by itself.
WORKERS, LARGE = 4, 16_000_000


def plain_copy(values: Vector) -> Vector:
    """As NumPy's large vectors lie: 16 bytes behind the border of a cache line."""
    memory = aligned_copy(np.zeros(values.size + 4, np.float32))[4:]
    np.copyto(memory, values)
    return memory


class Commits:
    """A central variable with its workers' states, all of them in memory of their own."""

    def __init__(self, way: str, aligned: bool, nontemporal_from: int, elements: int) -> None:
        new = aligned_copy if aligned else plain_copy
        values = np.random.default_rng(0).standard_normal(elements, np.float32) * np.float32(0.001)
        workers = WORKERS if elements < LARGE else 1
        self._from = nontemporal_from
        self._rule = Gem({})
        self._theta = new(values)
        self._workers = [(GemState(new(values), new(values)), new(values)) for _ in range(workers)]
        self._stage = _copying(values, workers) if way == SHARED else _decoding(WIRE_TYPES[way], values)

    def commit(self) -> tuple[float, float]:
        """Milliseconds of processor time that a worker's staging takes, and its update; means over the workers."""
        staging = updating = 0.0
        with (
            mock.patch.object(checked_copy, "_NONTEMPORAL_FROM", self._from),
            mock.patch.object(wire_kernels, "_NONTEMPORAL_FROM", self._from),
        ):
            for worker, (state, staged) in enumerate(self._workers):
                begin = time.thread_time()
                self._stage(worker, staged)
                middle = time.thread_time()
                self._rule._commit(self._theta, state, staged, 0, parallel=False)
                staging += middle - begin
                updating += time.thread_time() - middle
        return 1000 * staging / len(self._workers), 1000 * updating / len(self._workers)


def _layout(elements: int) -> Layout:
    return Layout([TensorSpec("weight", (elements,), ElementType.FLOAT32, TensorKind.PARAMETER)])


def _copying(values: Vector, workers: int) -> Stage:
    layout = _layout(values.size)
    regions = [aligned_copy(values) for _ in range(workers)]

    def stage(worker: int, staged: Vector) -> None:
        checked_copy.checked_copy(regions[worker], staged, layout, -0.05)

    return stage


def _decoding(wire_type: WireType, values: Vector) -> Stage:
    payload = PayloadFormat(_layout(values.size), wire_type)
    encoded = bytes(wire_kernels.COMPILED.encode(wire_type, values))
    chunks = [(payload.parameter_elements(*cut), encoded[slice(*cut)]) for cut in payload.cut(CHUNK_BYTES)]

    def stage(_: int, staged: Vector) -> None:
        for elements, chunk in chunks:
            data = bytearray(chunk)  # in the cache, as if it came out of a socket; this copy counts
            assert wire_kernels.COMPILED.decode(wire_type, memoryview(data), staged[elements]) is None

    return stage


def measure(way: str, elements: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """(staging, updating) of each variant in every round."""
    made = {name: Commits(way, *variant, elements) for name, variant in VARIANTS.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in made}
    for number in range(-1, rounds):
        for name, commits in made.items():
            times = commits.commit()
            if number >= 0:  # the first touches memory for the first time
                found[name].append(times)
    return found


def main() -> None:
    """A table in Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parameters", type=int, nargs="+", default=[262_144, 4_194_304, 61_100_840])
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    Gem({}).warm_up()
    checked_copy.warm_up()
    wire_kernels.warm_up()
    print(
        "| delta | parameters | variant | staging ms | update ms | of plain's time |",
        "|---|---|---|---|---|---|",
        sep="\n",
    )
    for elements in arguments.parameters:
        for way in (SHARED, *WIRE_TYPES):
            found = measure(way, elements, arguments.rounds)
            for name, times in found.items():
                staging, updating = (statistics.median(column) for column in zip(*times, strict=True))
                ratio = statistics.median(
                    sum(own) / sum(plain) for own, plain in zip(times, found["plain"], strict=True)
                )
                print(f"| {way} | {elements:,} | {name} | {staging:.2f} | {updating:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
