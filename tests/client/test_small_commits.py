"""Commits that travel whole: their one message, replies that are taken at once, and what may break or come between."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import gem_worker.client
import gemps
import pytest
from gem_worker.client import Client, EventKind
from gem_worker.client.errors import ServerMisbehavedError
from gem_worker.client.messages import Version
from gem_worker.client.outgoing_commit import NO_STEPS, ChunkedCommit, Delta
from gem_worker.client.receive import ParametersReceiver
from gem_worker.client.watchdog import Watched
from gemps.v1 import commit_pb2, transfer_pb2

from gem_core.checksum import crc32c
from gem_core.errors import ChecksumError, CoreError
from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.payload import PayloadFormat
from gem_core.wire_types import WireType
from tests.client.conftest import Connect, Script, Serve
from tests.client.models import SMALL, buffer, parameters_in, payload
from tests.client.real_server import begin
from tests.client.scripted_server import end_quietly, tear

# A tensor behind the parameters, which is not scaled.
WITH_BUFFER = Layout(
    [
        TensorSpec("weight", (5,), ElementType.FLOAT32, TensorKind.PARAMETER),
        TensorSpec("steps", (), ElementType.INT64, TensorKind.BUFFER),
    ]
)
EMPTY = Layout([TensorSpec("weight", (0,), ElementType.FLOAT32, TensorKind.PARAMETER)])
ONLY_BUFFERS = Layout([TensorSpec("steps", (3,), ElementType.INT64, TensorKind.BUFFER)])
SESSION_ID = b"sixteen bytes id"
SOURCES = [str(Path(package.__path__[0])) for package in (gem_worker.client, gemps)]


class InterruptedByTest(BaseException):
    """Stands for KeyboardInterrupt."""


# --- the message


def delta_of(data: bytes, **changes: object) -> Delta:
    return Delta(3, Version(7, 41), memoryview(data), None, 0, None, NO_STEPS)._replace(**changes)


def message_of(data: bytes, **header: object) -> commit_pb2.CommitRequest:
    """Return the message as the generated code makes it."""
    request = commit_pb2.CommitRequest(
        header=commit_pb2.CommitHeader(
            session_id=SESSION_ID,
            wire_type=transfer_pb2.WIRE_TYPE_FLOAT32,
            byte_count=len(data),
            **header,  # type: ignore[arg-type]
        ),
        footer=transfer_pb2.Footer(crc32c=crc32c(data)),
    )
    if data:
        request.chunk = data
    return request


@pytest.mark.parametrize("layout", [SMALL, WITH_BUFFER, EMPTY, ONLY_BUFFERS], ids=lambda one: one.tensors[0].name)
def test_each_commits_message_says_this_commit_and_nothing_of_the_one_before(layout: Layout) -> None:
    format_ = PayloadFormat(layout, WireType.FLOAT32)
    commits = ChunkedCommit(SESSION_ID, format_, 1000)
    first, second = (bytes([value]) * format_.byte_count for value in (1, 2))
    version = transfer_pb2.Version(incarnation=7, clock=41)
    made = commits.begin(delta_of(first, loss=0.5, samples=9))
    assert sent_first(made) == message_of(first, sequence=3, base_version=version, loss=0.5, samples=9)
    assert made.question()  # which puts a checksum into the header
    made = commits.begin(delta_of(second, sequence=4, base=Version(7, 42)))
    version.clock = 42
    assert sent_first(made) == message_of(second, sequence=4, base_version=version)


def sent_first(commit: ChunkedCommit) -> commit_pb2.CommitRequest:
    """An attempt's first and only message."""
    ((head, data, last),) = commit.first_messages(Watched(lambda: None))
    assert last
    return commit_pb2.CommitRequest.FromString(bytes(head) + bytes(data))


