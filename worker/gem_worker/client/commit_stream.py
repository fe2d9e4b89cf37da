"""The Commit stream."""

import time

import grpc
from gemps.framing import FramingError
from gemps.v1 import commit_pb2
from google.protobuf.message import DecodeError

from gem_core.chunking import Assembler
from gem_core.errors import CoreError
from gem_worker.client.channel import Calls
from gem_worker.client.errors import ServerMisbehavedError, TornCallError
from gem_worker.client.messages import Verdict
from gem_worker.client.outgoing_commit import OutgoingCommit
from gem_worker.client.receive import ParametersReceiver
from gem_worker.client.rpc_status import failure
from gem_worker.client.shared_memory import TornParametersError
from gem_worker.client.watchdog import Watchdog, Watched


class CommitReply:
    """A commit's verdict and parameters; a `ReplySink`."""

    def __init__(self, receiver: ParametersReceiver, sequence: int) -> None:
        self.receiver = receiver
        self.verdict: Verdict | None = None
        self._sequence = sequence

    @property
    def sink(self) -> Assembler:
        """See `ReplySink`."""
        return self.receiver.sink

    def receive_fields(self, fields: commit_pb2.CommitResponse) -> None:
        """See `ReplySink`."""
        if fields.HasField("verdict"):
            verdict = Verdict.from_wire(fields.verdict)
            if verdict.sequence != self._sequence:
                raise ServerMisbehavedError(
                    f"the server sent a verdict on {verdict.sequence} for commit {self._sequence}"
                )
            self.verdict = verdict
        if fields.HasField("parameters"):
            self.receiver.announce(fields.parameters)


class CommitStream:
    """An open stream of commits. After a TornCallError or a refusal it cannot be used again: open another."""

    def __init__(self, calls: Calls, watchdog: Watchdog) -> None:
        self._watchdog = watchdog
        self._call = calls.open_commit()
        self._granted = 0  # sequence whose proceed came with the reply before; 0: none

    @property
    def transport(self) -> str:
        """See CommitCall."""
        return self._call.transport

    def is_open(self) -> bool:
        """Whether the stream is open. Thread-safe."""
        return self._call.is_open()

    def cancel(self) -> None:
        """Close it."""
        self._call.close()

    def exchange(self, commit: OutgoingCommit, reply: CommitReply, *, header_only: bool) -> None:
        """Send a commit and receive its reply.

        `header_only` requests the stored verdict of an applied commit. After TornCallError, `reply` holds what
        arrived. Also raises ServerRefusedError, ServerMisbehavedError.
        """
        watchdog, watched = self._watchdog, Watched(self._call.cancel)
        try:
            watchdog.watched = watched
            with self._call.exchange():
                goes_on = self._granted == commit.sequence and commit.waits_for_proceed and not header_only
                self._granted = 0
                self._call.send([(commit.question(), b"", False)] if header_only else commit.first_messages(watched))
                if goes_on:
                    self._call.send(commit.messages_after_proceed(watched))
                self._receive(commit, reply, watched, may_proceed=not goes_on)
        except grpc.RpcError as error:
            reason = failure(error)
            if isinstance(reason, TornCallError) and watched.ended_because is not None:
                reason = TornCallError(watched.ended_because)
            raise reason from None
        except (CoreError, FramingError, DecodeError, TornParametersError) as error:
            reply.receiver.reset()
            raise TornCallError(f"the reply arrived damaged: {error}") from error
        finally:
            # These are the steps of `watch`, without a call in between at which an interrupt could come.
            watchdog.watched = None
            watchdog.called_at = watched.progressed_at

    def _receive(self, commit: OutgoingCommit, reply: CommitReply, watched: Watched, *, may_proceed: bool) -> None:
        while (fields := self._call.receive(reply)) is not None:
            watched.progressed_at = time.monotonic()
            if fields.HasField("footer"):
                self._granted = fields.proceed.sequence
            elif fields.HasField("proceed"):
                if not may_proceed or fields.proceed.sequence != commit.sequence:
                    raise ServerMisbehavedError(f"the server sent an unexpected proceed for {fields.proceed.sequence}")
                may_proceed = False
                watched.waiting = False
                self._call.send(commit.messages_after_proceed(watched))
            if fields.HasField("verdict"):
                watched.waiting = False
            if fields.HasField("footer"):
                reply.receiver.finish(fields.footer)
                return
        raise TornCallError("the stream ended without a footer")
