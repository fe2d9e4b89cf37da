"""Makes the examples of docs/protocol.md from generated code: Join, Pull, Commit, and the same commit on the lane.

`python -m tests.docs.protocol_example` prints the blocks that the page must have.
"""

import math
import struct
from collections.abc import Iterator

from gemps.v1 import commit_pb2, lane_pb2, layout_pb2, parameters_pb2, run_pb2, session_pb2, transfer_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from tests.core import slow

SESSION_ID = bytes(range(16))
INCARNATION = 42
LAYOUT = layout_pb2.Layout(
    tensors=[
        layout_pb2.TensorSpec(
            name="weight",
            shape=[1, 2],
            element_type=layout_pb2.ELEMENT_TYPE_FLOAT32,
            kind=layout_pb2.TENSOR_KIND_PARAMETER,
        ),
        layout_pb2.TensorSpec(
            name="steps", element_type=layout_pb2.ELEMENT_TYPE_INT64, kind=layout_pb2.TENSOR_KIND_BUFFER
        ),
    ]
)
DIGEST = bytes.fromhex(
    slow.layout_digest(
        [
            {"name": "weight", "shape": [1, 2], "element_type": "float32", "kind": "parameter"},
            {"name": "steps", "shape": [], "element_type": "int64", "kind": "buffer"},
        ]
    )
)
# Of JoinResponse the page leaves these out: they differ with settings, versions, ports and runs.
LEFT_OUT = ("settings", "shared_memory_socket", "server_version", "lane_port", "port", "run_name", "run_id", "commits")
THETA = struct.pack("<2fq", 1.0, -2.0, 0)
# -0.05 * (1, -2) in float32, and the counter after one step.
DELTA = struct.pack("<2fq", -0.05, 0.1, 1)
UPDATED = struct.pack("<2fq", 0.95, -1.9, 1)
_FIXED = {FieldDescriptor.TYPE_DOUBLE: ("<d", 8), FieldDescriptor.TYPE_FIXED32: ("<I", 4)}
_WIDTH = 54


def version(clock: int) -> transfer_pb2.Version:
    return transfer_pb2.Version(incarnation=INCARNATION, clock=clock)


def footer(payload: bytes) -> transfer_pb2.Footer:
    return transfer_pb2.Footer(crc32c=slow.crc32c(payload))


def parameters(clock: int, payload: bytes) -> transfer_pb2.ParametersHeader:
    return transfer_pb2.ParametersHeader(
        version=version(clock),
        wire_type=transfer_pb2.WIRE_TYPE_FLOAT32,
        byte_count=len(payload),
        layout_digest=DIGEST,
    )


JOIN = session_pb2.JoinRequest(
    session_id=SESSION_ID,
    worker_name="w",
    host_id="h",
    layout=LAYOUT,
    delta_wire_types=[transfer_pb2.WIRE_TYPE_FLOAT32],
    parameter_wire_types=[transfer_pb2.WIRE_TYPE_FLOAT32],
)
JOINED = session_pb2.JoinResponse(
    incarnation=INCARNATION,
    run_state=run_pb2.RUN_STATE_TRAINING,
    delta_wire_type=transfer_pb2.WIRE_TYPE_FLOAT32,
    parameter_wire_type=transfer_pb2.WIRE_TYPE_FLOAT32,
    chunk_bytes=1 << 20,
    has_parameters=True,
    layout_digest=DIGEST,
    next_eta=0.05,
    session_timeout_seconds=120.0,
)
PULL = parameters_pb2.PullRequest(session_id=SESSION_ID)
PULLED = parameters_pb2.PullResponse(header=parameters(1, THETA), chunk=THETA, footer=footer(THETA))
COMMIT = commit_pb2.CommitRequest(
    header=commit_pb2.CommitHeader(
        session_id=SESSION_ID,
        sequence=1,
        base_version=version(1),
        wire_type=transfer_pb2.WIRE_TYPE_FLOAT32,
        byte_count=len(DELTA),
        loss=2.5,
        samples=1,
    ),
    chunk=DELTA,
    footer=footer(DELTA),
)
# Squares and their sum as float32, the root in double: as the kernels have it. The rule's first factor is exactly 1.
NORM = math.sqrt(slow.float32(sum(slow.float32(slow.float32(one) ** 2) for one in (0.05, 0.1))))
COMMITTED = commit_pb2.CommitResponse(
    verdict=commit_pb2.Verdict(
        sequence=1,
        version=version(2),
        statistics=commit_pb2.CommitStatistics(mean_pi=1.0, proxy_norm=NORM, delta_norm=NORM, update_norm=NORM),
        run_state=run_pb2.RUN_STATE_TRAINING,
        next_eta=0.05,
        progress=1.0,
    ),
    parameters=parameters(2, UPDATED),
    chunk=UPDATED,
    footer=footer(UPDATED),
)
MESSAGES: tuple[tuple[str, Message], ...] = (
    ("W -> S  Join", JOIN),
    ("W <- S  Join's answer, without " + ", ".join(LEFT_OUT), JOINED),
    ("W -> S  Pull", PULL),
    ("W <- S  Pull's answer, in one message", PULLED),
    ("W -> S  Commit: header, chunk and footer in one message", COMMIT),
    ("W <- S  the answer on the stream: verdict, parameters, chunk, footer", COMMITTED),
)
HELLO = lane_pb2.LaneHello(magic=b"gemps-lane", version=1, incarnation=INCARNATION, session_id=SESSION_ID)
WELCOME = lane_pb2.LaneWelcome(incarnation=INCARNATION)


