"""A rule's kernels, serial and parallel, made of its elementwise update.

The update is compiled without any fast-math flag and inlined into a loop over a strip of elements, which also sums up
the statistics. Only those additions may be reassociated, so LLVM vectorises them without touching the update. A block's
sums do not depend on the thread that computes them, and blocks are added in order, so neither parameters nor statistics
depend on the number of threads.

Strips are summed in float32 and added up in float64. A strip's sum of squares that may have overflowed or underflowed
is computed again in float64, from what is still in the level 1 cache.

The loops are generated as text, because the number of vectors and settings differs by rule, and Numba compiles no loop
over arrays in a tuple as well. Their names have a checksum of this file, so Numba's cache notices a change here.
"""

from __future__ import annotations

import inspect
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from gem_core.rules.blocks import (
    BLOCK,
    INTEGER,
    PARTIALS,
    READ_ONLY_VECTOR,
    SCALAR,
    STRIP,
    VECTOR,
    Driver,
    arithmetic,
    block_function,
    driver_function,
)

__all__ = ["NO_LIMITS", "Kernel", "Statistics"]

# Between these a sum of squares in float32 has overflowed nowhere, and what has underflowed is less than 1e-6 of it.
_LEAST_SUM, _LARGEST_SUM = np.float32(1e-28), np.float32(1e38)
# For rules whose factor has no least and no largest value: equal to nothing.
NO_LIMITS = (np.float32(math.nan), np.float32(math.nan))

_LOOPS = """
@block_function
def update_strip(theta, snapshot, {vectors}delta, drifts, updates, {scalars}least, most):
    none, one = float32(0), float32(1)
    moving = blocked = clamped = factors = none
    proxy_squares = drift_squares = delta_squares = update_squares = none
    for i in range(theta.size):
        d = delta[i]
        drift = difference(theta[i], snapshot[i])
        new_theta, sent, {new}update, factor = update_element(theta[i], snapshot[i], {elements}d, {scalars})
        theta[i] = new_theta
        snapshot[i] = sent
        {store}
        drifts[i] = drift
        updates[i] = update
        moves = one if d != none else none
        moving += moves
        blocked += moves if factor == least else none
        clamped += moves if factor == most else none
        factors += factor if d != none else none
        {sum_up_proxy}
        drift_squares += drift * drift
        delta_squares += d * d
        update_squares += update * update
    return moving, blocked, clamped, factors, proxy_squares, drift_squares, delta_squares, update_squares

@driver_function
def update_block(theta, snapshot, {vectors}delta, {scalars}least, most, sums):
    drifts, updates = empty(STRIP, float32), empty(STRIP, float32)
    sums[:] = 0
    for a in range(0, theta.size, STRIP):
        b = min(a + STRIP, theta.size)
        found = update_strip(
            theta[a:b], snapshot[a:b], {slices}delta[a:b], drifts[: b - a], updates[: b - a], {scalars}least, most
        )
        for column in range(4):
            sums[column] += found[column]
        {add_proxy}
        sums[5] += squares(found[5], drifts[: b - a])
        sums[6] += squares(found[6], delta[a:b])
        sums[7] += squares(found[7], updates[: b - a])

def serial(theta, snapshot, {vectors}delta, {scalars}least, most, partials, length):
    for block in range(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        update_block(theta[a:b], snapshot[a:b], {slices}delta[a:b], {scalars}least, most, partials[block])

def parallel(theta, snapshot, {vectors}delta, {scalars}least, most, partials, length):
    for block in prange(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        update_block(theta[a:b], snapshot[a:b], {slices}delta[a:b], {scalars}least, most, partials[block])
"""


class Statistics(NamedTuple):
    """What one commit did.

    The first three are over the elements with delta != 0, and 0 when there are none: there pi cannot change anything.
    The norms are Euclidean, over all elements: within 1e-6, and finite for every delta that staging lets through, as
    long as the parameters are.

    Attributes:
        mean_pi: mean of pi; a rule without a pi reports the factor by which it applied the delta.
        blocked_fraction: fraction with pi = pi_min: nothing (or the least) of delta was applied. Without a pi 1 for a
            commit that was dropped, else 0.
        clamped_fraction: fraction with pi = pi_max. 0 without a pi.
        proxy_norm: of kappa * m, the energy proxy, after the commit; of another rule's moment; 0 without one.
        drift_norm: of theta - s before the commit: what others did since this worker's snapshot.
        delta_norm: of delta.
        update_norm: of what was added to theta.
    """

    mean_pi: float
    blocked_fraction: float
    clamped_fraction: float
    proxy_norm: float
    drift_norm: float
    delta_norm: float
    update_norm: float


