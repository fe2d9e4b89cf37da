"""The quadratic task, which candidates train (docs/protocol.md#conformance).

The loss is 1/2 * sum(theta^2) over all parameters theta. Its gradient is theta, so the delta of a step with learning
rate eta is float32(-eta) * theta, and every byte of it is known.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.wire_types import WireType

__all__ = ["Task", "buffer_bytes", "delta", "first_parameters", "tensor", "wire_name"]

_DTYPES = {
    ElementType.FLOAT32: "<f4",
    ElementType.FLOAT64: "<f8",
    ElementType.FLOAT16: "<f2",
    ElementType.INT8: "<i1",
    ElementType.INT16: "<i2",
    ElementType.INT32: "<i4",
    ElementType.INT64: "<i8",
    ElementType.UINT8: "<u1",
    ElementType.BOOL: "<u1",
}


def wire_name(wire_type: WireType) -> str:
    """Return the name that the task file has for a wire type, such as "int4_block"."""
    return wire_type.name.lower()


@dataclass(frozen=True, slots=True)
class Task:
    """What a candidate is asked to train.

    Attributes:
        layout: the tensors of its model.
        delta_wire_types: the wire types that it offers for deltas in Join, in this order.
        parameter_wire_types: the same for the parameters that it receives.
    """

    layout: Layout
    delta_wire_types: tuple[WireType, ...] = (WireType.FLOAT32,)
    parameter_wire_types: tuple[WireType, ...] = (WireType.FLOAT32,)

    def to_json(self) -> str:
        """Return the text of the task file, whose path a candidate finds in GEMPS_CONFORMANCE."""
        return json.dumps(
            {
                "layout": self.layout.describe(),
                "delta_wire_types": [wire_name(one) for one in self.delta_wire_types],
                "parameter_wire_types": [wire_name(one) for one in self.parameter_wire_types],
            }
        )


def tensor(
    name: str, shape: Sequence[int], kind: str = "parameter", element_type: str = "float32", *aliases: str
) -> TensorSpec:
    """Return the description of a tensor; a FROZEN one has the SHA-256 of zeros (`other`: one byte per element)."""
    spec = TensorSpec(name, tuple(shape), ElementType(element_type), TensorKind(kind), aliases)
    if spec.kind is not TensorKind.FROZEN:
        return spec
    return replace(spec, sha256=hashlib.sha256(bytes(spec.elements * (spec.element_type.byte_size or 1))).digest())


def first_parameters(count: int) -> NDArray[np.float32]:
    """Return what a candidate uploads in Initialize: ((i mod 509) - 254) / 256 for each i below `count`.

    The array is float32 and one-dimensional. bfloat16 and float16 hold all of these values exactly.
    """
    return ((np.arange(count) % 509 - 254) / 256).astype(np.float32)


def delta(theta: NDArray[np.float32], eta: float) -> NDArray[np.float32]:
    """Return float32(-eta) * theta, the delta of one step from `theta` (float32, one-dimensional)."""
    return np.float32(-eta) * theta


def buffer_bytes(tensors: Sequence[TensorSpec], generation: int) -> bytes:
    """Return bytes for all BUFFERs that are legal for their types. Those of generation 0 are zeros; others differ."""
    parts = []
    for one in tensors:
        values = (np.arange(one.elements) * generation + generation) % (
            2 if one.element_type is ElementType.BOOL else 5
        )
        if one.element_type is ElementType.BFLOAT16:
            parts.append((values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes())
        else:
            parts.append(values.astype(_DTYPES[one.element_type]).tobytes())
    return b"".join(parts)
