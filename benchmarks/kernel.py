"""How fast the update rules' kernels are, against a memory copy of as many bytes, in one run on one machine.

    python -m benchmarks.kernel [--parameters 2048 262144 4194304 61100840] [--threads 0] [--rounds 15]

A rule reads theta, s and delta and writes theta and s; gem also reads and writes m: 28 bytes a parameter together. A
copy that moves as many (it reads half of them, and writes half) is made on as many threads as the kernel beside it: on
one by np.copyto and by a Numba loop, on several by np.copyto in threads and by a Numba loop with prange; the faster one
counts. All statistics are part of the kernels. `rule.commit` is gem's whole call, with the Python around the kernel
that the server would choose.

Everybody works on memory of its own and takes turns. What is shown is the median of the rounds, in which small ones run
many times in a row; a ratio is the median of the rounds' ratios, so that another process disturbs both sides alike.

The limit is 1.3 times the copy for each kernel of gem. Where the vectors lie in a core's cache (2 048 parameters) a
copy takes less than a microsecond, less than calling anything from Python, and the limit is out of reach: float64 sums
take longer than the copy there.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle

import numba
import numpy as np

import gem_core
from gem_core import ElementType, Layout, TensorKind, TensorSpec
from gem_core.rules.interface import UpdateRule
from gem_core.threads import configure_threads
from gem_core.thresholds import PARALLEL_FROM

SIZES = (2_048, 262_144, 4_194_304, 61_100_840)
# Bytes a parameter that a rule reads and writes.
TRAFFIC = {
    "gem": 28,
    "gem with decay": 28,
    "downpour": 20,
    "adaptive-staleness": 20,
}
DECAY = " with decay"
LIMIT = 1.3
# A round of each takes at least so many seconds, calls repeated.
ROUND = 0.002
# Beyond it the other rules and plain NumPy are left out: they would only take time.
SMALL_ENOUGH = 8_000_000

Call = Callable[[], object]


def rule_memory(rule: UpdateRule, elements: int) -> Callable[[bool | None], Call]:
    """Commits of `rule` on memory of its own: by the parallel kernel, the serial one, or (None) the rule's choice."""
    random = np.random.default_rng(0)
    parameters = random.standard_normal(elements, np.float32)
    delta = random.standard_normal(elements, np.float32)
    delta *= np.float32(0.001)
    state = rule.new_worker(parameters)

    def commit(parallel: bool | None) -> Call:
        if parallel is None:
            return lambda: rule.commit(parameters, state, delta, 1, 1.0)
        return lambda: rule._commit(parameters, state, delta, 1, 1.0, parallel)

    return commit


def rule_of(name: str, elements: int) -> UpdateRule:
    """The rule of a row. Its weight decay sees matrices of 256 columns, and a bias after each, as of a transformer."""
    decays = {"weight_decay": 0.1} if name.endswith(DECAY) else {}
    rule, tensors, left = gem_core.create_rule(name.removesuffix(DECAY), **decays), [], elements
    for shape in cycle(((256, 256), (256,), (1024, 256), (1024,))):
        shape = shape if math.prod(shape) <= left else (left,)
        tensors.append(TensorSpec(str(len(tensors)), shape, ElementType.FLOAT32, TensorKind.PARAMETER))
        left -= math.prod(shape)
        if not left:
            break
    rule.begin(Layout(tensors))
    return rule


def plain_numpy_gem(elements: int) -> Call:
    """The four equations as one writes them first: a temporary for every operation."""
    random = np.random.default_rng(0)
    theta = random.standard_normal(elements, np.float32)
    delta = random.standard_normal(elements, np.float32) * np.float32(0.001)
    snapshot, moment = theta.copy(), np.zeros_like(theta)
    mu, epsilon = np.float32(0.9), np.float32(1e-12)

    def commit() -> None:
        nonlocal theta, snapshot, moment
        moment = mu * moment + delta
        pi = np.clip((np.abs(moment) - np.abs(theta - snapshot)) / (np.abs(delta) + epsilon), 0, 5)
        theta = theta + pi * delta
        snapshot = theta.copy()

    return commit


@numba.njit(nogil=True)
def _copy_serial(target, source):  # type: ignore[no-untyped-def]
    for i in range(target.size):
        target[i] = source[i]


@numba.njit(nogil=True, parallel=True)
def _copy_parallel(target, source):  # type: ignore[no-untyped-def]
    for i in numba.prange(target.size):
        target[i] = source[i]


