"""A session with several servers (shards.proto)."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

from gem_core.payload import PayloadFormat
from gem_core.selection import Selection
from gem_core.shards import MAX_SHARDS, Shard
from gem_core.wire_types import WireType, encoded_bytes
from gem_worker.client.connection import Connection
from gem_worker.client.errors import (
    CallCancelledError,
    RunFinishedError,
    ServerRefusedError,
    ServerUnavailableError,
    SessionLostError,
)
from gem_worker.client.events import ClientEvent, EventKind, EventSink
from gem_worker.client.initialize import initialize
from gem_worker.client.messages import CommitOutcome, RunState, Version
from gem_worker.client.outgoing_commit import StepCount
from gem_worker.client.retry import Patience
from gem_worker.client.session import LOST_SESSION

Result = TypeVar("Result")

# Seconds to wait for the other shards after the primary has refused a call.
SETTLE_SECONDS = 1.0
# Calls to a shard are repeated for this number of seconds. Then the primary is asked whether the shard has moved.
SHARD_PATIENCE_SECONDS = 5.0
# Seconds to wait for the primary after another shard has refused a call.
REFUSAL_SECONDS = 30.0
# After one of these errors the call is not repeated.
_SETTLED = (RunFinishedError, ServerRefusedError, SessionLostError)


class Shards:
    """The primary and the other servers. A call goes to all at once, to the primary from the calling thread."""

    def __init__(
        self,
        primary: Connection,
        connect: Callable[[str, Shard], Connection],
        patience: Patience,
        on_event: EventSink,
    ) -> None:
        self._primary = primary
        self._patience = patience
        self._on_event = on_event
        self._connect = connect
        self._addresses: tuple[str, ...] = ()
        self._others: tuple[Connection, ...] = ()
        self._threads = ThreadPoolExecutor(MAX_SHARDS, "gemps-shard")

    @property
    def _all(self) -> tuple[Connection, ...]:
        return (self._primary, *self._others)

    def join_all(self) -> None:
        """Join the other servers. The primary must be joined before, because it has their addresses.

        Raises as Client.join.
        """
        while True:
            try:
                self._join_others()
            except (ServerUnavailableError, SessionLostError, ServerRefusedError) as error:
                if isinstance(error, ServerRefusedError) and error.reason not in LOST_SESSION:
                    raise
                self._patience.failed(str(error))
                self._primary.session.heartbeat()  # joins again if it was lost
            else:
                return

    def _join_others(self) -> None:
        session = self._primary.session
        if self._addresses != session.membership.shards:
            for one in self._others:
                one.close()
            self._addresses = session.membership.shards
            count = 1 + len(self._addresses)
            self._others = tuple(
                self._connect(address, Shard(index, count)) for index, address in enumerate(self._addresses, 1)
            )
        for one in self._others:
            one.session.replace_layout(session.whole_layout)
            one.session.lost()
            one.session.join()
            one.watchdog.start()

    def change_wire_types(self, deltas: WireType, parameters: WireType) -> None:
        """Follow the primary, whose session has these wire types now.

        The other servers hear of them from the primary, so one may still answer with those before. If one was lost,
        join anew everywhere: then only a pull may follow.
        """
        session = self._primary.session
        try:
            for one in self._others:
                one.committer.drop_stream()
                while one.session.change_wire_types(deltas, parameters).wire_types != session.membership.wire_types:
                    self._patience.failed("a shard has not heard of the new wire types yet", report=False)
                if one.session.version is None:
                    raise SessionLostError("a shard was restarted")
        except (ServerUnavailableError, SessionLostError, ServerRefusedError) as error:
            self._rejoin(str(error))
        else:
            self._patience.succeeded()

    def initialize(self, payload: memoryview, adapter: bytes) -> bool:
        """Upload the first parameters; return whether they were accepted."""

        def upload(one: Connection) -> bool:
            format_ = PayloadFormat(one.session.layout, WireType.FLOAT32)
            part = self._part(one, payload, WireType.FLOAT32)
            sent = adapter if one is self._primary else b""
            try:
                return initialize(one.calls, one.watchdog, one.session, part, format_, sent)
            except ServerRefusedError as refusal:
                if refusal.reason != "STALE_BASE":
                    raise
                raise ServerUnavailableError(str(refusal)) from None  # another session's upload comes first

        while True:
            try:
                return self._settled(self._everywhere(upload))[0]
            except SessionLostError as lost:
                self._rejoin(str(lost))

    def pull_all(self, into: memoryview) -> Version:
        """Pull the parameters, of one clock, from all servers."""
        while True:
            version = self._pull_from(self._primary, into, None)
            try:
                versions = self._on_others(partial(self._pull_from, into=into, clock=version.clock))
            except SessionLostError as lost:
                self._rejoin(str(lost))
                continue
            except ServerRefusedError as refusal:
                if refusal.reason != "STALE_BASE":
                    raise
                self._patience.failed(str(refusal))
                continue
            except ServerUnavailableError as error:
                self._rejoin(str(error))
                continue
            if {one.clock for one in versions} == {version.clock}:
                self._patience.succeeded()
                return version

    def commit_all(
        self,
        delta: memoryview,
        into: memoryview,
        loss: float | None,
        samples: int,
        *,
        scale: float | None,
        steps: StepCount,
        buffers: Selection | None,
        eta: float | None,
        decays: Sequence[float],
    ) -> CommitOutcome:
        """See Client.commit. If any server's session was lost, join and pull again everywhere."""
        commit_id = int.from_bytes(os.urandom(8), "little") or 1

        def send(one: Connection) -> CommitOutcome:
            session = one.session
            return one.committer.commit(
                self._part(one, delta, session.formats.delta.wire_type),
                self._part(one, into, session.formats.parameters.wire_type),
                loss,
                samples,
                scale=scale,
                steps=steps,
                commit_id=commit_id,
                buffers=buffers if session.shard.is_last else None,
                eta=eta,
                decays=decays,
            )

        for one in self._others:
            one.session.last_applied = self._primary.session.last_applied
        sequence = self._primary.session.last_applied + 1
        results = self._everywhere(send)
        lost = [one for one in results if isinstance(one, SessionLostError)]
        outcomes = self._settled([one for one in results if not isinstance(one, SessionLostError)])
        clocks = {one.version.clock for one in outcomes}
        verdicts = [one.verdict for one in outcomes if one.verdict is not None]
        if not lost and len(clocks) == 1 and len(verdicts) == len(outcomes):
            self._patience.succeeded()
            elements = [one.session.layout.parameter_count for one in self._all]
            pieces = [(one.wire_statistics, count) for one, count in zip(verdicts, elements, strict=True)]
            verdict = verdicts[0]._replace(pieces=pieces)
            last = outcomes[-1]  # it has the BUFFERs
            return outcomes[0]._replace(parameters=into, verdict=verdict, buffers=last.buffers, rest=last.rest)
        return self._settle_lost(sequence, str(lost[0]) if lost else "the session began anew", results[0], into)

    def _settle_lost(
        self, sequence: int, why: str, first: "CommitOutcome | Exception", into: memoryview
    ) -> CommitOutcome:
        session = self._primary.session
        verdict = first.verdict if isinstance(first, CommitOutcome) else None
        while True:
            self._rejoin(why)
            version = self.pull_all(into)
            session.heartbeat()
            if session.version is not None:
                break
            why = "the session was lost"
        applied = verdict is not None or session.last_applied >= sequence
        if not applied:
            text = f"one delta was dropped, fresh parameters were pulled: {why}"
            self._on_event(ClientEvent(EventKind.DELTA_DROPPED, text))
        return CommitOutcome(applied, verdict, version, session.run_state is RunState.FINISHED, into)

    def settle(self) -> bool:
        """Ask what was applied, after a commit was interrupted and a pull followed. False if a session was lost."""
        try:
            for one in self._all:
                one.session.heartbeat()
        except SessionLostError as lost:
            self._rejoin(str(lost))
            return False
        return self._primary.session.version is not None

    def close(self) -> None:
        """Release the other connections."""
        for one in self._others:
            one.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def give_up(self) -> None:
        """See Client.give_up."""
        for one in self._others:
            one.give_up()

    def _rejoin(self, why: str) -> None:
        self._patience.failed(why)
        session = self._primary.session
        session.heartbeat()  # joins again if it was lost
        session.lost()
        self.join_all()

    def _pull_from(self, one: Connection, into: memoryview, clock: int | None) -> Version:
        one.committer.drop_stream()  # the pull would end it
        payload = one.session.formats.parameters
        part = self._part(one, into, payload.wire_type)
        if clock is None:
            return one.puller.pull(part, payload)
        return one.puller.pull(part, payload, Version(one.session.membership.incarnation, clock))

    def _part(self, one: Connection, payload: memoryview, wire_type: WireType) -> memoryview:
        """Return a server's part of a whole payload. The server of the last range also has the BUFFERs."""
        shard = one.session.shard
        held = shard.range_of(self._count)
        start = encoded_bytes(wire_type, held.start)
        return payload[start:] if shard.is_last else payload[start : encoded_bytes(wire_type, held.stop)]

    @property
    def _count(self) -> int:
        return self._primary.session.whole_layout.parameter_count

    def _everywhere(self, call: Callable[[Connection], Result]) -> list[Result | Exception]:
        """Call all servers. An error of one ends the calls that would then wait without end."""
        lost: list[str] = []
        refused: list[Exception] = []
        primary_ended = threading.Event()

        def call_other(one: Connection) -> Result:
            try:
                return call(one)
            except _SETTLED as error:
                if not primary_ended.wait(REFUSAL_SECONDS):
                    refused.append(error)
                    self._primary.interrupt()
                raise
            except BaseException as error:
                lost.append(str(error))
                self._primary.interrupt()
                if isinstance(error, ServerUnavailableError):
                    raise SessionLostError(str(error)) from error
                raise

        def call_primary() -> Result:
            try:
                return call(self._primary)
            finally:
                primary_ended.set()

        membership = self._primary.session.membership
        futures = [self._threads.submit(call_other, one) for one in self._others]
        try:
            first: Result | Exception = call_primary()
            if self._primary.session.membership is not membership:
                lost.append("the session began anew")
                wait(futures, SETTLE_SECONDS)
                self._cancel(futures)
            wait(futures)
        except _SETTLED as error:
            first = error
            wait(futures, SETTLE_SECONDS)
            self._cancel(futures)
        except BaseException as error:
            self._cancel(futures)
            if not (isinstance(error, CallCancelledError) and (lost or refused)):
                raise
            first = refused[0] if refused else SessionLostError(lost[0])
        finally:
            self._primary.session.patience.resume()
        others = map(_result, futures)
        if not lost:
            return [first, *others]
        return [first, *(SessionLostError(lost[0]) if isinstance(one, CallCancelledError) else one for one in others)]

    def _on_others(self, call: Callable[[Connection], Result]) -> list[Result]:
        futures = [self._threads.submit(call, one) for one in self._others]
        try:
            wait(futures)
        except BaseException:
            self._cancel(futures)
            raise
        return self._settled([*map(_result, futures)])

    def _cancel(self, futures: "Sequence[Future[Result]]") -> None:
        for one in self._others:
            one.interrupt()
        wait(futures)
        for one in self._others:
            one.session.patience.resume()

    def _settled(self, results: "Sequence[Result | Exception]") -> list[Result]:
        for one in results:
            if isinstance(one, Exception):
                raise one
        return [one for one in results if not isinstance(one, Exception)]


def _result(future: "Future[Result]") -> Result | Exception:
    try:
        return future.result()
    except Exception as error:
        return error


def address_of(shard: str, primary: str) -> str:
    """Complete an address of JoinResponse.shards: `:PORT` is at the primary's host."""
    return f"{primary.rpartition(':')[0]}{shard}" if shard.startswith(":") else shard
