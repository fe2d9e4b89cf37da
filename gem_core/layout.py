"""Tensor layout of a model and its digest (layout.proto)."""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate
from typing import Any

from gem_core.errors import LayoutError
from gem_core.visible_text import describe_invisible, find_invisible

__all__ = ["ElementType", "Layout", "Part", "TensorKind", "TensorRole", "TensorSpec"]

# These limits of layout.proto bound the memory that a hostile Join can take.
MAX_TENSORS = 65_536
MAX_DIMENSIONS = 16
MAX_NAME_BYTES = 1024
SHA256_BYTES = 32
# With more bytes, offsets would not fit into NumPy's intp.
MAX_BYTES = 2**63 - 1
# Names in messages are cut to this length, because error details must stay under 4 KiB.
SHOWN_NAME_CHARACTERS = 80
SHOWN_ALIASES = 3
# In CPython 3.11.
_TENSOR_BYTES, _DIMENSION_BYTES, _NAME_BYTES, _DIGEST_BYTES = 188, 40, 56, 72


class ElementType(Enum):
    """An element type. Its `value` is its name in the canonical text."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    BOOL = "bool"
    # Any other; only FROZEN.
    OTHER = "other"

    @property
    def byte_size(self) -> int:
        """Number of bytes of an element that is sent. 0 for OTHER, which is never sent."""
        return _BYTE_SIZES[self]

    @property
    def is_floating(self) -> bool:
        """Whether the type is floating-point."""
        return self in _FLOATING


_BYTE_SIZES = {
    ElementType.FLOAT32: 4,
    ElementType.FLOAT64: 8,
    ElementType.FLOAT16: 2,
    ElementType.BFLOAT16: 2,
    ElementType.INT8: 1,
    ElementType.INT16: 2,
    ElementType.INT32: 4,
    ElementType.INT64: 8,
    ElementType.UINT8: 1,
    ElementType.BOOL: 1,
    ElementType.OTHER: 0,
}
_FLOATING = frozenset({ElementType.FLOAT32, ElementType.FLOAT64, ElementType.FLOAT16, ElementType.BFLOAT16})


class TensorKind(Enum):
    """A kind of tensors. Its `value` is its name in the canonical text."""

    PARAMETER = "parameter"
    # Replaced by the newest commit's value.
    BUFFER = "buffer"
    # Compared by SHA-256, never sent.
    FROZEN = "frozen"


class TensorRole(Enum):
    """What a PARAMETER is to update rules."""

    MATRIX = "matrix"
    # Below 2 dimensions.
    VECTOR = "vector"
    EMBEDDING = "embedding"


_KIND_ORDER = {TensorKind.PARAMETER: 0, TensorKind.BUFFER: 1, TensorKind.FROZEN: 2}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor, as in layout.proto. `Layout` validates it.

    Attributes:
        shape: row-major dimensions.
        aliases: other names of the same storage.
        sha256: SHA-256 of a FROZEN tensor's bytes, row-major and little-endian.
    """

    name: str
    shape: tuple[int, ...]
    element_type: ElementType
    kind: TensorKind
    aliases: tuple[str, ...] = ()
    # Not compared: unknown to some workers.
    is_embedding: bool = field(default=False, compare=False)
    sha256: bytes = b""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        # Python's code-point order equals UTF-8 byte order.
        object.__setattr__(self, "aliases", tuple(sorted(self.aliases)))

    @property
    def role(self) -> TensorRole:
        """Role."""
        if self.is_embedding:
            return TensorRole.EMBEDDING
        return TensorRole.MATRIX if len(self.shape) > 1 else TensorRole.VECTOR

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def byte_count(self) -> int:
        """Size in bytes."""
        return self.elements * self.element_type.byte_size

    def canonical_line(self) -> str:
        """Canonical text, without newline."""
        shape = ",".join(map(str, self.shape))
        names = " ".join(f"{len(name.encode())}:{name}" for name in (self.name, *self.aliases))
        digest = f"{self.sha256.hex()} " if self.kind is TensorKind.FROZEN else ""
        return f"{self.kind.value} {self.element_type.value} {len(self.shape)}:{shape} {digest}{names}"


@dataclass(frozen=True, slots=True)
class Part:
    """Says that a layout is shard `index` of the `count` shards of the layout `whole` (shards.py)."""

    index: int
    count: int
    whole: Layout


