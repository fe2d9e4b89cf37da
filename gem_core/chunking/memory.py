"""Whether memory that a caller hands over is what a payload needs; shared by split.py and assemble.py."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gem_core.errors import SizeMismatchError
from gem_core.payload import PayloadFormat

__all__ = ["check_bytes", "check_parameters"]


def check_parameters(payload: PayloadFormat, parameters: NDArray[np.float32]) -> NDArray[np.float32]:
    """`parameters` if they are what the payload's PARAMETERs need.

    Raises:
        SizeMismatchError: another type, shape or memory order.
    """
    expected = payload.layout.parameter_count
    if parameters.dtype != np.float32 or parameters.shape != (expected,) or not parameters.flags.c_contiguous:
        raise SizeMismatchError(
            f"parameters of type {parameters.dtype} and shape {parameters.shape}; "
            f"the layout needs a contiguous float32 array of shape ({expected},)"
        )
    return parameters


def check_bytes(view: memoryview, expected: int, what: str) -> memoryview:
    """`view` as plain bytes if it has `expected` of them.

    Raises:
        SizeMismatchError: it has another length, or is not contiguous.
    """
    if view.nbytes != expected or not view.c_contiguous:
        raise SizeMismatchError(f"{what} has {view.nbytes} bytes; this payload needs {expected} contiguous bytes")
    # memoryview.cast refuses shapes that contain a 0.
    return view.cast("B") if view.nbytes else memoryview(b"")
