from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gem_core import ChunkError, ElementType, Layout, PayloadFormat, TensorKind, TensorSpec, WireType, WireTypeError
from gem_core.payload import MAX_CHUNK_BYTES
from tests.core.transfers import ENCODED, awkward_layout

PARAMETER_BYTES = {
    WireType.FLOAT32: 3600,
    WireType.BFLOAT16: 1800,
    WireType.INT4_BLOCK: 450 + 4 * 4,
}


def borders_one_by_one(payload: PayloadFormat) -> set[int]:
    """Every border, by walking over every element of every tensor."""
    borders = {0, payload.byte_count}
    elements = payload.layout.parameter_count
    if payload.wire_type is WireType.INT4_BLOCK:
        borders |= {block * 132 for block in range(-(-elements // 256))}
    else:
        borders |= {i * PARAMETER_BYTES[payload.wire_type] // elements for i in range(elements)}
    offset = payload.parameter_bytes
    for tensor in payload.layout.buffers:
        borders |= {offset + i * tensor.element_type.byte_size for i in range(tensor.elements)}
        offset += tensor.byte_count
    return borders


@pytest.mark.parametrize("wire_type", ENCODED)
def test_sizes_are_those_of_the_tensors(wire_type: WireType) -> None:
    payload = PayloadFormat(awkward_layout(), wire_type)
    assert payload.parameter_bytes == PARAMETER_BYTES[wire_type]
    assert payload.rest_bytes == 3 + 20 + 20 + 8 + 6 + 1 + 32 + 4
    assert payload.byte_count == payload.parameter_bytes + payload.rest_bytes


@pytest.mark.parametrize("wire_type", ENCODED)
def test_borders_are_found_as_by_walking_over_every_element(wire_type: WireType) -> None:
    payload = PayloadFormat(awkward_layout(), wire_type)
    expected = borders_one_by_one(payload)
    assert {offset for offset in range(-2, payload.byte_count + 3) if payload.is_border(offset)} == expected
    for offset in range(payload.byte_count + 1):
        assert payload.border_at_or_before(offset) == max(border for border in expected if border <= offset)


@pytest.mark.parametrize("wire_type", ENCODED)
@given(data=st.data())
@settings(deadline=None, max_examples=50)
def test_cuts_are_contiguous_and_at_borders_and_as_large_as_can_be(wire_type: WireType, data: st.DataObject) -> None:
    payload = PayloadFormat(awkward_layout(), wire_type)
    borders = borders_one_by_one(payload)
    start = data.draw(st.sampled_from(sorted(borders)))
    chunk_bytes = data.draw(st.integers(132, 5000))
    expected_offset = start
    for offset, end in payload.cut(chunk_bytes, start):
        assert offset == expected_offset
        assert end == max(border for border in borders if border <= offset + chunk_bytes)
        expected_offset = end
    assert expected_offset == payload.byte_count


def test_a_small_payload_is_one_chunk_with_its_buffers() -> None:
    payload = PayloadFormat(awkward_layout(), WireType.FLOAT32)
    assert list(payload.cut(64 * 1024)) == [(0, payload.byte_count)]


def test_a_payload_without_bytes_has_no_chunks() -> None:
    layout = Layout([TensorSpec("frozen", (3,), ElementType.FLOAT32, TensorKind.FROZEN, sha256=bytes(32))])
    payload = PayloadFormat(layout, WireType.INT4_BLOCK)
    assert payload.byte_count == 0
    assert list(payload.cut(1024)) == []
    assert payload.is_border(0)


@pytest.mark.parametrize("chunk_bytes", [131, 0, -1, MAX_CHUNK_BYTES + 1])
def test_chunk_sizes_out_of_range_are_refused(chunk_bytes: int) -> None:
    payload = PayloadFormat(awkward_layout(), WireType.INT4_BLOCK)
    with pytest.raises(ChunkError, match=f"chunks of {chunk_bytes} bytes: this payload takes 132 to 2097152"):
        payload.cut(chunk_bytes)


def test_a_start_within_an_element_is_refused() -> None:
    with pytest.raises(ChunkError, match="offset 2 is not a border"):
        PayloadFormat(awkward_layout(), WireType.FLOAT32).cut(1024, start=2)


def test_shared_memory_has_no_payload_format() -> None:
    with pytest.raises(WireTypeError, match="SHARED_MEMORY has no encoding"):
        PayloadFormat(awkward_layout(), WireType.SHARED_MEMORY)


def test_elements_of_the_rest_are_located_by_their_offset() -> None:
    payload = PayloadFormat(awkward_layout(), WireType.BFLOAT16)
    start = payload.parameter_bytes
    located = [payload.locate_rest(start + offset) for offset in (0, 2, 3, 22, 23, 43, 51, 57, 58 + 8)]
    assert [(tensor.name, index) for tensor, index in located] == [
        ("mask", 0),
        ("mask", 2),
        ("mean", 0),
        ("mean", 4),
        ("variance", 0),
        ("steps", 0),
        ("half", 0),
        ("flags", 0),
        ("wide", 1),
    ]
    for outside in (0, start - 1, payload.byte_count):
        with pytest.raises(IndexError):
            payload.locate_rest(outside)


def test_neighbours_of_one_type_are_one_region_so_that_many_tensors_stay_fast() -> None:
    specs = [TensorSpec(f"w{i}", (3,), ElementType.FLOAT32, TensorKind.PARAMETER) for i in range(5_000)]
    specs += [TensorSpec(f"b{i}", (3,), ElementType.FLOAT32, TensorKind.BUFFER) for i in range(5_000)]
    payload = PayloadFormat(Layout(specs), WireType.FLOAT32)
    assert [(r.start, r.stop) for r in payload.regions] == [(0, 60_000), (60_000, 120_000)]
