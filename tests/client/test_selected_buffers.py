"""A reply that leaves out BUFFERs, taken whole, torn anywhere and completed by a pull with all, or not asked for."""

import numpy as np
import pytest
from gem_worker.client.errors import ServerMisbehavedError, TornCallError
from gem_worker.client.messages import Version
from gem_worker.client.receive import ParametersReceiver
from gemps.v1 import transfer_pb2

from gem_core.checksum import crc32c
from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.payload import PayloadFormat
from gem_core.selection import Selection
from gem_core.wire_types import WireType

LAYOUT = Layout(
    [
        TensorSpec("weight", (8,), ElementType.FLOAT32, TensorKind.PARAMETER),
        TensorSpec("mask", (5,), ElementType.FLOAT32, TensorKind.BUFFER),
        TensorSpec("count", (), ElementType.INT64, TensorKind.BUFFER),
        TensorSpec("flags", (4,), ElementType.BOOL, TensorKind.BUFFER),
    ]
)
WHOLE = PayloadFormat(LAYOUT, WireType.FLOAT32)
COUNT_ALONE = Selection((1, 1))
PARAMETERS = np.arange(8, dtype=np.float32).tobytes()
BUFFERS = bytes(range(1, 33))
PARTIAL = PARAMETERS + BUFFERS[20:28]


def header(data: bytes, selection: Selection | None = None) -> transfer_pb2.ParametersHeader:
    made = transfer_pb2.ParametersHeader(
        version=transfer_pb2.Version(incarnation=7, clock=42),
        wire_type=transfer_pb2.WIRE_TYPE_FLOAT32,
        byte_count=len(data),
        layout_digest=LAYOUT.digest,
    )
    if selection is not None:
        made.buffers.runs.extend(selection.runs)
        made.buffers.SetInParent()
    return made


def receiver(*, asked: bool = True) -> ParametersReceiver:
    made = ParametersReceiver(WHOLE, memoryview(bytearray(b"\xee" * WHOLE.byte_count)))
    made.takes_selection = asked
    return made


def test_the_buffers_that_came_follow_the_parameters() -> None:
    reply = receiver()
    for selection, data in ((COUNT_ALONE, PARTIAL), (Selection(()), PARAMETERS), (None, PARAMETERS + BUFFERS)):
        reply.reset()
        reply.announce(header(data, selection=selection))
        reply.add(data)
        reply.finish(transfer_pb2.Footer(crc32c=crc32c(data)))
        assert reply.buffers == selection
        assert bytes(reply.parameters[: len(data)]) == data
        assert reply.rest is None if selection is None else bytes(reply.rest or b"") == data[32:]


@pytest.mark.parametrize("torn_at", [0, 12, 32, 40])
def test_a_torn_reply_is_completed_with_all_buffers(torn_at: int) -> None:
    reply = receiver()
    reply.announce(header(PARTIAL, selection=COUNT_ALONE))
    if torn_at:
        reply.add(PARTIAL[:torn_at])
    resumed = reply.received
    assert resumed == (0 if torn_at > 32 else torn_at)
    assert reply.version == Version(7, 42)
    data = PARAMETERS + BUFFERS
    reply.announce(header(data))
    reply.add(data[resumed:])
    reply.finish(transfer_pb2.Footer(crc32c=crc32c(data)))
    assert (bytes(reply.parameters), reply.buffers, reply.rest) == (data, None, None)


def test_a_selection_that_was_not_asked_for_or_is_illegal_is_refused() -> None:
    with pytest.raises(ServerMisbehavedError, match="leaves out BUFFERs"):
        receiver(asked=False).announce(header(PARTIAL, selection=COUNT_ALONE))
    for runs in ((1,), (3, 1), (0, 0)):
        wrong = header(PARTIAL)
        wrong.buffers.runs.extend(runs)
        with pytest.raises((ServerMisbehavedError, TornCallError, ValueError), match="BUFFER"):
            receiver().announce(wrong)