def copies(
    elements: int, traffic: int, threads: int, pool: ThreadPoolExecutor
) -> tuple[dict[str, Call], dict[str, Call]]:
    """Ways to read and write `traffic` bytes a parameter together, on one thread and on several."""
    words = elements * traffic // 8
    source, target = np.ones(words, np.float32), np.zeros(words, np.float32)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    _copy_serial(target[:1], source[:1])
    _copy_parallel(target[:1], source[:1])

    def in_threads() -> None:
        # The calling thread does its part, too.
        others: list[Future[None]] = [pool.submit(np.copyto, *part) for part in parts[1:]]
        np.copyto(*parts[0])
        for other in others:
            other.result()

    one = {"np.copyto": lambda: np.copyto(target, source), "Numba": lambda: _copy_serial(target, source)}
    several = {"np.copyto in threads": in_threads, "Numba prange": lambda: _copy_parallel(target, source)}
    return one, several


def rounds_of(contenders: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Seconds a call of each, in every round; they take turns."""
    repeats = {}
    for name, run in contenders.items():
        run()
        start = time.perf_counter()
        run()
        repeats[name] = max(1, int(ROUND / (time.perf_counter() - start)))
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                run()
            taken[name].append((time.perf_counter() - start) / repeats[name])
    return taken


def compare(elements: int, threads: int, rounds: int, pool: ThreadPoolExecutor) -> None:
    """Measure at one size and print a table."""
    rules = tuple(TRAFFIC) if elements <= SMALL_ENOUGH else ("gem", "gem with decay")
    contenders: dict[str, Call] = {}
    against: dict[str, list[str]] = {}
    for traffic in sorted({TRAFFIC[name] for name in rules}, reverse=True):
        for ways, number in zip(copies(elements, traffic, threads, pool), (1, threads), strict=True):
            names = [f"copy {traffic} B, {number} thread{'s'[: number - 1]}, {way}" for way in ways]
            contenders |= dict(zip(names, ways.values(), strict=True))
            for rule_name in (name for name in rules if TRAFFIC[name] == traffic):
                kernel = f"{rule_name}, {'parallel' if ways.keys() & {'Numba prange'} else 'serial'}"
                against[kernel] = names
    for name in rules:
        rule = rule_of(name, elements)
        rule.warm_up()
        commit = rule_memory(rule, elements)
        contenders[f"{name}, serial"] = commit(False)
        contenders[f"{name}, parallel"] = commit(True)
        if name == "gem":
            contenders["gem, rule.commit"] = commit(None)
            against["gem, rule.commit"] = against["gem, parallel" if elements >= PARALLEL_FROM else "gem, serial"]
    if elements <= SMALL_ENOUGH:
        contenders["gem, plain NumPy"] = plain_numpy_gem(elements)
        against["gem, plain NumPy"] = against["gem, serial"]
    taken = rounds_of(contenders, rounds)

    chosen = "parallel" if elements >= PARALLEL_FROM else "serial"
    print(f"\n{elements:,} parameters (the server uses the {chosen} kernel)")
    print(f"{'':42}{'ms':>10}{'ns/parameter':>14}{'/ its copy':>12}")
    for name, times in taken.items():
        row = f"{name:42}{statistics.median(times) * 1e3:10.3f}{statistics.median(times) / elements * 1e9:14.2f}"
        if name in against:
            # The copy that is faster on the whole, round by round.
            copy = taken[min(against[name], key=lambda way: statistics.median(taken[way]))]
            ratio = statistics.median(mine / its for mine, its in zip(times, copy, strict=True))
            row += f"{ratio:12.2f}"
            if name == f"gem, {chosen}":
                row += f"  {'met' if ratio <= LIMIT else 'NOT met'}: at most {LIMIT}"
        print(row, flush=True)


def main() -> None:
    """Measure and print a table a size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, nargs="+", default=SIZES, help="sizes of the model")
    parser.add_argument("--threads", type=int, default=0, help="threads of parallel kernels and copies; 0: all")
    parser.add_argument("--rounds", type=int, default=15, help="times each is measured (default 15)")
    arguments = parser.parse_args()
    threads = configure_threads(arguments.threads)
    print(f"{threads.number} threads ({threads.layer}); medians of {arguments.rounds} rounds")
    with ThreadPoolExecutor(max(1, threads.number - 1)) as pool:
        for elements in arguments.parameters:
            compare(elements, threads.number, arguments.rounds, pool)


if __name__ == "__main__":
    main()
