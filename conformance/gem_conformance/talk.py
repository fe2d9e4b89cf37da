"""Events, with timing checks."""

from __future__ import annotations

import queue
import time
from typing import TypeVar

import grpc
from gemps.limits import MESSAGE_BYTES
from google.protobuf.message import DecodeError, Message

from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.wire import Call, Event, Kind, Refusal, Wire

__all__ = ["NOT_SPOKEN", "NotSpokenError", "Talk", "answer", "call_of", "is_call", "parse", "refusal"]

# Exit status: task not supported.
NOT_SPOKEN = 3
# JavaScript's timers fire a millisecond early.
_EARLY = 0.05
# Fraction of the start time.
_OF_STARTING = 0.05
# From errors.proto.
_CODES = {
    "STALE_BASE": grpc.StatusCode.FAILED_PRECONDITION,
    "SEQUENCE_GAP": grpc.StatusCode.FAILED_PRECONDITION,
    "UNKNOWN_SESSION": grpc.StatusCode.FAILED_PRECONDITION,
    "EXPIRED_SESSION": grpc.StatusCode.FAILED_PRECONDITION,
    "NOT_INITIALIZED": grpc.StatusCode.FAILED_PRECONDITION,
    "RUN_FINISHED": grpc.StatusCode.FAILED_PRECONDITION,
    "WAITING_ROOM": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "TOO_MANY": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "STALLED": grpc.StatusCode.ABORTED,
    "DRAINING": grpc.StatusCode.UNAVAILABLE,
    "SIZE_MISMATCH": grpc.StatusCode.INVALID_ARGUMENT,
    "NOT_OFFERED": grpc.StatusCode.UNIMPLEMENTED,
}

_Message = TypeVar("_Message", bound=Message)


class NotSpokenError(Exception):
    """This scenario is not supported."""


class Talk:
    """Events of a wire. Scenario thread only.

    `exit_status`: None: running, or no process. `reaction`: estimated latency in seconds.
    """

    def __init__(self, wire: Wire, *, may_not_speak: bool) -> None:
        self.wire = wire
        self.exit_status: int | None = None
        self.reaction = 0.0
        self._may_not_speak = may_not_speak
        self._started_at: float | None = time.monotonic()
        self._joined_at: float | None = None
        self._not_before: dict[str, float] = {}
        self._commit_streams: set[Call] = set()

    def next(self, seconds: float) -> Event | None:
        """Next event, None on timeout. Raises FaultError, NotSpokenError."""
        until = time.monotonic() + seconds
        while True:
            try:
                event = self.wire.events.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return None
            if event.kind is Kind.EXITED:
                self.exit_status = event.status
                if event.status == NOT_SPOKEN and self._may_not_speak:
                    raise NotSpokenError
                return event
            self._track_streams(event)
            if event.call is not None and event.call.is_over:
                continue
            if event.kind is Kind.MESSAGE:
                self._check_event(event)
            return event

    def joined(self) -> None:
        """Measure the reaction."""
        self._joined_at = time.monotonic()

    def refuse(self, call: Call, refusal: Refusal) -> None:
        """End a call; enforce its RetryInfo."""
        call.end(refusal)
        if refusal.retry_after is not None:
            self._not_before[call.method] = time.monotonic() + refusal.retry_after

    def forget_delays(self) -> None:
        """Clear retry delays after a restart."""
        self._not_before.clear()

    @property
    def asked_to_wait(self) -> float:
        """Longest remaining delay in seconds."""
        return max([0.0, *(one - time.monotonic() for one in self._not_before.values())])

    @property
    def has_open_commit_stream(self) -> bool:
        """Whether a commit stream is open."""
        return any(not one.is_over for one in self._commit_streams)

    def _track_streams(self, event: Event) -> None:
        call = event.call
        if call is None or call.method != "Commit":
            return
        if event.kind is Kind.MESSAGE:
            self._commit_streams.add(call)
        else:
            self._commit_streams.discard(call)

    def _check_event(self, event: Event) -> None:
        if self._started_at is not None:
            self.reaction = _OF_STARTING * (event.at - self._started_at)
            self._started_at = None
        if self._joined_at is not None:
            self.reaction = max(self.reaction, event.at - self._joined_at)
            self._joined_at = None
        if len(event.message) > MESSAGE_BYTES:
            raise FaultError(
                FaultName.TOO_LARGE,
                f"messages of at most {MESSAGE_BYTES} bytes",
                f"one of {len(event.message)} bytes",
                Place.CONNECTIONS,
            )
        method = call_of(event).method
        allowed_at = self._not_before.pop(method, None)
        if allowed_at is not None and event.at < allowed_at - _EARLY:
            raise FaultError(
                FaultName.IGNORED_RETRY_INFO,
                f"{method} no sooner than RetryInfo's delay allows",
                f"{method} {allowed_at - event.at:.2f} s too early",
                Place.REFUSALS,
            )


def refusal(reason: str, retry_after: float | None = None) -> Refusal:
    """Refusal for `reason`."""
    return Refusal(_CODES[reason], reason, retry_after, f"{reason}: the conformance kit plays this refusal")


def is_call(event: Event, method: str) -> bool:
    """Whether it is a message of `method`."""
    return event.kind is Kind.MESSAGE and event.call is not None and event.call.method == method


def call_of(event: Event) -> Call:
    """Event's call, which must exist."""
    if event.call is None:
        raise AssertionError("an event without a call")
    return event.call


def answer(call: Call, message: Message) -> None:
    """Answer a unary call."""
    call.send(message.SerializeToString())
    call.end()


def parse(event: Event, kind: type[_Message]) -> _Message:
    """Parse. Raises FaultError."""
    try:
        return kind.FromString(event.message)
    except DecodeError:
        raise FaultError(
            FaultName.MALFORMED,
            f"a {kind.DESCRIPTOR.name}",
            f"{len(event.message)} bytes that are none",
            Place.CONNECTIONS,
        ) from None