@pytest.mark.parametrize("scale", [None, -0.1])
def test_a_repeat_is_the_same_bytes_and_the_question_its_header(scale: float | None) -> None:
    """All attempts but the first have the checksum in the header, too."""
    data = bytes(payload(SMALL, 0.5))
    made = ChunkedCommit(SESSION_ID, PayloadFormat(SMALL, WireType.FLOAT32), 1000).begin(delta_of(data, scale=scale))
    first = sent_first(made)
    assert not first.header.HasField("payload_crc32c")
    expected = commit_pb2.CommitRequest()
    expected.CopyFrom(first)
    expected.header.payload_crc32c = first.footer.crc32c
    assert first.footer.crc32c == crc32c(first.chunk)
    for _ in range(2):
        assert sent_first(made) == expected
    assert commit_pb2.CommitRequest.FromString(made.question()) == commit_pb2.CommitRequest(header=expected.header)
    assert not first.header.HasField("scale")
    watched = Watched(lambda: None)
    watched.waiting = False
    ((head, data_of_rest, last),) = made.messages_after_proceed(watched)
    assert last
    assert commit_pb2.CommitRequest.FromString(bytes(head) + bytes(data_of_rest)) == commit_pb2.CommitRequest(
        chunk=first.chunk, footer=first.footer
    )
    assert (watched.waiting, watched.sequence) == (True, 3)


def test_a_header_alone_that_the_server_lets_proceed_is_followed_by_the_payload(
    script: Script, connect: Connect
) -> None:
    """The server says that the commit is applied, and has forgotten it when the verdict is asked for."""
    server = script(SMALL)
    client = connect(server.address, SMALL).client
    client.join()
    client.pull(buffer(SMALL))
    (session,) = server.sessions.values()
    snapshot, version = session.snapshot, session.version

    def forget() -> None:
        assert server.theta is not None
        server.theta -= server.applied.pop()
        server.clock -= 1
        session.last_applied, session.stored = 0, None
        session.snapshot, session.version = snapshot, version

    server.at("committed", tear)
    server.at("commit", lambda: None, forget)
    into = buffer(SMALL)
    outcome = client.commit(payload(SMALL, 0.5), into)
    assert outcome.verdict is not None
    assert not outcome.verdict.duplicate
    assert [request.HasField("footer") for request in server.headers] == [True, False]
    assert len(server.applied) == 1
    assert (parameters_in(SMALL, into) == 0.5).all()


# --- the reply


def reply_of(data: bytes) -> commit_pb2.CommitResponse:
    return commit_pb2.CommitResponse(
        parameters=transfer_pb2.ParametersHeader(
            version=transfer_pb2.Version(incarnation=7, clock=42),
            wire_type=transfer_pb2.WIRE_TYPE_FLOAT32,
            byte_count=len(data),
            layout_digest=SMALL.digest,
        ),
        chunk=data,
        footer=transfer_pb2.Footer(crc32c=crc32c(data)),
    )


def receiver_into(into: memoryview) -> ParametersReceiver:
    return ParametersReceiver(PayloadFormat(SMALL, WireType.FLOAT32), into)


def test_a_reply_that_is_right_is_taken() -> None:
    data, into = bytes(range(32)), buffer(SMALL)
    receiver = receiver_into(into)
    split_message(receiver, reply_of(data))
    assert bytes(into) == data
    assert receiver.version == Version(7, 42)
    assert receiver.received == len(data)
    receiver.reset()
    assert (receiver.version, receiver.received) == (None, 0)


def other_digest(reply: commit_pb2.CommitResponse) -> None:
    reply.parameters.layout_digest = b"?" * 32


def other_bytes(reply: commit_pb2.CommitResponse) -> None:
    reply.chunk = b"!" + reply.chunk[1:]


def short(reply: commit_pb2.CommitResponse) -> None:
    reply.chunk = reply.chunk[:-4]
    reply.footer.crc32c = crc32c(reply.chunk)


def short_everywhere(reply: commit_pb2.CommitResponse) -> None:
    short(reply)
    reply.parameters.byte_count = len(reply.chunk)


