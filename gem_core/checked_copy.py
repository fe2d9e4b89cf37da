"""Copy a FLOAT32 payload that another process may write to.

Read each source word only once: the checked values must be the copied ones.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from gem_core.compilation import READ_ONLY_VECTOR, SCALAR, VECTOR, arithmetic, driver
from gem_core.errors import BadValueError, SizeMismatchError
from gem_core.layout import Layout
from gem_core.wire_types import LARGEST_VALUE, describe_bad_value

__all__ = ["checked_copy", "warm_up"]

_WORDS = types.Array(types.uint32, 1, "C", readonly=True, aligned=True)
_WORDS_OUT = types.Array(types.uint32, 1, "C", aligned=True)

# Without sign, float32 bits order by magnitude, NaN largest.
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_LARGEST_BITS = int(np.float32(LARGEST_VALUE).view(np.uint32))


def checked_copy(
    source: NDArray[np.float32], parameters: NDArray[np.float32], layout: Layout, scale: float | None = None
) -> int:
    """Copy FLOAT32 PARAMETERs, check them and return the copy's `word_sum`. Releases the GIL.

    `scale`: float32 factor; None copies the bits.

    Raises:
        SizeMismatchError: sizes differ.
        TypeError: an argument is not a contiguous vector, or `parameters` cannot be written.
        BadValueError: a copied value is not finite or beyond +-1e30; do not use `parameters`.
    """
    if source.size != parameters.size:
        raise SizeMismatchError(f"{source.size} values are to be copied to {parameters.size}")
    found = np.empty(2, np.uint32)
    if scale is None:
        _copy(source.view(np.uint32), parameters.view(np.uint32), found)
    else:
        _copy_scaled(source, parameters, np.float32(scale), found)
    total, largest = found.tolist()
    if largest > _LARGEST_BITS:
        bits = parameters.view(np.uint32)
        position = int(np.argmax((bits & _MAGNITUDE) > _LARGEST_BITS))
        tensor, index = layout.locate_parameter(position)
        raise BadValueError(
            f"{tensor.kind.value} {tensor.name!r}, element {index}, {describe_bad_value(parameters[position])}: "
            "skip steps whose values are not finite"
        )
    return int(total)


def warm_up() -> None:
    """Load or compile the kernels."""
    source, target, found = np.zeros(1, np.float32), np.zeros(1, np.float32), np.zeros(2, np.uint32)
    _copy(source.view(np.uint32), target.view(np.uint32), found)
    _copy_scaled(source, target, np.float32(1), found)


# found: word sum, bits of the largest magnitude. Casts undo Numba's widening to 64 bits. Two kernels, because
# multiplying denormals by 1 is slow.


@arithmetic
def _term(index, word):  # type: ignore[no-untyped-def]
    product = np.uint32(word * np.uint32(0x9E3779B1))
    mixed = np.uint32(product ^ np.uint32(product >> np.uint32(15)))
    return np.uint32(np.uint32(2 * index + 1) * mixed)


@driver(_WORDS, _WORDS_OUT, _WORDS_OUT, parallel=False)
def _copy(source, target, found):  # type: ignore[no-untyped-def]
    total, largest = np.uint32(0), np.uint32(0)
    for i in range(target.size):
        word = source[i]
        target[i] = word
        largest = max(largest, np.uint32(word & _MAGNITUDE))
        total = np.uint32(total + _term(i, word))
    found[0], found[1] = total, largest


@driver(READ_ONLY_VECTOR, VECTOR, SCALAR, _WORDS_OUT, parallel=False)
def _copy_scaled(source, target, scale, found):  # type: ignore[no-untyped-def]
    total, largest = np.uint32(0), np.uint32(0)
    for i in range(target.size):
        value = np.float32(scale * source[i])
        target[i] = value
        word = value.view(np.uint32)
        largest = max(largest, np.uint32(word & _MAGNITUDE))
        total = np.uint32(total + _term(i, word))
    found[0], found[1] = total, largest
