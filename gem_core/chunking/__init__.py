"""Split and reassemble payloads."""

from gem_core.chunking.assemble import Assembler, DecodingAssembler, RawAssembler
from gem_core.chunking.split import CopyingSplitter, DifferenceSplitter, ScaledSplitter, Source, Splitter

__all__ = [
    "Assembler",
    "CopyingSplitter",
    "DecodingAssembler",
    "DifferenceSplitter",
    "RawAssembler",
    "ScaledSplitter",
    "Source",
    "Splitter",
]
