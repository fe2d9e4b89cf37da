"""Payloads cut into chunks (split.py) and put together again (assemble.py): paired opposites."""

from gem_core.chunking.assemble import Assembler, DecodingAssembler, RawAssembler
from gem_core.chunking.split import ScaledSplitter, Source, Splitter

__all__ = ["Assembler", "DecodingAssembler", "RawAssembler", "ScaledSplitter", "Source", "Splitter"]
