"""Requests that are almost right: valid ones of every method, changed at random, in their fields and in their bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gemps.v1 import operations_pb2, parameters_pb2, session_pb2, status_pb2, transfer_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import strategies as st

from tests.wire.calls import METHODS
from tests.wire.model import SHARED_MEMORY, Model, Tensor
from tests.wire.transfer import footer_of
from tests.wire.worker import RawWorker

# No valid commit or upload is among the requests: the checksum of each is wrong in every byte.
WRONG = 0xA5A5A5A5
GUEST = "guest"
# Small, so that chance finds the fields and not only the values.
MODEL = Model(
    (
        Tensor("weight", (4, 5), aliases=("head.weight",)),
        Tensor("running_mean", (5,), "buffer"),
        Tensor("steps", (), "buffer", "int64"),
        Tensor("frozen", (3,), "frozen", "float16", sha256=bytes(32)),
    )
)
CHUNK_BYTES = 40
MAX_MESSAGES = 10
_U64 = (0, 1, 2, 255, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
_TEXTS = ("", "a", "e\u0301\U0001f600", "a" * 256, "a" * 257, "\u0000", "line\n", "%s%n{}", "\u202e")
_BYTES = (b"", b"\0", b"\0" * 15, b"\xff" * 16, b"\0" * 17, b"\x0a" * 9000)
_VALUES: dict[int, Sequence[Any]] = {
    FieldDescriptor.CPPTYPE_UINT64: _U64,
    FieldDescriptor.CPPTYPE_UINT32: [number for number in _U64 if number < 2**32],
    FieldDescriptor.CPPTYPE_INT32: (0, 1, -1, 2**31 - 1, -(2**31)),
    FieldDescriptor.CPPTYPE_ENUM: (0, 1, 2, 3, 4, 5, 6, -1, 2**31 - 1),
    FieldDescriptor.CPPTYPE_BOOL: (False, True),
    FieldDescriptor.CPPTYPE_DOUBLE: (0.0, -1.0, 0.5, 1e308, 5e-324, float("inf"), float("-inf"), float("nan")),
    FieldDescriptor.CPPTYPE_FLOAT: (0.0, -1.0, 0.5, 3e38, 1e-45, float("inf"), float("-inf"), float("nan")),
    FieldDescriptor.CPPTYPE_STRING: _TEXTS,
}


@dataclass(frozen=True)
class Request:
    """What a call sends: one message, or those of a stream."""

    method: str
    messages: tuple[bytes, ...]

    def is_meant(self, own: RawWorker) -> bool:
        """Whether somebody may rightly end the run, or our own session, in this way: nothing to learn from."""
        raw = self.messages[0] if self.messages else b""
        try:
            if self.method == "Control":
                control = operations_pb2.ControlRequest.FromString(raw)
                return control.action == operations_pb2.CONTROL_ACTION_FINISH
            if self.method == "Join":
                join = session_pb2.JoinRequest.FromString(raw)
                return join.worker_name == own.name and join.session_id != own.session_id
        except DecodeError:
            pass
        return False


@dataclass(frozen=True)
class Template:
    """A request before it is changed."""

    method: str
    messages: list[Message]


def templates(worker: RawWorker) -> list[Template]:
    """Requests of a worker that has joined, pulled and committed once; but for what is wrong by intent, valid."""
    guest = worker.join_request(session_id=b"guest's 16 bytes", worker_name=GUEST)
    whole = worker.prepare(worker.delta(2)).with_footer(crc32c=WRONG)
    parts = worker.prepare(worker.delta(2), chunk_bytes=CHUNK_BYTES).with_footer(crc32c=WRONG)
    first = worker.prepare(worker.delta(1), sequence=1).repeated()
    upload = worker.upload(worker.model.random_values(1), CHUNK_BYTES)
    upload[-1].footer.crc32c = WRONG
    handle = transfer_pb2.SharedMemoryHandle(region=1, offset=64, byte_count=len(whole.payload))
    shared = whole.with_header(wire_type=SHARED_MEMORY, shared_memory=handle, scale=0.5)
    known = worker.pull_request(known_version=worker.version)
    resumed = worker.pull_request(resume_version=worker.version, resume_offset=4)
    evaluation = operations_pb2.ReportEvaluationRequest(version=worker.version, loss=1.0, accuracy=0.5, samples=9)
    checkpoint = operations_pb2.ControlRequest(action=operations_pb2.CONTROL_ACTION_CHECKPOINT, reason="fuzz")
    # Three times as many of what leads deepest into the server.
    deep = [
        Template("Commit", [whole.whole()]),
        Template("Commit", list(parts.messages())),
        Template("Initialize", list(upload)),
    ]
    return [
        *deep * 3,
        Template("Commit", [shared.opening()]),
        Template("Join", [worker.join_request()]),
        Template("Join", [guest]),
        Template("Heartbeat", [session_pb2.HeartbeatRequest(session_id=worker.session_id)]),
        Template("Leave", [session_pb2.LeaveRequest(session_id=worker.session_id, reason="fuzz")]),
        Template("Pull", [parameters_pb2.PullRequest(with_layout=True)]),
        Template("Pull", [known]),
        Template("Pull", [resumed]),
        Template("Commit", [first.opening()]),
        Template("Commit", [first.whole(), whole.whole()]),
        Template("GetStatus", [status_pb2.GetStatusRequest()]),
        Template("WatchStatus", [status_pb2.WatchStatusRequest(interval_seconds=1)]),
        Template("ReportEvaluation", [evaluation]),
        Template("Control", [checkpoint]),
    ]


def requests(valid: list[Template]) -> st.SearchStrategy[Request]:
    """One of the valid requests, changed."""

    @st.composite
    def changed(draw: st.DrawFn) -> Request:
        template = draw(st.sampled_from(valid))
        places = st.sampled_from(range(len(template.messages)))
        wrong = draw(st.sets(places, min_size=draw(st.sampled_from((0, 1, 1, 1))), max_size=3))
        raws = [
            _changed(draw, message) if place in wrong else message.SerializeToString()
            for place, message in enumerate(template.messages)
        ]
        if METHODS[template.method].client_streaming:
            raws = _disordered(draw, raws)
        return Request(template.method, tuple(raws))

    return changed()


def _disordered(draw: st.DrawFn, raws: list[bytes]) -> list[bytes]:
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
        place = draw(st.integers(0, len(raws)))
        match draw(st.sampled_from(("drop", "repeat", "swap", "noise", "end"))):
            case "drop":
                raws = raws[:place] + raws[place + 1 :]
            case "repeat":
                raws = raws[:place] + raws[place : place + 1] + raws[place:]
            case "swap":
                raws = raws[:place] + raws[place : place + 2][::-1] + raws[place + 2 :]
            case "noise":
                raws = [*raws[:place], draw(st.binary(max_size=40)), *raws[place:]]
            case "end":
                raws = raws[:place]
    return raws[:MAX_MESSAGES]


def _changed(draw: st.DrawFn, message: Message) -> bytes:
    changed = type(message)()
    changed.CopyFrom(message)
    for _ in range(draw(st.sampled_from((1, 1, 2)))):
        _change_a_field(draw, changed)
    return _change_bytes(draw, changed.SerializeToString())


def _change_a_field(draw: st.DrawFn, message: Any) -> None:
    fields = list(message.DESCRIPTOR.fields)
    if not fields:
        return
    field = draw(st.sampled_from(fields))
    if draw(st.integers(0, 5)) == 0:
        message.ClearField(field.name)
    elif field.is_repeated:
        _change_repeated(draw, getattr(message, field.name), field)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        part = getattr(message, field.name)
        part.SetInParent()
        _change_a_field(draw, part)
    else:
        setattr(message, field.name, _value(draw, field))


def _change_repeated(draw: st.DrawFn, values: Any, field: FieldDescriptor) -> None:
    more = draw(st.sampled_from((0, 1, 2, 40)))
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        values.extend([_value(draw, field)] * more)
    elif values and not more:
        _change_a_field(draw, values[draw(st.integers(0, len(values) - 1))])
    else:
        values.extend([values[0]] * more if values else [values.add() for _ in range(more)])


def _value(draw: st.DrawFn, field: FieldDescriptor) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return draw(st.sampled_from(_BYTES))
    return draw(st.sampled_from(_VALUES[field.cpp_type]))


def _change_bytes(draw: st.DrawFn, raw: bytes) -> bytes:
    place = draw(st.integers(0, len(raw)))
    match draw(st.sampled_from(("nothing",) * 8 + ("cut", "flip", "insert", "noise", "append", "twice"))):
        case "cut":
            return raw[:place]
        case "flip":
            return (
                raw[:place]
                + bytes([b ^ 1 << draw(st.integers(0, 7)) for b in raw[place : place + 1]])
                + raw[place + 1 :]
            )
        case "insert":
            return raw[:place] + draw(st.binary(min_size=1, max_size=12)) + raw[place:]
        case "noise":
            return draw(st.binary(max_size=100))
        case "append":
            return raw + draw(st.binary(min_size=1, max_size=12))
        case "twice":
            return raw + raw
    return raw


def completes(messages: Sequence[bytes], kind: type[Message]) -> bool:
    """Whether these messages hold a whole payload whose footer fits it: judged by protobuf's own code."""
    data = b""
    for raw in messages:
        try:
            message: Any = kind.FromString(raw)
        except DecodeError:
            return False
        if message.HasField("header"):
            data = b""
        if message.chunk:
            data += message.chunk
        if message.HasField("footer") and message.footer == footer_of(data):
            return True
    return False
