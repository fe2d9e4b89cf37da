"""The compiled codec is the twin of NumPy's: the same bytes, the same values, the same judgement."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from gem_core import (
    DecodingAssembler,
    ElementType,
    Layout,
    PayloadFormat,
    Splitter,
    TensorKind,
    TensorSpec,
    WireType,
)
from gem_core.aligned import aligned_empty
from gem_core.wire_kernels import COMPILED, warm_up
from gem_core.wire_types import BLOCK_ELEMENTS, NUMPY, encoded_bytes

ENCODED = [one for one in WireType if one is not WireType.SHARED_MEMORY]
# Any bits, with the interesting ones more often than chance would have them.
BITS = st.one_of(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1, 0x8000_0000, 0x7F80_0000, 0xFF80_0000, 0x7FC0_0000, 0xFFFF_FFFF, 0x7149_F2CA, 0x7149_F2CB]),
    st.integers(0, 4096),
)
LIMIT = float(np.float32(1e30))
FINITE = st.floats(-LIMIT, LIMIT, width=32)
LENGTHS = st.integers(0, 600)
CODECS = (NUMPY, COMPILED)


def sevens(elements: int) -> NDArray[np.float32]:
    """Aligned memory; what a decoder leaves out is seen."""
    out = aligned_empty(elements)
    out[:] = 7
    return out


def test_warming_up_compiles_everything() -> None:
    warm_up()


@pytest.mark.parametrize("wire_type", ENCODED)
@given(values=hnp.arrays(np.float32, LENGTHS, elements=FINITE))
@settings(deadline=None)
def test_finite_values_become_the_same_bytes(wire_type: WireType, values: np.ndarray) -> None:
    values.flags.writeable = False
    assert bytes(COMPILED.encode(wire_type, values)) == bytes(NUMPY.encode(wire_type, values))


@pytest.mark.parametrize("wire_type", ENCODED)
@given(bits=hnp.arrays(np.uint32, LENGTHS, elements=BITS))
@settings(deadline=None)
def test_what_is_not_finite_is_refused_whoever_encodes_it(wire_type: WireType, bits: np.ndarray) -> None:
    values = bits.view(np.float32)
    judged = [
        NUMPY.decode(wire_type, codec.encode(wire_type, values), np.empty(bits.size, np.float32))
        for codec in (NUMPY, COMPILED)
    ]
    assert judged[0] == judged[1]


@pytest.mark.parametrize("wire_type", ENCODED)
@given(elements=LENGTHS, seed=st.integers(0, 2**32 - 1), plain=st.booleans(), shift=st.integers(0, 3))
@settings(deadline=None)
def test_any_bytes_are_decoded_and_judged_alike(
    wire_type: WireType, elements: int, seed: int, plain: bool, shift: int
) -> None:
    generator = np.random.default_rng(seed)
    count = encoded_bytes(wire_type, elements)
    raw = generator.integers(0, 256, count, np.uint8)
    if plain:  # bytes at random hardly ever are legal
        raw = np.frombuffer(
            NUMPY.encode(wire_type, generator.normal(size=elements).astype(np.float32)), np.uint8
        ).copy()
        if count and generator.integers(2):
            raw[generator.integers(count)] = generator.integers(256)
    data = memoryview(bytes(shift) + raw.tobytes())[shift:]  # at any address
    outs = [sevens(elements) for _ in CODECS]
    judged = [codec.decode(wire_type, data, out) for codec, out in zip(CODECS, outs, strict=True)]
    assert judged[0] == judged[1]
    if judged[0] is None:
        assert outs[0].tobytes() == outs[1].tobytes()


@pytest.mark.parametrize("scale", [0.0, -0.0, 1e-45, 3.1e28, 3.2e28, 1e30, 1.1e30, -1.0, np.inf, np.nan])
@pytest.mark.parametrize("element", [0, 1, 7, -7, -8])
def test_scales_and_elements_at_the_limits_are_judged_alike(scale: float, element: int) -> None:
    raw = np.zeros(encoded_bytes(WireType.INT4_BLOCK, 300), np.uint8)
    raw[132:136] = np.array([scale], np.float32).view(np.uint8)
    raw[140] = element & 15
    outs = [sevens(300) for _ in CODECS]
    judged = [codec.decode(WireType.INT4_BLOCK, raw.data, out) for codec, out in zip(CODECS, outs, strict=True)]
    assert judged[0] == judged[1]
    if judged[0] is None:
        assert outs[0].tobytes() == outs[1].tobytes()


@pytest.mark.parametrize("wire_type", ENCODED)
def test_a_payload_is_split_and_assembled_alike(wire_type: WireType) -> None:
    layout = Layout([TensorSpec("weight", (70_001,), ElementType.FLOAT32, TensorKind.PARAMETER)])
    payload = PayloadFormat(layout, wire_type)
    values = np.random.default_rng(0).normal(size=70_001).astype(np.float32)
    splitters = [Splitter(payload, values, b"", 10_000, codec=codec) for codec in (NUMPY, COMPILED)]
    chunks = [list(map(bytes, splitter)) for splitter in splitters]
    assert chunks[0] == chunks[1]
    arrived = np.empty(70_001, np.float32)
    assembler = DecodingAssembler(payload, arrived, memoryview(b""), COMPILED)
    for data in chunks[1]:
        assembler.add(memoryview(data))
    assembler.finish(splitters[1].crc32c)
    expected = np.empty(70_001, np.float32)
    assert NUMPY.decode(wire_type, memoryview(b"".join(chunks[0])), expected) is None
    assert arrived.tobytes() == expected.tobytes()


@pytest.mark.parametrize("wire_type", [WireType.BFLOAT16, WireType.INT4_BLOCK])
@pytest.mark.parametrize("shift", [0, 1, 15])
@pytest.mark.parametrize("elements", [1, 17, BLOCK_ELEMENTS, 16 * BLOCK_ELEMENTS, 17 * BLOCK_ELEMENTS + 3])
def test_the_same_is_decoded_and_judged_at_any_alignment(
    elements: int, shift: int, wire_type: WireType, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(NUMPY.encode(wire_type, np.random.default_rng(elements).normal(size=elements).astype(np.float32)))
    wanted = np.empty(elements, np.float32)
    assert NUMPY.decode(wire_type, memoryview(data), wanted) is None
    around = aligned_empty(elements + shift + 16)
    around[:] = 7
    out = around[shift : shift + elements]
    with monkeypatch.context() as alone:  # nobody helps a kernel that finds fault with what is legal
        alone.delattr("gem_core.wire_types.decode")
        assert COMPILED.decode(wire_type, memoryview(data), out) is None
    assert out.tobytes() == wanted.tobytes()
    assert (around[:shift] == 7).all()
    assert (around[shift + elements :] == 7).all()
    for index in {0, elements // 2, elements - 1}:
        bad = bytearray(data)
        if wire_type is WireType.BFLOAT16:
            bad[2 * index + 1] = 0x7F  # far beyond the limit
        else:
            block, element = divmod(index, BLOCK_ELEMENTS)
            bad[132 * block + 4 + element // 2] = 0x80 if element % 2 else 0x08  # -8
        refused = COMPILED.decode(wire_type, memoryview(bad), out)
        assert refused is not None
        assert refused == NUMPY.decode(wire_type, memoryview(bad), wanted)
