"""Serial and parallel kernels, generated from a rule's elementwise update.

Only sums of statistics may be reassociated. Blocks are summed in order, so results do not depend on the number of
threads. Strips are summed in float32 and added in float64; unreliable sums of squares are recomputed.

Loops are generated as text: Numba compiles loops over tuples of arrays poorly.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from gem_core.compilation import (
    INTEGER,
    INTEGERS,
    PARTIALS,
    READ_ONLY_VECTOR,
    SCALAR,
    VECTOR,
    Driver,
    arithmetic,
    block_function,
    driver_function,
)
from gem_core.thresholds import BLOCK, STRIP

__all__ = ["NO_LIMITS", "Decay", "Kernel", "Statistics"]

# Float32 sums of squares beyond these are unreliable.
_LEAST_SUM, _LARGEST_SUM = np.float32(1e-28), np.float32(1e38)
# NaN equals no factor.
NO_LIMITS = (np.float32(math.nan), np.float32(math.nan))

_STRIPS = """
@block_function
def {name}_strip(theta, snapshot, {vectors}delta, drifts, updates, {scalars}least, most{kept}):
    none, one = float32(0), float32(1)
    moving = blocked = clamped = factors = none
    proxy_squares = drift_squares = delta_squares = update_squares = none
    for i in range(theta.size):
        d = delta[i]
        drift = difference(theta[i], snapshot[i])
        new_theta, sent, {new}update, factor = update_element(theta[i], snapshot[i], {elements}d, {scalars})
        {decay}
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
def {name}_block(theta, snapshot, {vectors}delta, {scalars}least, most{kept}, sums):
    drifts, updates = empty(STRIP, float32), empty(STRIP, float32)
    sums[:] = 0
    for a in range(0, theta.size, STRIP):
        b = min(a + STRIP, theta.size)
        found = {name}_strip(
            theta[a:b], snapshot[a:b], {slices}delta[a:b], drifts[: b - a], updates[: b - a], {scalars}least, most{kept}
        )
        for column in range(4):
            sums[column] += found[column]
        {add_proxy}
        sums[5] += squares(found[5], drifts[: b - a])
        sums[6] += squares(found[6], delta[a:b])
        sums[7] += squares(found[7], updates[: b - a])
