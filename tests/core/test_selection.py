"""A selection of BUFFERs, and the payloads that have only these."""

import random

import numpy as np
import pytest

from gem_core import DecodingAssembler, PayloadFormat, RawAssembler, Splitter, WireType
from gem_core.errors import SelectionError
from gem_core.payload import selected_format
from gem_core.selection import MAX_RUN_NUMBERS, Selection
from tests.core.transfers import ENCODED, awkward_layout, awkward_transfer

COUNT = len(awkward_layout().buffers)


def some_selections() -> list[tuple[int, ...]]:
    generator = random.Random(1)
    drawn = [tuple(sorted(generator.sample(range(COUNT), size))) for size in range(COUNT + 1) for _ in range(3)]
    return sorted({(), tuple(range(COUNT)), *drawn})


@pytest.mark.parametrize("indices", some_selections(), ids=str)
def test_runs_name_the_indices_and_nothing_else(indices: tuple[int, ...]) -> None:
    selection = Selection.of(indices)
    assert selection is not None
    assert tuple(selection.indices()) == indices
    assert selection.stop == (indices[-1] + 1 if indices else 0)
    assert selection == Selection(selection.runs)


def test_more_runs_than_a_header_takes_are_no_selection() -> None:
    most = MAX_RUN_NUMBERS // 2
    assert Selection.of(range(0, 2 * most, 2)) is not None
    assert Selection.of(range(0, 2 * most + 1, 2)) is None
    assert Selection.of(range(70_000)) == Selection((0, 70_000))


@pytest.mark.parametrize("runs", [(1,), (1, 2, 3), (0, 0), (0, 1, 0, 1), (5, 0), (0, -1), (-1, 2), (1,) * 514])
def test_other_numbers_are_refused(runs: tuple[int, ...]) -> None:
    with pytest.raises(SelectionError):
        Selection(runs)


@pytest.mark.parametrize("runs", [(COUNT, 1), (0, COUNT + 1), (2**32, 2**32)])
def test_a_selection_beyond_the_layout_is_refused(runs: tuple[int, ...]) -> None:
    with pytest.raises(SelectionError, match=f"this layout has {COUNT}"):
        PayloadFormat(awkward_layout(), WireType.FLOAT32, Selection(runs))


@pytest.mark.parametrize("wire_type", ENCODED)
@pytest.mark.parametrize("indices", some_selections(), ids=str)
def test_a_payload_has_the_selected_buffers_without_gaps_and_its_own_borders(
    wire_type: WireType, indices: tuple[int, ...]
) -> None:
    whole = awkward_transfer(wire_type)
    layout, selection = whole.payload.layout, Selection.of(indices)
    assert selection is not None
    payload = PayloadFormat(layout, wire_type, selection)
    assert [one.name for one in payload.buffers] == [layout.buffers[index].name for index in indices]
    rest = b"".join(whole.rest[start:stop] for start, stop in payload.rest_ranges())
    assert len(rest) == payload.rest_bytes == sum(layout.buffers[index].byte_count for index in indices)
    chunks = [bytes(data) for data in Splitter(payload, whole.parameters, rest, 600)]
    sent = b"".join(chunks)
    assert sent == whole.bytes[: payload.parameter_bytes] + rest
    parameters, arrived = np.zeros(layout.parameter_count, np.float32), bytearray(payload.rest_bytes)
    decoding = DecodingAssembler(payload, parameters, memoryview(arrived))
    raw = RawAssembler(payload, memoryview(bytearray(payload.byte_count)))
    for data in chunks:
        decoding.add(memoryview(data))
        raw.add(memoryview(data))
    assert (bytes(arrived), raw.crc32c) == (rest, decoding.crc32c)
    assert payload.is_border(payload.byte_count)


def test_the_format_of_a_selection_is_one_object_while_it_is_in_use() -> None:
    layout, selection = awkward_layout(), Selection((1, 2))
    first = selected_format(layout, WireType.FLOAT32, selection)
    assert selected_format(awkward_layout(), WireType.FLOAT32, Selection((1, 2))) is first
    assert selected_format(layout, WireType.BFLOAT16, selection) is not first