WRONG: dict[str, tuple[Callable[[commit_pb2.CommitResponse], object], type[Exception]]] = {
    "other digest": (other_digest, ServerMisbehavedError),
    "other wire type": (lambda reply: setattr(reply.parameters, "wire_type", 2), ServerMisbehavedError),
    "announced longer": (lambda reply: setattr(reply.parameters, "byte_count", 36), ServerMisbehavedError),
    "announced in shared memory": (lambda reply: reply.parameters.shared_memory.SetInParent(), ServerMisbehavedError),
    "shorter in all its parts": (short_everywhere, ServerMisbehavedError),
    "chunk too short": (short, CoreError),
    "chunk too long": (lambda reply: setattr(reply, "chunk", reply.chunk + bytes(4)), CoreError),
    "footer of another sum": (lambda reply: setattr(reply.footer, "crc32c", 1), ChecksumError),
    "damaged bytes": (other_bytes, ChecksumError),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_reply_that_is_wrong_is_refused(wrong: str) -> None:
    change, error = WRONG[wrong]
    receiver, reply = receiver_into(buffer(SMALL)), reply_of(bytes(range(32)))
    change(reply)
    with pytest.raises(error):
        split_message(receiver, reply)


def split_message(receiver: ParametersReceiver, reply: commit_pb2.CommitResponse) -> None:
    receiver.announce(reply.parameters)
    receiver.add(memoryview(reply.chunk))
    receiver.finish(reply.footer)


# --- what breaks, and what comes between


def test_a_stream_that_is_cancelled_when_the_next_commit_arrives_is_repeated_as_any_other(
    script: Script, connect: Connect
) -> None:
    server = script(SMALL)
    connected = connect(server.address, SMALL)
    client = connected.client
    client.join()
    client.pull(buffer(SMALL))
    client.commit(payload(SMALL, 0.5), buffer(SMALL))

    def cancel() -> None:
        server.streams[0].cancel()
        end_quietly()

    server.at("commit", cancel)
    into = buffer(SMALL)
    outcome = client.commit(payload(SMALL, 0.25), into)
    assert outcome.verdict is not None
    assert outcome.verdict.sequence == 2
    assert len(server.applied) == 2
    assert (parameters_in(SMALL, into) == 0.75).all()
    assert connected.kinds() == [EventKind.CONNECTION_LOST, EventKind.CONNECTION_BACK]


@pytest.mark.parametrize("has_stream", [True, False], ids=["open stream", "new stream"])
def test_a_commit_may_be_interrupted_wherever_a_handler_can_raise(
    has_stream: bool, serve: Serve, connect: Connect
) -> None:
    """Handlers run when a function begins, and when a call has returned. Afterwards the client only has to pull."""
    server = serve()
    client = connect(server.address, SMALL).client
    into = begin(client, SMALL)
    if has_stream:
        client.commit(payload(SMALL, 1.0), into)
    for moment in itertools.count(1):
        applied = server.clock() - 1
        if not is_interrupted(client, moment):
            break
        assert not client.is_calling
        client.pull(into)
        assert parameters_in(SMALL, into)[0] - applied in (0, 1)
        if has_stream:
            applied = server.clock() - 1
            outcome = client.commit(payload(SMALL, 1.0), into)
            assert outcome.verdict is not None
            assert outcome.verdict.sequence == applied + 1
            assert (parameters_in(SMALL, into) == applied + 1).all()
    assert moment > 50


def is_interrupted(client: Client, moment: int) -> bool:
    """Whether a commit has so many moments at which it can be interrupted: then it was."""
    passed = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal passed
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(tuple(SOURCES)):
            passed += 1
            if passed == moment:
                raise InterruptedByTest

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        client.commit(payload(SMALL, 1.0), buffer(SMALL))
    except InterruptedByTest:
        return True
    finally:
        sys.setprofile(before)
    return False
