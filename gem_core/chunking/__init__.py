"""Payloads cut into chunks (split.py) and put together again (assemble.py): paired opposites. Whole ones: whole.py."""

from gem_core.chunking.assemble import Assembler, DecodingAssembler, RawAssembler
from gem_core.chunking.split import Splitter
from gem_core.chunking.whole import decode_whole, encode_whole

__all__ = ["Assembler", "DecodingAssembler", "RawAssembler", "Splitter", "decode_whole", "encode_whole"]