def lane_block() -> str:
    """Return the block of the lane."""
    lines: list[str] = []
    for title, name, kind, message in (
        ("W -> S  HELLO", "HELLO", 1, HELLO),
        ("W <- S  WELCOME", "WELCOME", 2, WELCOME),
        ("W -> S  MESSAGE: the commit's 68 bytes follow", "MESSAGE", 3, COMMIT),
        ("W <- S  MESSAGE: the answer's 139 bytes follow", "MESSAGE", 3, COMMITTED),
    ):
        raw = message.SerializeToString(deterministic=True)
        header = struct.pack("<IB", len(raw), kind)
        lines += (title, _line(header, f"length = {len(raw)}, kind = {kind} ({name})", 0))
        if kind != 3:
            lines += _lines(raw, message.DESCRIPTOR, 0)
    return "\n".join(lines) + "\n"


def blocks() -> Iterator[str]:
    """Return the page's blocks, one for each message."""
    for title, message in MESSAGES:
        raw = message.SerializeToString(deterministic=True)
        lines = [f"{title}: {len(raw)} bytes", *_lines(raw, message.DESCRIPTOR, 0)]
        yield "\n".join(lines) + "\n"


def _lines(raw: bytes, descriptor: Descriptor, depth: int) -> Iterator[str]:
    """Yield a line for each field. The fields of a submessage follow its tag and length."""
    at = 0
    while at < len(raw):
        start = at
        key, at = _varint(raw, at)
        field = descriptor.fields_by_number[key >> 3]
        wire_format = key & 7
        if wire_format == 0:
            number, at = _varint(raw, at)
            value = str(number)
            if field.enum_type is not None:
                value += f" ({field.enum_type.values_by_number[number].name})"
            elif field.type == FieldDescriptor.TYPE_BOOL:
                value = str(bool(number)).lower()
        elif wire_format == 2:
            length, at = _varint(raw, at)
            content = raw[at : at + length]
            if field.message_type is not None:
                yield _line(raw[start:at], f"{field.name}: {length} bytes", depth)
                yield from _lines(content, field.message_type, depth + 1)
                at += length
                continue
            at += length
            value = _content(field, content)
        else:
            pattern, size = _FIXED[field.type]
            (number,) = struct.unpack_from(pattern, raw, at)
            value = f"0x{number:08x}" if size == 4 else repr(number)
            at += size
        yield _line(raw[start:at], f"{field.name} = {value}", depth)


def _content(field: FieldDescriptor, content: bytes) -> str:
    if field.type == FieldDescriptor.TYPE_STRING:
        return f'"{content.decode()}"'
    if field.type == FieldDescriptor.TYPE_BYTES:
        if field.name == "magic":
            return f'"{content.decode()}"'
        if field.name == "chunk":
            return "weight {:.7g} {:.7g}, steps {}".format(*struct.unpack("<2fq", content))
        return f"{len(content)} bytes"
    numbers, at = [], 0
    while at < len(content):  # a packed list
        number, at = _varint(content, at)
        numbers.append(field.enum_type.values_by_number[number].name if field.enum_type else str(number))
    return f"[{', '.join(numbers)}]"


def _line(raw: bytes, text: str, depth: int) -> str:
    indent = "  " * depth
    rows = [raw[i : i + 16].hex(" ") for i in range(0, len(raw), 16)]
    first = f"{indent + rows[0]:{_WIDTH}}{indent}{text}"
    return "\n".join([first, *(f"{indent}{row}" for row in rows[1:])])


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at


if __name__ == "__main__":
    print("\n".join(f"```text\n{block}```\n" for block in (*blocks(), lane_block())))
