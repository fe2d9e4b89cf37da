"""Exactly one commit per delta, whatever fails.

  verdict received   pull the remaining parameters
  no verdict         heartbeat; if applied, request the stored verdict by the header alone, else resend
  session lost       rejoin and pull; drop the delta unless applied
  RetryInfo          wait, then resend
  stale base         pull, and drop the delta
  region is gone     resend as chunks, under the same sequence

Resending identical bytes is safe (commit.proto).
"""

from collections.abc import Sequence

from gem_core.payload import PayloadFormat
from gem_core.selection import Selection
from gem_core.wire_types import WireType
from gem_worker.client.channel import Calls
from gem_worker.client.commit_stream import CommitReply, CommitStream
from gem_worker.client.errors import (
    MisuseError,
    RunFinishedError,
    ServerMisbehavedError,
    ServerRefusedError,
    TornCallError,
)
from gem_worker.client.events import ClientEvent, EventKind, EventSink
from gem_worker.client.messages import CommitOutcome, RunState, Version
from gem_worker.client.outgoing_commit import (
    NO_STEPS,
    ChunkedCommit,
    Delta,
    OutgoingCommit,
    SharedCommit,
    StepCount,
)
from gem_worker.client.pull import Puller
from gem_worker.client.receive import ParametersReceiver
from gem_worker.client.session import LOST_SESSION, ClientSession
from gem_worker.client.watchdog import Watchdog


