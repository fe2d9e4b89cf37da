"""The quadratic task.

The loss is 1/2 * sum(theta^2), so a delta is float32(-eta) * theta.
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
    """Name in the task file."""
    return wire_type.name.lower()


@dataclass(frozen=True, slots=True)
class Task:
    """Model, and wire types for Join, in order."""

    layout: Layout
    delta_wire_types: tuple[WireType, ...] = (WireType.FLOAT32,)
    parameter_wire_types: tuple[WireType, ...] = (WireType.FLOAT32,)

    def to_json(self) -> str:
        """Serialise as the task file (docs/protocol.md#conformance)."""
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
    """Create a tensor; a FROZEN one holds zeros."""
    spec = TensorSpec(name, tuple(shape), ElementType(element_type), TensorKind(kind), aliases)
    if spec.kind is not TensorKind.FROZEN:
        return spec
    return replace(spec, sha256=hashlib.sha256(bytes(spec.elements * (spec.element_type.byte_size or 1))).digest())


def first_parameters(count: int) -> NDArray[np.float32]:
    """Initial PARAMETERs, exact in all floating-point types."""
    return ((np.arange(count) % 509 - 254) / 256).astype(np.float32)


def delta(theta: NDArray[np.float32], eta: float) -> NDArray[np.float32]:
    """Expected commit (float32, one-dimensional)."""
    return np.float32(-eta) * theta


def buffer_bytes(tensors: Sequence[TensorSpec], generation: int) -> bytes:
    """Synthetic BUFFERs."""
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
