"""The update core of gemps: the mathematics of Gradient Energy Matching, and how models are laid out as bytes.

What belongs here: pure functions of explicit state, over NumPy arrays. What must not: gRPC, protobuf, torch, clocks,
locks, logging, files (DESIGN.md, section 2). `DESIGN.md` beside this file says where what lives.

Everything named in `__all__` can be imported from here. The update rules need Numba, which costs a process 60 MB and
half a second; they are therefore imported when they are first asked for. Layouts, payloads, chunks and checksums work
without it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from gem_core.checksum import crc32c
from gem_core.chunking import Assembler, DecodingAssembler, RawAssembler, Splitter
from gem_core.errors import (
    BadValueError,
    ChecksumError,
    ChunkError,
    CoreError,
    LayoutError,
    RuleError,
    SizeMismatchError,
    ThreadingError,
    WireTypeError,
)
from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.payload import MAX_CHUNK_BYTES, PayloadFormat
from gem_core.rule_names import is_rule, rule_names
from gem_core.wire_types import WireType

if TYPE_CHECKING:
    from gem_core.rules import Statistics, UpdateRule, WorkerState, WorkerStep, create_rule

__all__ = [
    "MAX_CHUNK_BYTES",
    "Assembler",
    "BadValueError",
    "ChecksumError",
    "ChunkError",
    "CoreError",
    "DecodingAssembler",
    "ElementType",
    "Layout",
    "LayoutError",
    "PayloadFormat",
    "RawAssembler",
    "RuleError",
    "SizeMismatchError",
    "Splitter",
    "Statistics",
    "TensorKind",
    "TensorSpec",
    "ThreadingError",
    "UpdateRule",
    "WireType",
    "WireTypeError",
    "WorkerState",
    "WorkerStep",
    "crc32c",
    "create_rule",
    "is_rule",
    "rule_names",
]

_FROM_RULES = frozenset({"Statistics", "UpdateRule", "WorkerState", "WorkerStep", "create_rule"})


def __getattr__(name: str) -> Any:
    if name in _FROM_RULES:
        return getattr(importlib.import_module("gem_core.rules"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