class Committer:
    """A session's commits, on one stream that opens on demand."""

    def __init__(
        self, calls: Calls, watchdog: Watchdog, session: ClientSession, puller: Puller, on_event: EventSink
    ) -> None:
        self._calls = calls
        self._watchdog = watchdog
        self._session = session
        self._puller = puller
        self._on_event = on_event
        self._stream: CommitStream | None = None
        self._chunked: ChunkedCommit | None = None
        self._receiver: ParametersReceiver | None = None

    def has_open_stream(self) -> bool:
        """Whether a stream keeps the session alive. Thread-safe."""
        stream = self._stream
        return stream is not None and stream.is_open()

    @property
    def transport(self) -> str | None:
        """See Client.transport."""
        stream = self._stream
        return stream.transport if stream is not None and stream.is_open() else None

    def drop_stream(self) -> None:
        """Close the stream."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()

    def commit(
        self,
        delta: memoryview,
        into: memoryview,
        loss: float | None,
        samples: int,
        *,
        in_place: bool = False,
        scale: float | None = None,
        steps: StepCount = NO_STEPS,
        commit_id: int = 0,
        buffers: Selection | None = None,
        eta: float | None = None,
        decays: Sequence[float] = (),
    ) -> CommitOutcome:
        """Commit a delta as Client.commit does, which has checked the buffers. `commit_id`: see commit.proto."""
        described = self._describe(delta, loss, samples, scale, steps, commit_id, buffers)._replace(
            eta=eta, decays=decays
        )
        outgoing = self._outgoing(described)
        try:
            outcome = self._until_settled(described, outgoing, into, in_place=in_place)
        except (ServerRefusedError, RunFinishedError):
            # The server changed nothing.
            self.drop_stream()
            raise
        except BaseException:
            # The delta may have been applied.
            self.drop_stream()
            self._session.unsettled = True
            self._session.lost()
            raise
        self._session.patience.succeeded()
        return outcome

    def _describe(
        self,
        delta: memoryview,
        loss: float | None,
        samples: int,
        scale: float | None,
        steps: StepCount,
        commit_id: int,
        buffers: Selection | None,
    ) -> Delta:
        session = self._session
        base = session.version
        if base is None:
            raise MisuseError("pull() first: a commit needs parameters that its gradient was computed at")
        if scale is not None and session.formats.delta.wire_type is not WireType.FLOAT32:
            raise MisuseError("a scale needs a delta of float32: multiply before you encode it")
        return Delta(session.last_applied + 1, base, delta, loss, samples, scale, steps, commit_id, buffers)

    def _outgoing(self, delta: Delta) -> OutgoingCommit:
        session = self._session
        payload = session.formats.delta_with(delta.buffers)
        shared = session.open_shared()
        if shared is not None:
            return SharedCommit(session.session_id, delta, payload, shared)
        if self._chunked is None or self._chunked.payload is not payload:
            self._chunked = ChunkedCommit(session.session_id, payload, session.membership.chunk_bytes)
        return self._chunked.begin(delta)

    def _until_settled(
        self, delta: Delta, outgoing: OutgoingCommit, into: memoryview, *, in_place: bool
    ) -> CommitOutcome:
        session, payload = self._session, self._session.formats.parameters
        # Whether the server has reported this delta as applied.
        applied = False
        # The version that was pulled after a lost session.
        pulled: Version | None = None
        while True:
            shared = outgoing.shared if isinstance(outgoing, SharedCommit) else None
            if self._receiver is None or not self._receiver.fits(payload, into, shared, in_place=in_place):
                self._receiver = ParametersReceiver(
                    payload,
                    into,
                    shared,
                    in_place=in_place,
                    differences=session.differences,
                    layout_digest=session.membership.layout_digest,
                )
            self._receiver.reset()
            self._receiver.takes_selection = delta.buffers is not None
            reply = CommitReply(self._receiver, delta.sequence)
            try:
                self._open_stream().exchange(outgoing, reply, header_only=applied)
                return self._applied(reply)
            except TornCallError as torn:
                self.drop_stream()
                session.patience.torn(torn)
                if reply.verdict is not None:
                    return self._applied(reply, torn_in=payload)
                why = str(torn)
                session.heartbeat()
            except ServerRefusedError as refusal:
                self.drop_stream()
                if pulled is not None and self._verdict_is_lost(refusal):
                    return CommitOutcome(True, None, pulled, self._run_finished(), into)
                why = str(refusal)
                if refusal.reason == "NO_SHARED_MEMORY":
                    if shared is session.open_shared():
                        session.stop_sharing(why)
                    outgoing = self._outgoing(delta)
                    continue
                self._recover(refusal)
            if session.version is None:
                pulled = self._puller.pull(into, payload)
            applied = session.last_applied == delta.sequence
            if pulled is not None and not applied:
                text = f"one delta was dropped, fresh parameters were pulled: {why}"
                self._on_event(ClientEvent(EventKind.DELTA_DROPPED, text))
                return CommitOutcome(False, None, pulled, self._run_finished(), into)

    def _open_stream(self) -> CommitStream:
        if self._stream is not None and not self._stream.is_open():
            # It broke between two commits.
            self.drop_stream()
        if self._stream is None:
            self._stream = CommitStream(self._calls, self._watchdog)
        return self._stream

    def _applied(self, reply: CommitReply, torn_in: PayloadFormat | None = None) -> CommitOutcome:
        session = self._session
        verdict = reply.verdict
        if verdict is None:
            raise ServerMisbehavedError("the server sent parameters without a verdict")
        # A rejoin during the pull replaces this count.
        session.last_applied = verdict.sequence
        session.next_eta = verdict.next_eta
        session.run_state = verdict.run_state
        if torn_in is not None:
            self._puller.complete(reply.receiver)
        version = reply.receiver.version
        if version is None:
            raise ServerMisbehavedError("the server sent no parameters")
        session.version = version
        receiver = reply.receiver
        return CommitOutcome(
            True, verdict, version, self._run_finished(), receiver.parameters, receiver.buffers, receiver.rest
        )

    def _run_finished(self) -> bool:
        return self._session.run_state is RunState.FINISHED

    def _verdict_is_lost(self, refusal: ServerRefusedError) -> bool:
        return (
            refusal.retry_after is None
            and refusal.reason not in LOST_SESSION
            and refusal.reason not in ("SEQUENCE_REUSED", "NEWER_SESSION")
        )

    def _recover(self, refusal: ServerRefusedError) -> None:
        """Do what the refusal asks for, or raise it. If the snapshot is lost, session.version is None afterwards."""
        session = self._session
        if refusal.reason == "RUN_FINISHED":
            session.run_state = RunState.FINISHED
            raise RunFinishedError(refusal.message)
        if refusal.reason in LOST_SESSION or refusal.reason == "SEQUENCE_GAP":
            session.rejoin(str(refusal))
        elif refusal.reason == "STALE_BASE":
            session.stale(str(refusal))
        else:
            session.patience.wait_as_asked(refusal)
