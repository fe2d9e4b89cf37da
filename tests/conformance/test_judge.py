"""Tests of the judgement of payloads: every legal way to cut one passes, and every change of its bytes is a fault."""

import queue
import re

import numpy as np
import pytest
from gem_conformance import FaultError, FaultName, Place
from gem_conformance.grpc_server import Call
from gem_conformance.judge_pull import Pull, judge_pull
from gem_conformance.judge_values import Expected, Mistake, Upload, judge_values
from gem_conformance.state import Central, Session
from gem_conformance.task import Task, buffer_bytes, delta, first_parameters, tensor
from gemps.v1 import parameters_pb2, transfer_pb2
from gemps.v1.transfer_pb2 import Version
from hypothesis import given
from hypothesis import strategies as st

from gem_core.checksum import crc32c
from gem_core.layout import Layout
from gem_core.payload import PayloadFormat
from gem_core.wire_types import BLOCKS, WireType, encode

LAYOUT = Layout(
    [
        tensor("weight", (17, 19)),
        tensor("none", (0, 3)),
        tensor("steps", (3,), "buffer", "int64"),
        tensor("mask", (5,), "buffer", "bool"),
        tensor("half", (7,), "buffer", "bfloat16"),
    ]
)
TYPES = st.sampled_from([WireType.FLOAT32, WireType.BFLOAT16])
REST = buffer_bytes(LAYOUT.buffers, 3)


def right(wire_type: WireType, eta: float = 0.05) -> tuple[PayloadFormat, bytes, Expected]:
    """Return the format of a payload, its correct bytes, and what the judge compares them with."""
    values = delta(first_parameters(LAYOUT.parameter_count), eta)
    return (
        PayloadFormat(LAYOUT, wire_type),
        bytes(encode(wire_type, values)) + REST,
        Expected(values, REST, Place.CONFORMANCE),
    )


def pieces(data: bytes, chunk_bytes: int) -> list[bytes]:
    return [data[start : start + chunk_bytes] for start in range(0, len(data), chunk_bytes)]


def take_all(upload: Upload, chunks: list[bytes], footer: transfer_pb2.Footer) -> None:
    for chunk in chunks:
        upload.receive(chunk, None)
    upload.receive(b"", footer)


def fault_of(payload: PayloadFormat, data: bytes, expected: Expected) -> FaultName | None:
    try:
        judge_values(payload, data, expected, "commit 1")
    except FaultError as fault:
        return fault.name
    return None


@given(TYPES, st.integers(1, 2000))
def test_a_payload_cut_anywhere_is_taken_with_its_footer(wire_type: WireType, chunk_bytes: int) -> None:
    payload, data, expected = right(wire_type)
    upload = Upload(payload, "commit 1")
    for chunk in pieces(data, chunk_bytes):
        assert not upload.is_complete
        upload.receive(chunk, None)
    assert upload.has_all_bytes
    upload.receive(b"", transfer_pb2.Footer(crc32c=crc32c(data)))
    assert upload.is_complete
    assert fault_of(payload, bytes(upload.received), expected) is None


def test_the_last_chunk_and_the_footer_may_come_together() -> None:
    payload, data, _ = right(WireType.FLOAT32)
    upload = Upload(payload, "commit 1")
    upload.receive(data, transfer_pb2.Footer(crc32c=crc32c(data)))
    assert upload.is_complete


@given(TYPES, st.integers(1, 2000), st.data())
def test_a_chunk_left_out_or_sent_twice_is_a_fault(wire_type: WireType, chunk_bytes: int, draw: st.DataObject) -> None:
    payload, data, _ = right(wire_type)
    chunks = pieces(data, chunk_bytes)
    index = draw.draw(st.integers(0, len(chunks) - 1))
    wrong = chunks[:index] + (chunks[index + 1 :] if draw.draw(st.booleans()) else [chunks[index], *chunks[index:]])
    with pytest.raises(FaultError) as caught:
        take_all(Upload(payload, "commit 1"), wrong, transfer_pb2.Footer(crc32c=crc32c(data)))
    assert caught.value.name in (FaultName.WRONG_CHUNK, FaultName.WRONG_SIZE)


@pytest.mark.parametrize(
    ("chunk", "footer", "name"),
    [
        (b"", None, FaultName.WRONG_CHUNK),
        (bytes((2 << 20) + 1), None, FaultName.WRONG_CHUNK),
        (b"1234", transfer_pb2.Footer(crc32c=0), FaultName.WRONG_SIZE),
    ],
)
def test_an_illegal_message_of_an_upload_is_named(
    chunk: bytes, footer: transfer_pb2.Footer | None, name: FaultName
) -> None:
    with pytest.raises(FaultError) as caught:
        Upload(right(WireType.FLOAT32)[0], "commit 1").receive(chunk, footer)
    assert caught.value.name is name


