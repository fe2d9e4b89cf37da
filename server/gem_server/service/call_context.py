"""Readiness, session and error mapping of calls."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message
from grpc.aio import ServicerContext

from gem_server.errors import Fault, Reason, RefusedError
from gem_server.flow.calls import Call, TornUploadError
from gem_server.peer_log import PeerLog
from gem_server.security.access import Access
from gem_server.service.auth_interceptor import authorization
from gem_server.service.first_message import FirstMessages
from gem_server.service.lane_connection import LaneConnection
from gem_server.service.status_codes import abort, as_refusal
from gem_server.state.sessions import Session, Sessions
from gem_server.telemetry.refusals import Refusals

Outcome = TypeVar("Outcome")
Context: TypeAlias = ServicerContext[bytes, bytes]

# What reads and writes of a call raise once its caller has disconnected, or the server has ended it.
DISCONNECTED = (asyncio.CancelledError, grpc.aio.AbortError, grpc.aio.UsageError, grpc.aio.InternalError)

# These reveal applied commits: send once durable.
_TELLING = (Reason.SEQUENCE_GAP, Reason.SEQUENCE_REUSED, Reason.STALE_BASE, Reason.RUN_FINISHED)


class ReadinessGate:
    """Refuses calls before readiness and during drain."""

    def __init__(self, missing_shards: Callable[[], list[int]] = list) -> None:
        self.ready = False
        self.draining = False
        self._missing_shards = missing_shards

    def check_shards(self) -> None:
        """Raise STARTING until all shards are connected."""
        if missing := self._missing_shards():
            names = ", ".join(map(str, missing))
            raise RefusedError(
                Reason.STARTING, f"the primary waits for shards to connect: {names}; start them", retry_after=1.0
            )

    def check_ready(self) -> None:
        """Raise STARTING before readiness."""
        if not self.ready:
            self.check_shards()
            raise RefusedError(
                Reason.STARTING,
                "the server is starting (compiling kernels, reading a checkpoint): try again",
                retry_after=1.0,
            )

    def check_not_draining(self) -> None:
        """Raise DRAINING during shutdown."""
        if self.draining:
            raise RefusedError(
                Reason.DRAINING, "the server is shutting down: try again when it is back", retry_after=1.0
            )


class CallSession:
    """The session of a running call, which cannot expire meanwhile."""

    def __init__(self, sessions: Sessions, clock: Callable[[], float], first_messages: FirstMessages) -> None:
        self._sessions = sessions
        self._clock = clock
        self._first_messages = first_messages
        self.session: Session | None = None
        self._owes_an_answer = False

    def attend(self, session_id: bytes) -> Session:
        """Bind the call to a session. Raises MALFORMED, UNKNOWN_SESSION, or the session's end reason."""
        if len(session_id) != 16:
            raise RefusedError(
                Reason.MALFORMED,
                f"session_id has {len(session_id)} bytes: it is the 16 random bytes that were sent in Join",
            )
        session = self._sessions.get(session_id, self._clock())
        self._owes_an_answer = True
        if self.session is None:
            self.session = session
            session.open_calls += 1
        elif self.session is not session:
            raise RefusedError(
                Reason.MALFORMED, "the session_id changed within a stream: open a stream for each session"
            )
        return session

    async def idle(self, waiting: Awaitable[Outcome]) -> Outcome:
        """Await the next message, as idle time."""
        session = self.session
        if session is None:
            return await self._first_messages.wait(waiting)
        self.answered()
        session.idle_calls += 1
        try:
            return await waiting
        finally:
            session.idle_calls -= 1

    def answered(self) -> None:
        """Mark the request as answered; abandoned calls end without it."""
        if self.session is not None and self._owes_an_answer:
            self._owes_an_answer = False
            self.session.worker.last_call = self._clock()

    def close(self, refused: bool) -> None:
        """Release the session."""
        if self.session is not None:
            self.session.open_calls -= 1
            self.session.last_call = self._clock()
            if refused:
                self.session.worker.telemetry.refused += 1


class CallContexts:
    """Creates call contexts."""

    def __init__(
        self,
        gate: ReadinessGate,
        sessions: Sessions,
        clock: Callable[[], float],
        peer_log: PeerLog,
        refusals: Refusals,
        wait_durable: Callable[[], Awaitable[None]] | None = None,
        access: Access | None = None,
    ) -> None:
        self.gate = gate
        self.peer_log = peer_log
        self._refusals = refusals
        self.first_messages = FirstMessages()
        self._sessions = sessions
        self._clock = clock
        self._wait_durable = wait_durable
        self._access = access
        self._running: set[Call] = set()

    def check_access(self, context: Context | LaneConnection, call: str) -> None:
        """Raise CREDENTIALS or ROLE without a sufficient token."""
        if self._access is not None:
            self._access.check(call, authorization(context.invocation_metadata()))

    def token_digest(self, context: Context) -> bytes:
        """A digest of the caller's token; empty if the server asks for none, since it could then be anything."""
        if self._access is None:
            return b""
        return sha256((authorization(context.invocation_metadata()) or "").encode("utf-8", "surrogateescape")).digest()

    def end_idle(self, refusal: RefusedError) -> None:
        """End calls that are not streaming replies."""
        for call in self._running:
            if not call.streaming:
                call.end(refusal.again())

    async def wait_durable(self) -> None:
        """Wait until the state is durable. Raises DRAINING."""
        if self._wait_durable is not None:
            await self._wait_durable()

    @asynccontextmanager
    async def call(self, context: Context | LaneConnection) -> AsyncIterator[tuple[Call, CallSession]]:
        """Run a call; after its resources are released, an error becomes its status."""
        call_session = CallSession(self._sessions, self._clock, self.first_messages)
        call = Call()
        self._running.add(call)
        refusal: RefusedError | None = None
        try:
            self.gate.check_ready()
            async with call.ending():
                yield call, call_session
            call_session.answered()
        except DISCONNECTED:
            raise
        except TornUploadError as torn:
            refusal = torn  # in most cases nobody is left to receive it
        except Exception as error:
            refusal = as_refusal(error)
            self._refusals.count(refusal.reason.name, refusal.message)
            if refusal.reason is Reason.INTERNAL:
                self.peer_log.log("failed", "this server", "a call failed", level=logging.ERROR, error=error)
            elif refusal.reason.fault is Fault.CALLER and call_session.session is not None:
                name = call_session.session.worker.name
                self.peer_log.refuse(name, f"worker {name} was refused: {refusal.message}")
        finally:
            self._running.discard(call)
            call_session.close(refused=refusal is not None and not isinstance(refusal, TornUploadError))
        if refusal is not None:
            if refusal.reason in _TELLING:
                try:
                    await self.wait_durable()
                except RefusedError as stopping:
                    refusal = stopping
            await abort(context, refusal)

    @asynccontextmanager
    async def stream(self, context: Context) -> AsyncIterator[tuple[Call, CallSession]]:
        """Run a streaming call.

        Initial metadata goes first: if `Call.end` interrupts the write that carries it, grpc.aio (1.85.1) resends it
        and the caller hangs.
        """
        await context.send_initial_metadata(())
        async with self.call(context) as (call, call_session):
            yield call, call_session

    async def unary(self, context: Context, answer: Callable[[CallSession], Awaitable[Message]]) -> bytes:
        """Run a call with one reply."""
        async with self.call(context) as (_, call_session):
            message = await answer(call_session)
            await self.wait_durable()
        return message.SerializeToString()
