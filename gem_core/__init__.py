"""Update rules, tensor layouts and payload encoding.

Pure functions over NumPy arrays: no gRPC, protobuf, torch, clocks, logging or files. Names load lazily: rules need
Numba (60 MB, 0.5 s).
"""

from typing import TYPE_CHECKING

from gem_core.lazy import lazy

if TYPE_CHECKING:
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
    from gem_core.registry import is_rule, rule_names
    from gem_core.rules import Setting, Statistics, UpdateRule, WorkerState, WorkerStep, create_rule
    from gem_core.wire_types import WireType

_HOMES = {
    "MAX_CHUNK_BYTES": "payload",
    "Assembler": "chunking",
    "BadValueError": "errors",
    "ChecksumError": "errors",
    "ChunkError": "errors",
    "CoreError": "errors",
    "DecodingAssembler": "chunking",
    "ElementType": "layout",
    "Layout": "layout",
    "LayoutError": "errors",
    "PayloadFormat": "payload",
    "RawAssembler": "chunking",
    "RuleError": "errors",
    "Setting": "rules",
    "SizeMismatchError": "errors",
    "Splitter": "chunking",
    "Statistics": "rules",
    "TensorKind": "layout",
    "TensorSpec": "layout",
    "ThreadingError": "errors",
    "UpdateRule": "rules",
    "WireType": "wire_types",
    "WireTypeError": "errors",
    "WorkerState": "rules",
    "WorkerStep": "rules",
    "crc32c": "checksum",
    "create_rule": "rules",
    "is_rule": "registry",
    "rule_names": "registry",
}

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
    "Setting",
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

__getattr__, __dir__ = lazy(__name__, _HOMES)