class Kernel:
    """Applies a delta to vectors in place, in one pass over memory, and returns the commit's statistics.

    Attributes:
        serial, parallel: the compiled loops over blocks.
    """

    def __init__(self, update: Callable[..., tuple[Any, ...]], proxy: str = "") -> None:
        """Make the loops; they are compiled at their first call.

        Args:
            update: (theta, snapshot, *vectors, delta, *scalars) -> (theta, snapshot, *vectors, update, factor), of one
                element, in float32: the new values, what was added to theta, and by which factor of delta.
            proxy: the one of the vectors whose norm is reported; "": none.
        """
        names = list(inspect.signature(update).parameters)
        at = names.index("delta")
        vectors, scalars = names[2:at], names[at + 1 :]
        text = _LOOPS.format(
            vectors=_listed(vectors),
            scalars=_listed(scalars),
            elements=_listed(f"{name}[i]" for name in vectors),
            new=_listed(f"new_{name}" for name in vectors),
            store="; ".join(f"{name}[i] = new_{name}" for name in vectors),
            slices=_listed(f"{name}[a:b]" for name in vectors),
            sum_up_proxy=f"proxy_squares += new_{proxy} * new_{proxy}" if proxy else "",
            add_proxy=f"sums[4] += squares(found[4], {proxy}[a:b])" if proxy else "",
        )
        # In the rule's module and file, beside which Numba keeps what it has compiled.
        namespace: dict[str, Any] = {**_NAMES, "update_element": arithmetic(update), "__name__": update.__module__}
        exec(compile(text, update.__code__.co_filename, "exec"), namespace)  # noqa: S102  (the text is the one above)
        signature = (
            *[VECTOR] * (2 + len(vectors)), READ_ONLY_VECTOR, *[SCALAR] * (len(scalars) + 2), PARTIALS, INTEGER,
        )  # fmt: skip
        for loop in ("serial", "parallel"):
            namespace[loop].__qualname__ = f"{update.__qualname__}_{loop}_{_CHECKSUM:08x}"
        self.serial = Driver(namespace["serial"], signature, parallel=False)
        self.parallel = Driver(namespace["parallel"], signature, parallel=True)

    def __call__(
        self,
        theta: NDArray[np.float32],
        snapshot: NDArray[np.float32],
        vectors: tuple[NDArray[np.float32], ...],
        delta: NDArray[np.float32],
        scalars: tuple[np.float32, ...],
        proxy_scale: float,
        parallel: bool,
    ) -> Statistics:
        """Apply `delta` to `theta`, `snapshot` and `vectors` (float32, shape (n,)). Releases the interpreter lock.

        `scalars` are the update's, and the least and the largest factor, which count as blocked and clamped.
        """
        partials = np.empty((-(-theta.size // BLOCK), 8))
        loop = self.parallel if parallel else self.serial
        loop(theta, snapshot, *vectors, delta, *scalars, partials, BLOCK)
        sums = partials[0] if len(partials) == 1 else np.add.reduce(partials, axis=0)  # from the first to the last
        moving, blocked, clamped, factors, proxy, drift, deltas, updates = sums.tolist()
        moving = moving or 1.0  # the counts are 0 as well
        return Statistics(
            factors / moving,
            blocked / moving,
            clamped / moving,
            proxy_scale * math.sqrt(proxy),
            math.sqrt(drift),
            math.sqrt(deltas),
            math.sqrt(updates),
        )


@arithmetic
def _difference(a, b):  # type: ignore[no-untyped-def]
    return a - b


@block_function
def _precise_squares(values):  # type: ignore[no-untyped-def]
    total = np.float64(0)
    for i in range(values.size):
        total += np.float64(values[i]) * np.float64(values[i])
    return total


@driver_function
def _squares(quick, values):  # type: ignore[no-untyped-def]
    """The sum of the squares of `values` in float64: `quick`, found in float32, where that can be trusted."""
    if _LEAST_SUM <= quick <= _LARGEST_SUM:
        return np.float64(quick)
    return _precise_squares(values)


def _listed(names: Any) -> str:
    return "".join(f"{name}, " for name in names)


_CHECKSUM = zlib.crc32(Path(__file__).read_bytes())
# What the generated text refers to.
_NAMES = {
    "STRIP": STRIP,
    "block_function": block_function,
    "difference": _difference,
    "driver_function": driver_function,
    "empty": np.empty,
    "float32": np.float32,
    "prange": prange,
    "squares": _squares,
}
