"""Validate callers' buffers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gem_core.errors import SizeMismatchError
from gem_core.payload import PayloadFormat

__all__ = ["check_bytes", "check_parameters"]

_FLOAT32 = np.dtype(np.float32)


def check_parameters(payload: PayloadFormat, parameters: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return `parameters`; raise SizeMismatchError unless contiguous float32 of the layout's size."""
    expected = payload.layout.parameter_count
    if parameters.dtype != _FLOAT32 or parameters.shape != (expected,) or not parameters.flags.c_contiguous:
        raise SizeMismatchError(
            f"parameters of type {parameters.dtype} and shape {parameters.shape}; "
            f"the layout needs a contiguous float32 array of shape ({expected},)"
        )
    return parameters


def check_bytes(view: memoryview, expected: int, what: str) -> memoryview:
    """Return `view` as bytes; raise SizeMismatchError unless contiguous with `expected` bytes."""
    if view.nbytes != expected or not view.c_contiguous:
        raise SizeMismatchError(f"{what} has {view.nbytes} bytes; this payload needs {expected} contiguous bytes")
    # cast refuses shapes with a 0.
    return view.cast("B") if view.nbytes else memoryview(b"")
