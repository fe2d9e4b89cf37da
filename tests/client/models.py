"""Two models, and payloads of them: one that travels whole, and one in chunks."""

import numpy as np
from numpy.typing import NDArray

from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.payload import PayloadFormat
from gem_core.wire_types import WireType

SMALL = Layout([TensorSpec("weight", (8,), ElementType.FLOAT32, TensorKind.PARAMETER)])

# 100 000 bytes of parameters (more than the 64 KiB that go whole), a buffer, and a frozen tensor.
LARGE = Layout(
    [
        TensorSpec("weight", (250, 100), ElementType.FLOAT32, TensorKind.PARAMETER),
        TensorSpec("steps", (), ElementType.INT64, TensorKind.BUFFER),
        TensorSpec("frozen", (300_000,), ElementType.FLOAT16, TensorKind.FROZEN, sha256=bytes(32)),
    ]
)
LARGE_CHUNK_BYTES = 32 << 10
# 100 008 bytes in chunks of 32 KiB.
LARGE_CHUNKS = 4


def byte_count(layout: Layout) -> int:
    return PayloadFormat(layout, WireType.FLOAT32).byte_count


def payload(layout: Layout, value: float) -> memoryview:
    """All parameters `value`, everything else zero bytes."""
    parameters = np.full(layout.parameter_count, value, np.float32).tobytes()
    return memoryview(parameters.ljust(byte_count(layout), b"\0"))


def buffer(layout: Layout) -> memoryview:
    """Where parameters go; filled with what no test expects."""
    return memoryview(bytearray(b"\xee" * byte_count(layout)))


def parameters_in(layout: Layout, data: memoryview) -> NDArray[np.float32]:
    return np.frombuffer(data, np.float32, layout.parameter_count)
