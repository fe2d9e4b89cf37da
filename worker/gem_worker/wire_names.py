"""Names of the wire types."""

from gem_core.wire_types import WireType
from gem_worker.settings import WireName

WIRE_TYPES: dict[WireName, WireType] = {
    "float32": WireType.FLOAT32,
    "bfloat16": WireType.BFLOAT16,
    "int4": WireType.INT4_BLOCK,
    "sparse": WireType.SPARSE_BLOCK,
}
