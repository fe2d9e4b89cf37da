"""Kernels of gem_bfloat16.py. Random bits: Wellons' "lowbias32".

NaNs of finite values survive rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
from numba import carray, extending, prange, types  # type: ignore[attr-defined]

from gem_core.rules.blocks import (
    BLOCK,
    INTEGERS,
    PARTIALS,
    READ_ONLY_VECTOR,
    SCALAR,
    STRIP,
    VECTOR,
    Driver,
    arithmetic,
    driver,
    driver_function,
)
from gem_core.rules.gem import Gem
from gem_core.rules.kernel import CHECKSUM, squares

__all__ = ["random_key", "rebase", "set_offsets", "update"]

_HALVES = types.Array(types.uint16, 1, "C", aligned=True)
_ADDRESSES = types.Array(types.uint64, 2, "C", aligned=True)
_KEY = types.uint32

_update_strip = Gem.kernel.strip


def _drivers(*signature: types.Type) -> Callable[[Callable[..., None]], tuple[Driver, Driver]]:
    def compiled(function: Callable[..., None]) -> tuple[Driver, Driver]:
        drivers = []
        for parallel in (False, True):
            copy = FunctionType(function.__code__, function.__globals__, function.__name__)
            copy.__qualname__ = f"{function.__name__}_{'parallel' if parallel else 'serial'}_{CHECKSUM:08x}"
            drivers.append(Driver(copy, signature, parallel))
        return drivers[0], drivers[1]

    return compiled


def random_key(count: int) -> np.uint32:
    """Hash the commit's number."""
    bits = count * 0x9E3779B9 & 0xFFFFFFFF
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        bits = (bits ^ bits >> shift) * factor & 0xFFFFFFFF
    return np.uint32(bits)


@arithmetic
def _random(index, key):  # type: ignore[no-untyped-def]
    """16 bits. Casts: see wire_kernels.py."""
    bits = np.uint32(np.uint32(index) ^ key)
    bits = np.uint32(bits ^ np.uint32(bits >> np.uint32(16)))
    bits = np.uint32(bits * np.uint32(0x7FEB352D))
    bits = np.uint32(bits ^ np.uint32(bits >> np.uint32(15)))
    bits = np.uint32(bits * np.uint32(0x846CA68B))
    return np.uint32(bits >> np.uint32(16))


@arithmetic
def _stochastic(value, random):  # type: ignore[no-untyped-def]
    """Round so that the mean is kept."""
    bits = np.float32(value).view(np.uint32)
    return np.uint16(np.uint32(bits + random) >> np.uint32(16))


@arithmetic
def _nearest(value):  # type: ignore[no-untyped-def]
    bits = np.float32(value).view(np.uint32)
    odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
    return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


@arithmetic
def _value(half):  # type: ignore[no-untyped-def]
    return np.uint32(np.uint32(half) << np.uint32(16)).view(np.float32)


@driver_function
def _load(offsets, reference, moments, snapshot, moment):  # type: ignore[no-untyped-def]
    for i in range(snapshot.size):
        snapshot[i] = reference[i] + _value(offsets[i])
        moment[i] = _value(moments[i])


@driver_function
def _store_moments(moment, moments, first, key):  # type: ignore[no-untyped-def]
    for i in range(moment.size):
        random = _random(np.uint32(np.uint32(first) + np.uint32(i)), key)
        moments[i] = _stochastic(moment[i], random)


@driver_function
def _store_offsets(theta, reference, offsets):  # type: ignore[no-untyped-def]
    for i in range(theta.size):
        offsets[i] = _nearest(theta[i] - reference[i])


@driver_function
def _move_offsets(offsets, reference, theta, first, key):  # type: ignore[no-untyped-def]
    for i in range(theta.size):
        offset = _value(offsets[i]) + (reference[i] - theta[i])
        random = _random(np.uint32(np.uint32(first) + np.uint32(i)), key)
        offsets[i] = _stochastic(offset, random)


@driver_function
def _update_piece(  # type: ignore[no-untyped-def]
    theta, offsets, moments, reference, delta, mu, kappa, pi_min, pi_max, epsilon, least, most, kept, first, key, sums
):  # fmt: skip
    scratch = np.empty((4, STRIP), np.float32)
    sums[:] = 0
    for a in range(0, theta.size, STRIP):
        b = min(a + STRIP, theta.size)
        snapshot, moment, drifts, updates = (
            scratch[0, : b - a], scratch[1, : b - a], scratch[2, : b - a], scratch[3, : b - a]
        )  # fmt: skip
        _load(offsets[a:b], reference[a:b], moments[a:b], snapshot, moment)
        found = _update_strip(
            theta[a:b], snapshot, moment, delta[a:b], drifts, updates, mu, kappa, pi_min, pi_max, epsilon,
            least, most, kept,
        )  # fmt: skip
        for column in range(4):
            sums[column] += found[column]
        sums[4] += squares(found[4], moment)
        sums[5] += squares(found[5], drifts)
        sums[6] += squares(found[6], delta[a:b])
        sums[7] += squares(found[7], updates)
        _store_moments(moment, moments[a:b], first + a, key)
        _store_offsets(theta[a:b], reference[a:b], offsets[a:b])


@_drivers(VECTOR, _HALVES, _HALVES, VECTOR, READ_ONLY_VECTOR, *[SCALAR] * 8, types.intp, _KEY, PARTIALS, INTEGERS)
def update(  # type: ignore[no-untyped-def]
    theta, offsets, moments, reference, delta, mu, kappa, pi_min, pi_max, epsilon, least, most, kept_by_decay, first,
    key, partials, pieces,
):  # fmt: skip
    """Run gem on the pieces of `Decay`."""
    for piece in prange(pieces.shape[0]):
        a, b, kept = pieces[piece, 0], pieces[piece, 1], kept_by_decay if pieces[piece, 2] else np.float32(1)
        _update_piece(
            theta[a:b], offsets[a:b], moments[a:b], reference[a:b], delta[a:b], mu, kappa, pi_min, pi_max, epsilon,
            least, most, kept, first + a, key, partials[piece],
        )  # fmt: skip


@extending.intrinsic
def _pointer(context: Any, address: Any) -> Any:
    """Numba compiles anew for longer tuples."""
    pointer = types.CPointer(types.uint16)  # type: ignore[no-untyped-call]

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(types.uint64), code


@_drivers(_ADDRESSES, VECTOR, VECTOR, types.intp, types.intp, types.intp, _KEY)
def rebase(addresses, reference, theta, start, step, first, key):  # type: ignore[no-untyped-def]
    """Every `step`-th block from `start`; theta begins at `first`."""
    blocks = (first + theta.size + BLOCK - 1) // BLOCK
    for turn in prange((blocks - start + step - 1) // step):
        end = (start + turn * step + 1) * BLOCK - first
        a, b = max(end - BLOCK, 0), min(end, theta.size)
        for one in range(addresses.shape[0]):
            offsets = carray(_pointer(addresses[one, 0]), theta.size)  # type: ignore[call-arg]
            own_key = np.uint32(key + np.uint32(np.uint32(addresses[one, 1]) * np.uint32(0x9E3779B9)))
            _move_offsets(offsets[a:b], reference[a:b], theta[a:b], first + a, own_key)
        reference[a:b] = theta[a:b]


@driver(VECTOR, VECTOR, _HALVES, parallel=False)
def set_offsets(theta, reference, offsets):  # type: ignore[no-untyped-def]
    """Set offsets <- theta - reference."""
    _store_offsets(theta, reference, offsets)