"""

_BLOCKS = """
def serial(theta, snapshot, {vectors}delta, {scalars}least, most, partials, length):
    for block in range(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        {name}_block(theta[a:b], snapshot[a:b], {slices}delta[a:b], {scalars}least, most, partials[block])

def parallel(theta, snapshot, {vectors}delta, {scalars}least, most, partials, length):
    for block in prange(partials.shape[0]):
        a, b = block * length, min((block + 1) * length, theta.size)
        {name}_block(theta[a:b], snapshot[a:b], {slices}delta[a:b], {scalars}least, most, partials[block])
"""

_PIECES = """
def serial(theta, snapshot, {vectors}delta, {scalars}least, most, kept_factors, partials, pieces):
    for piece in range(pieces.shape[0]):
        a, b, kept_here = pieces[piece, 0], pieces[piece, 1], kept_factors[pieces[piece, 2]]
        {name}_block(theta[a:b], snapshot[a:b], {slices}delta[a:b], {scalars}least, most, kept_here, partials[piece])

def parallel(theta, snapshot, {vectors}delta, {scalars}least, most, kept_factors, partials, pieces):
    for piece in prange(pieces.shape[0]):
        a, b, kept_here = pieces[piece, 0], pieces[piece, 1], kept_factors[pieces[piece, 2]]
        {name}_block(theta[a:b], snapshot[a:b], {slices}delta[a:b], {scalars}least, most, kept_here, partials[piece])
"""


class Decay(NamedTuple):
    """Factors of theta, `kept`, and the `pieces` that each is for (start, stop, index of the factor)."""

    kept: NDArray[np.float32]
    pieces: NDArray[np.int64]


class Statistics(NamedTuple):
    """A commit's statistics.

    The first three cover elements with delta != 0, and are 0 without any. Norms are Euclidean, over all elements.

    Attributes:
        mean_pi: of pi, or the rule's factor.
        blocked_fraction: fraction with pi = pi_min; without a pi 1 for a dropped commit.
        clamped_fraction: fraction with pi = pi_max.
        proxy_norm: of kappa * m, or the rule's moment, after the commit.
        drift_norm: of theta - s before the commit.
        delta_norm: of delta.
        update_norm: of the change of theta, without weight decay.
    """

    mean_pi: float
    blocked_fraction: float
    clamped_fraction: float
    proxy_norm: float
    drift_norm: float
    delta_norm: float
    update_norm: float


class Kernel:
    """Applies deltas in place, in one pass."""

    def __init__(self, update: Callable[..., tuple[Any, ...]], proxy: str = "") -> None:
        """Generate the loops, which compile at the first call.

        Args:
            update: (theta, snapshot, *vectors, delta, *scalars) -> (theta, snapshot, *vectors, update, factor), of one
                element in float32: the new values, what was added to theta, and the factor of delta.
            proxy: vector whose norm is reported, or "".
        """
        self._update, self._proxy = update, proxy
        self.serial, self.parallel = self._compile(_BLOCKS)

    @cached_property
    def _decaying(self) -> tuple[Driver, Driver]:
        return self._compile(_PIECES)

    def _compile(self, blocks: str) -> tuple[Driver, Driver]:
        update, decays = self._update, blocks is _PIECES
        vectors, scalars = self._arguments()
        namespace = self._namespace(blocks)
        signature = (
            *[VECTOR] * (2 + len(vectors)), READ_ONLY_VECTOR, *[SCALAR] * (len(scalars) + 2),
            *([VECTOR, PARTIALS, INTEGERS] if decays else [PARTIALS, INTEGER]),
        )  # fmt: skip
        for loop in ("serial", "parallel"):
            kind = f"decaying_{loop}" if decays else loop
            namespace[loop].__qualname__ = f"{update.__qualname__}_{kind}"
        return (
            Driver(namespace["serial"], signature, parallel=False),
            Driver(namespace["parallel"], signature, parallel=True),
        )

    def _arguments(self) -> tuple[list[str], list[str]]:
        names = list(inspect.signature(self._update).parameters)
        at = names.index("delta")
        return names[2:at], names[at + 1 :]

    def _namespace(self, blocks: str) -> dict[str, Any]:
        update, proxy, decays = self._update, self._proxy, blocks is _PIECES
        vectors, scalars = self._arguments()
        text = (_STRIPS + blocks).format(
            # Names of this kernel alone. Numba numbers functions of one name in their order in the process, and the
            # number is a part of their symbol in the cache. So kernels that different processes have compiled could
            # have the same symbols, and a process that loads both would run one in place of the other.
            name=re.sub(r"\W", "_", update.__qualname__) + ("_decaying" if decays else ""),
            vectors=_listed(vectors),
            scalars=_listed(scalars),
            elements=_listed(f"{name}[i]" for name in vectors),
            new=_listed(f"new_{name}" for name in vectors),
            store="; ".join(f"{name}[i] = new_{name}" for name in vectors),
            slices=_listed(f"{name}[a:b]" for name in vectors),
            sum_up_proxy=f"proxy_squares += new_{proxy} * new_{proxy}" if proxy else "",
            kept=", kept_by_decay" if decays else "",
            decay="new_theta = sent = decayed(theta[i], update, kept_by_decay)" if decays else "",
            add_proxy=f"sums[4] += squares(found[4], {proxy}[a:b])" if proxy else "",
        )
        # Numba caches next to the rule's file.
        namespace: dict[str, Any] = {**_NAMES, "update_element": arithmetic(update), "__name__": update.__module__}
        exec(compile(text, update.__code__.co_filename, "exec"), namespace)  # noqa: S102  (the text is the one above)
        return namespace

    def __call__(
        self,
        theta: NDArray[np.float32],
        snapshot: NDArray[np.float32],
        vectors: tuple[NDArray[np.float32], ...],
        delta: NDArray[np.float32],
        scalars: tuple[np.float32, ...],
        proxy_scale: float,
        parallel: bool,
        decay: Decay | None = None,
    ) -> Statistics:
        """Apply `delta` to float32 vectors of shape (n,). Releases the GIL.

        `scalars` end with the blocked and clamped factors.
        """
        if decay is None:
            partials = np.empty((-(-theta.size // BLOCK), 8))
            loop = self.parallel if parallel else self.serial
            loop(theta, snapshot, *vectors, delta, *scalars, partials, BLOCK)
        else:
            partials = np.empty((len(decay.pieces), 8))
            self._decaying[parallel](theta, snapshot, *vectors, delta, *scalars, decay.kept, partials, decay.pieces)
        return summed(partials, proxy_scale)


def summed(partials: NDArray[np.float64], proxy_scale: float) -> Statistics:
    """Add the blocks' sums."""
    sums = partials[0] if len(partials) == 1 else np.add.reduce(partials, axis=0)
    moving, blocked, clamped, factors, proxy, drift, deltas, updates = sums.tolist()
    moving = moving or 1.0  # avoids 0 / 0
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


@arithmetic
def _decayed(theta, update, kept):  # type: ignore[no-untyped-def]
    return kept * theta + update


@block_function
def _precise_squares(values):  # type: ignore[no-untyped-def]
    total = np.float64(0)
    for i in range(values.size):
        total += np.float64(values[i]) * np.float64(values[i])
    return total


@driver_function
def squares(quick, values):  # type: ignore[no-untyped-def]
    """`quick` if reliable, else recomputed in float64."""
    if _LEAST_SUM <= quick <= _LARGEST_SUM:
        return np.float64(quick)
    return _precise_squares(values)


def _listed(names: Any) -> str:
    return "".join(f"{name}, " for name in names)


_NAMES = {
    "STRIP": STRIP,
    "block_function": block_function,
    "decayed": _decayed,
    "difference": _difference,
    "driver_function": driver_function,
    "empty": np.empty,
    "float32": np.float32,
    "prange": prange,
    "squares": squares,
}