class Layout:
    """Immutable, validated tensors; equality and hash use the digest.

    Attributes:
        part: which shard this is. None if it is a whole model.
        parameter_count: number of elements of all PARAMETERs.
        digest: SHA-256 of the canonical text, 32 bytes.
        object_bytes: estimated memory of this object.

    Raises:
        LayoutError: the tensors violate layout.proto.
    """

    __slots__ = (
        "__weakref__",
        "_parameter_starts",
        "buffer_bytes",
        "buffers",
        "digest",
        "object_bytes",
        "parameter_count",
        "parameters",
        "part",
        "tensors",
    )

    def __init__(self, tensors: Iterable[TensorSpec], part: Part | None = None) -> None:
        self.tensors = tuple(tensors)
        self.part = part
        _check(self.tensors)
        self.parameters = tuple(tensor for tensor in self.tensors if tensor.kind is TensorKind.PARAMETER)
        self.buffers = tuple(tensor for tensor in self.tensors if tensor.kind is TensorKind.BUFFER)
        self._parameter_starts = tuple(accumulate((tensor.elements for tensor in self.parameters), initial=0))
        self.parameter_count = self._parameter_starts[-1]
        self.buffer_bytes = sum(tensor.byte_count for tensor in self.buffers)
        # 8 bytes bound an element.
        if self.parameter_count * 8 + self.buffer_bytes > MAX_BYTES:
            largest = max((*self.parameters, *self.buffers), key=lambda tensor: tensor.elements)
            raise LayoutError(
                f"the layout has more than 2**63 bytes: check the shapes, first that of {_short(largest.name)}"
            )
        self.digest = hashlib.sha256(self.canonical_text().encode()).digest()
        self.object_bytes: int = sum(
            _TENSOR_BYTES
            + (_DIGEST_BYTES if tensor.sha256 else 0)
            + _DIMENSION_BYTES * len(tensor.shape)
            + sum(_NAME_BYTES + len(name) * (1 if name.isascii() else 4) for name in (tensor.name, *tensor.aliases))
            for tensor in self.tensors
        ) + (part.whole.object_bytes if part is not None else 0)

    @property
    def whole(self) -> Layout:
        """The layout of the whole model, of which this may be a shard."""
        return self.part.whole if self.part is not None else self

    @classmethod
    def from_description(cls, tensors: Iterable[dict[str, Any]]) -> Layout:
        """Inverse of `describe`. Raises LayoutError, KeyError, TypeError or ValueError."""
        tensors = list(tensors)
        for tensor in tensors:
            if tensor["kind"] == "constant":
                raise LayoutError(
                    f"{_short(tensor['name'])} is a CONSTANT of an older gemps: use that version, or begin a new run "
                    "from its model.safetensors"
                )
        return cls(
            TensorSpec(
                tensor["name"],
                tuple(tensor["shape"]),
                ElementType(tensor["element_type"]),
                TensorKind(tensor["kind"]),
                tuple(tensor["aliases"]),
                tensor.get("role") == TensorRole.EMBEDDING.value,
                bytes.fromhex(tensor.get("sha256", "")),
            )
            for tensor in tensors
        )

    def describe(self) -> list[dict[str, Any]]:
        """Return a dictionary for each tensor, which JSON can represent."""
        return [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "element_type": tensor.element_type.value,
                "kind": tensor.kind.value,
                "aliases": list(tensor.aliases),
                **({"role": tensor.role.value} if tensor.is_embedding else {}),
                **({"sha256": tensor.sha256.hex()} if tensor.sha256 else {}),
            }
            for tensor in self.tensors
        ]

    def canonical_text(self) -> str:
        """The text of which the digest is computed."""
        if self.part is not None:
            return f"{self.part.whole.canonical_text()}shard {self.part.index}/{self.part.count}\n"
        lines = ["gemps-layout-1", *(tensor.canonical_line() for tensor in self.tensors)]
        return "\n".join(lines) + "\n"

    def first_difference(self, other: Layout) -> str | None:
        """Describe the first difference from `other`, or return None if both are equal."""
        if self.digest == other.digest:
            return None
        for index, (ours, theirs) in enumerate(zip(self.tensors, other.tensors, strict=False)):
            if ours != theirs:
                return f"tensor {index}: {_difference(ours, theirs)}"
        if len(self.tensors) == len(other.tensors):
            return "tensors of other shards"
        shared = min(len(self.tensors), len(other.tensors))
        if len(self.tensors) > shared:
            return f"tensor {shared}: the run has {_describe(self.tensors[shared])}, this model ends before it"
        return f"tensor {shared}: this model has {_describe(other.tensors[shared])}, the run ends before it"

    def frozen_differences(self, other: Layout) -> tuple[int, ...] | None:
        """Compare the values of FROZEN tensors of two whole models.

        Returns the indices of the FROZEN tensors whose SHA-256 differs, ascending; None if the layouts differ in
        anything else.
        """
        if len(self.tensors) != len(other.tensors):
            return None
        found = []
        for index, (ours, theirs) in enumerate(zip(self.tensors, other.tensors, strict=True)):
            if ours == theirs:
                continue
            if ours.kind is not TensorKind.FROZEN or replace(ours, sha256=theirs.sha256) != theirs:
                return None
            found.append(index)
        return tuple(found)

    def locate_parameter(self, element: int) -> tuple[TensorSpec, int]:
        """Return the PARAMETER that has the flat element `element`, and its index there. Raises IndexError."""
        if not 0 <= element < self.parameter_count:
            raise IndexError(f"element {element} of {self.parameter_count}")
        # Empty tensors start where the next one does, so the last tensor with the start is the one that is not empty.
        index = bisect_right(self._parameter_starts, element) - 1
        return self.parameters[index], element - self._parameter_starts[index]

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Layout) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<Layout {self.digest.hex()[:8]}: {len(self.tensors)} tensors, {self.parameter_count} parameters>"