@given(TYPES, st.data())
def test_every_flipped_bit_is_a_fault_unless_it_is_the_sign_of_a_zero(wire_type: WireType, draw: st.DataObject) -> None:
    payload, data, expected = right(wire_type)
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    name = fault_of(payload, bytes(changed), expected)
    if bit // 8 >= payload.parameter_bytes:
        assert name is FaultName.WRONG_BUFFERS
    elif name is None:
        (zero,) = np.flatnonzero(expected.parameters == 0)
        assert wire_type not in BLOCKS
        assert bit == 8 * wire_type.unit_bytes * (zero + 1) - 1
    else:
        assert name is FaultName.WRONG_VALUES


@pytest.mark.parametrize("wire_type", [WireType.FLOAT32, WireType.BFLOAT16])
def test_a_wrong_value_is_shown_with_its_tensor_and_both_numbers(wire_type: WireType) -> None:
    payload, _, expected = right(wire_type)
    values = expected.parameters.copy()
    values[20] /= 2  # a larger value would change the scale of a whole block
    with pytest.raises(FaultError) as caught:
        judge_values(payload, bytes(encode(wire_type, values)) + REST, expected, "commit 1")
    assert "commit 1: element 20 of 'weight'" in caught.value.expected
    assert caught.value.came.strip("-").replace(".", "").replace("e", "").replace("-", "").isdigit()


def test_truncation_is_distinguished_from_other_wrong_values() -> None:
    payload, _, expected = right(WireType.BFLOAT16)
    halves = (expected.parameters.view(np.uint32) >> 16).astype("<u2")
    assert fault_of(payload, halves.tobytes() + REST, expected) is FaultName.TRUNCATING_BFLOAT16
    halves[3] += 1
    assert fault_of(payload, halves.tobytes() + REST, expected) is FaultName.WRONG_VALUES


def test_a_known_mistake_is_named() -> None:
    payload, data, expected = right(WireType.FLOAT32)
    old = Mistake(FaultName.STALE_DELTA, "the new", "the old", Place.RULE, expected.parameters)
    other = Expected(expected.parameters * np.float32(3), REST, Place.CONFORMANCE, [old])
    with pytest.raises(FaultError) as caught:
        judge_values(payload, data, other, "commit 1")
    fault = caught.value
    assert (fault.name, fault.place) == (FaultName.STALE_DELTA, Place.RULE)
    assert re.fullmatch(r"commit 1: the new: element 0 of 'weight' = 0\.14\d+", fault.expected)
    assert re.fullmatch(r"the old: 0\.049\d+", fault.came)


@pytest.mark.parametrize(
    "request_",
    [
        parameters_pb2.PullRequest(resume_offset=1),
        parameters_pb2.PullRequest(resume_version=Version(incarnation=7), resume_offset=101),
    ],
)
def test_a_pull_cannot_resume_what_was_not_sent(request_: parameters_pb2.PullRequest) -> None:
    central = Central(Task(LAYOUT), first_parameters(LAYOUT.parameter_count), REST, incarnation=7)
    session = Session(bytes(range(16)), snapshot=central.snapshot())
    with pytest.raises(FaultError) as caught:
        judge_pull(Call("Pull", queue.Queue()), request_, session, central, sent_bytes=100)
    assert caught.value.name is FaultName.WRONG_RESUME


def test_a_pull_resumes_within_what_was_sent() -> None:
    central = Central(Task(LAYOUT), first_parameters(LAYOUT.parameter_count), REST, incarnation=7)
    session = Session(bytes(range(16)), snapshot=central.snapshot())
    request = parameters_pb2.PullRequest(resume_version=Version(incarnation=7), resume_offset=100)
    found = judge_pull(Call("Pull", queue.Queue()), request, session, central, sent_bytes=100)
    assert isinstance(found, Pull)
    assert (found.snapshot, found.offset) == (session.snapshot, 100)


def test_the_task_file_has_the_documented_format() -> None:
    task = Task(Layout([tensor("a", (2, 3))]), (WireType.INT4_BLOCK, WireType.FLOAT32))
    assert task.to_json() == (
        '{"layout": [{"name": "a", "shape": [2, 3], "element_type": "float32", "kind": "parameter", "aliases": []}], '
        '"delta_wire_types": ["int4_block", "float32"], "parameter_wire_types": ["float32"]}'
    )


def test_first_parameters_and_deltas_follow_the_documented_formula() -> None:
    values = first_parameters(1020)
    assert [float(values[i]) for i in (0, 254, 508, 509, 1019)] == [-254 / 256, 0.0, 254 / 256, -254 / 256, -253 / 256]
    assert float(delta(values, 0.1)[0]) == float(np.float32(np.float32(-0.1) * np.float32(-254 / 256)))


def test_buffer_bytes_are_legal_and_differ_between_generations() -> None:
    assert buffer_bytes(LAYOUT.buffers, 0) == bytes(LAYOUT.buffer_bytes)
    first, second = buffer_bytes(LAYOUT.buffers, 1), buffer_bytes(LAYOUT.buffers, 2)
    assert len(first) == len(second) == LAYOUT.buffer_bytes
    assert first != second
    assert set(first[24:29]) <= {0, 1}
