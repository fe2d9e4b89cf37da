"""Split and reassemble payloads."""

from gem_core.chunking.assemble import Assembler, DecodingAssembler, RawAssembler
from gem_core.chunking.split import ScaledSplitter, Source, Splitter

__all__ = ["Assembler", "DecodingAssembler", "RawAssembler", "ScaledSplitter", "Source", "Splitter"]