def _describe(tensor: TensorSpec) -> str:
    aliases = f", also called {', '.join(map(_short, tensor.aliases[:SHOWN_ALIASES]))}" if tensor.aliases else ""
    if len(tensor.aliases) > SHOWN_ALIASES:
        aliases += f" and {len(tensor.aliases) - SHOWN_ALIASES} more names"
    shape = list(tensor.shape)
    return f"{tensor.kind.value} {_short(tensor.name)} ({tensor.element_type.value}, shape {shape}{aliases})"


def _short(name: str) -> str:
    return repr(name if len(name) <= SHOWN_NAME_CHARACTERS else f"{name[:SHOWN_NAME_CHARACTERS]}...")


def _difference(ours: TensorSpec, theirs: TensorSpec) -> str:
    if replace(ours, sha256=theirs.sha256) == theirs:
        return (
            f"the values of {_describe(ours)} have SHA-256 {ours.sha256.hex()[:12]} in the run and "
            f"{theirs.sha256.hex()[:12]} here: load the same base weights in each worker (or seed "
            "PyTorch before the model is built), or name it in keep_local= or send_frozen= of ParameterServer if the "
            "workers change it"
        )
    return f"the run has {_describe(ours)}, this model has {_describe(theirs)}"


def _check(tensors: tuple[TensorSpec, ...]) -> None:
    if len(tensors) > MAX_TENSORS:
        raise LayoutError(f"{len(tensors)} tensors, more than {MAX_TENSORS}: join small tensors into larger ones")
    owners: dict[str, int] = {}
    last_order = 0
    for index, tensor in enumerate(tensors):
        for name in (tensor.name, *tensor.aliases):
            _check_name(index, name)
            if name in owners:
                raise LayoutError(
                    f"tensor {index}: the name {name!r} is also a name of tensor {owners[name]}; "
                    "give every tensor its own names (tied weights are one tensor with aliases)"
                )
            owners[name] = index
        _check_shape(index, tensor)
        if tensor.kind is TensorKind.PARAMETER and not tensor.element_type.is_floating:
            raise LayoutError(
                f"tensor {index} ({tensor.name!r}): a PARAMETER of type {tensor.element_type.value} cannot be trained; "
                "make it float32, float64, float16 or bfloat16, or declare it a BUFFER or FROZEN"
            )
        _check_frozen(index, tensor)
        order = _KIND_ORDER[tensor.kind]
        if order < last_order:
            raise LayoutError(
                f"tensor {index} ({tensor.name!r}): a {tensor.kind.value} after a {tensors[index - 1].kind.value}; "
                "list all PARAMETERs first, then all BUFFERs, then all FROZEN tensors"
            )
        last_order = order


def _check_frozen(index: int, tensor: TensorSpec) -> None:
    expected = SHA256_BYTES if tensor.kind is TensorKind.FROZEN else 0
    if len(tensor.sha256) != expected:
        raise LayoutError(
            f"tensor {index} ({tensor.name!r}): sha256 has {len(tensor.sha256)} bytes; send {SHA256_BYTES} of a FROZEN "
            "tensor, else none"
        )
    if tensor.element_type is ElementType.OTHER and not expected:
        raise LayoutError(
            f"tensor {index} ({tensor.name!r}): a {tensor.kind.value} of type other cannot be sent: use another type"
        )


def _check_name(index: int, name: str) -> None:
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise LayoutError(f"tensor {index}: the name {name!r} is not valid Unicode: rename it") from None
    if not 1 <= length <= MAX_NAME_BYTES:
        raise LayoutError(f"tensor {index}: a name of {length} bytes; use 1 to {MAX_NAME_BYTES} bytes of UTF-8")
    if name == "__metadata__":
        raise LayoutError(f"tensor {index}: the name {name} is safetensors' own: rename it")
    if (at := find_invisible(name)) is not None:
        raise LayoutError(f"tensor {index}: the name {name!r} has {describe_invisible(name, at)}: rename it")


def _check_shape(index: int, tensor: TensorSpec) -> None:
    if len(tensor.shape) > MAX_DIMENSIONS:
        raise LayoutError(
            f"tensor {index} ({tensor.name!r}): {len(tensor.shape)} dimensions, more than {MAX_DIMENSIONS}: reshape it"
        )
    for dimension in tensor.shape:
        if isinstance(dimension, bool) or not isinstance(dimension, int) or not 0 <= dimension <= MAX_BYTES:
            raise LayoutError(
                f"tensor {index} ({tensor.name!r}): dimension {dimension!r} of shape {list(tensor.shape)}; "
                "use integers from 0 to 2**63 - 1"
            )
