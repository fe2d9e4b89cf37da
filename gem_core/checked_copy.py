"""Copying a FLOAT32 payload out of memory that somebody else may write to at any moment (DESIGN.md, section 4).

One pass copies (and scales), judges and sums up, and every word of the source is read once: so what was judged and
summed up is what was copied, whatever happens to the source meanwhile. It takes as long as a plain copy.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from gem_core.errors import BadValueError
from gem_core.layout import Layout
from gem_core.vectors import prefer_wide_vectors
from gem_core.wire_types import LARGEST_VALUE, describe_bad_value

__all__ = ["checked_copy", "warm_up"]

prefer_wide_vectors()

# IEEE 754 magnitudes are ordered as their bits are; those of infinity and NaN come last.
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_LARGEST_BITS = np.float32(LARGEST_VALUE).view(np.uint32)


def checked_copy(
    source: NDArray[np.float32], parameters: NDArray[np.float32], layout: Layout, scale: float | None = None
) -> int:
    """Copy the PARAMETERs of a FLOAT32 payload, and return the word sum of the copy (`gem_core.checksum.word_sum`).

    Args:
        source: float32, shape (n,): the values, in memory that may change while this runs.
        parameters: float32, shape (n,): where they go.
        layout: of the model, to name the tensor in an error.
        scale: what each value is multiplied by on its way, in float32; None: bits arrive as they are.

    Releases the interpreter lock while it works.

    Raises:
        BadValueError: a copied value is not finite, or beyond +-1e30. `parameters` must not be used then.
    """
    if scale is None:
        total, largest = _copy(source.view(np.uint32), parameters.view(np.uint32))
    else:
        total, largest = _copy_scaled(source, parameters, np.float32(scale))
    if largest > _LARGEST_BITS:
        bits = parameters.view(np.uint32)
        position = int(np.argmax((bits & _MAGNITUDE) > _LARGEST_BITS))
        tensor, index = layout.locate_parameter(position)
        raise BadValueError(
            f"{tensor.kind.value} {tensor.name!r}, element {index}, {describe_bad_value(parameters[position])}: "
            "skip steps whose values are not finite"
        )
    return int(total) % (1 << 32)


def warm_up() -> None:
    """Compile `checked_copy`, or load it from Numba's cache."""
    for source in (np.zeros(1, np.float32), np.frombuffer(bytes(4), np.float32)):  # shared memory may be read-only
        target = np.zeros(1, np.float32)
        _copy(source.view(np.uint32), target.view(np.uint32))
        _copy_scaled(source, target, np.float32(1))


def _copy_words(source: Any, target: Any) -> Any:
    total, largest = np.uint32(0), np.uint32(0)
    for i in range(source.size):
        word = source[i]
        target[i] = word
        largest = max(largest, word & np.uint32(0x7FFFFFFF))
        word = np.uint32(word * np.uint32(0x9E3779B1))
        total += np.uint32(2 * i + 1) * (word ^ (word >> np.uint32(15)))
    return total, largest


def _scale_words(source: Any, target: Any, scale: Any) -> Any:
    total, largest = np.uint32(0), np.uint32(0)
    for i in range(source.size):
        value = np.float32(scale * source[i])
        target[i] = value
        word = np.float32(value).view(np.uint32)
        largest = max(largest, word & np.uint32(0x7FFFFFFF))
        word = np.uint32(word * np.uint32(0x9E3779B1))
        total += np.uint32(2 * i + 1) * (word ^ (word >> np.uint32(15)))
    return total, largest


def _compiled(function: Any) -> Any:
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no folder to write to; the rules' kernels say so
        return numba.njit(nogil=True)(function)


_copy = _compiled(_copy_words)
_copy_scaled = _compiled(_scale_words)
