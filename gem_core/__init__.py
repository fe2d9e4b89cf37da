"""Update rules, tensor layouts and payload encoding.

Names load lazily: rules need Numba (60 MB, 0.5 s).
"""

from typing import TYPE_CHECKING

from gem_core.lazy import lazy

if TYPE_CHECKING:
    from gem_core.checksum import crc32c as crc32c
    from gem_core.chunking import Assembler as Assembler
    from gem_core.chunking import DecodingAssembler as DecodingAssembler
    from gem_core.chunking import RawAssembler as RawAssembler
    from gem_core.chunking import Splitter as Splitter
    from gem_core.errors import BadValueError as BadValueError
    from gem_core.errors import ChecksumError as ChecksumError
    from gem_core.errors import ChunkError as ChunkError
    from gem_core.errors import CoreError as CoreError
    from gem_core.errors import LayoutError as LayoutError
    from gem_core.errors import RuleError as RuleError
    from gem_core.errors import SizeMismatchError as SizeMismatchError
    from gem_core.errors import ThreadingError as ThreadingError
    from gem_core.errors import WireTypeError as WireTypeError
    from gem_core.layout import ElementType as ElementType
    from gem_core.layout import Layout as Layout
    from gem_core.layout import TensorKind as TensorKind
    from gem_core.layout import TensorRole as TensorRole
    from gem_core.layout import TensorSpec as TensorSpec
    from gem_core.payload import MAX_CHUNK_BYTES as MAX_CHUNK_BYTES
    from gem_core.payload import PayloadFormat as PayloadFormat
    from gem_core.registry import is_rule as is_rule
    from gem_core.registry import rule_names as rule_names
    from gem_core.rules import RuleState as RuleState
    from gem_core.rules import Setting as Setting
    from gem_core.rules import Statistics as Statistics
    from gem_core.rules import UpdateRule as UpdateRule
    from gem_core.rules import WorkerStep as WorkerStep
    from gem_core.rules import create_rule as create_rule
    from gem_core.wire_types import WireType as WireType

__getattr__, __dir__, __all__ = lazy(__name__, extra="server")
