"""The exchange with a candidate: its events in order, checked for what needs no state: message sizes and RetryInfo."""

from __future__ import annotations

import queue
import time
from typing import TypeVar

from gemps.limits import MESSAGE_BYTES
from google.protobuf.message import DecodeError, Message

from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.grpc_server import Call, Event, EventKind, GrpcServer, Refusal

__all__ = ["FINAL", "NOT_SUPPORTED", "Conversation", "NotSupportedError", "answer", "call_of", "is_call", "parse"]

# Exit statuses of a candidate: after a final refusal, and if it does not support what a scenario asks for.
FINAL, NOT_SUPPORTED = 2, 3
# Seconds by which a call may come too early without a fault: timers of JavaScript may fire a millisecond early.
_EARLY = 0.05
# Seconds of silence after which no more events of a killed process can be on their way.
_DRAIN_SECONDS = 0.2

_Message = TypeVar("_Message", bound=Message)


class NotSupportedError(Exception):
    """The candidate does not support the optional part that the scenario is about."""


class Conversation:
    """What one server of a scenario receives from the candidate, and how it ends calls. Not thread-safe.

    Args:
        server: the server whose queue of events is read.
        may_be_unsupported: whether the candidate may end with status 3, because the scenario is optional.

    Attributes:
        exit_status: the status of the process that ended; None while it runs, or if it was started by hand.
    """

    def __init__(self, server: GrpcServer, *, may_be_unsupported: bool) -> None:
        self.server = server
        self.exit_status: int | None = None
        self._may_be_unsupported = may_be_unsupported
        self._not_before: dict[str, float] = {}

    def next(self, seconds: float) -> Event | None:
        """Return the next event that matters, or None if none comes within `seconds`.

        Events of calls that the kit has ended are skipped.

        Raises:
            FaultError: a message is too large or comes before RetryInfo allows it, or a frame of the lane is illegal.
            NotSupportedError: the process ended with status 3, which the scenario allows.
        """
        until = time.monotonic() + seconds
        while True:
            try:
                event = self.server.events.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return None
            if event.kind is EventKind.EXITED:
                self.exit_status = event.status
                if event.status == NOT_SUPPORTED and self._may_be_unsupported:
                    raise NotSupportedError
                return event
            if event.kind is EventKind.ILLEGAL:
                expected = "the frames of lane.proto"
                raise FaultError(FaultName.WRONG_FRAME, expected, event.message.decode(), Place.LANE)
            if event.call is not None and event.call.is_over:
                continue
            if event.kind is EventKind.MESSAGE:
                self._judge(event)
            return event

    def refuse(self, call: Call, refusal: Refusal) -> None:
        """End a call with a refusal. If it has RetryInfo, `next` checks that the method is not called too early."""
        call.end(refusal)
        if refusal.retry_after is not None:
            self._not_before[call.method] = time.monotonic() + refusal.retry_after

    def forget_delays(self) -> None:
        """Allow calls at any time again, because a new server knows nothing of the delays of the old one."""
        self._not_before.clear()

    def forget_calls(self) -> None:
        """Drop all events of a process that was killed, and wait shortly for those that are still on their way."""
        self.forget_delays()
        while True:
            try:
                event = self.server.events.get(timeout=_DRAIN_SECONDS)
            except queue.Empty:
                return
            if event.call is not None:
                event.call.is_over = True

    @property
    def remaining_delay(self) -> float:
        """The longest time in seconds that the candidate still has to wait because of RetryInfo; 0 if none."""
        return max([0.0, *(one - time.monotonic() for one in self._not_before.values())])

    def _judge(self, event: Event) -> None:
        if len(event.message) > MESSAGE_BYTES:
            expected = f"messages of at most {MESSAGE_BYTES} bytes"
            raise FaultError(FaultName.TOO_LARGE, expected, f"one of {len(event.message)} bytes", Place.RULE)
        method = call_of(event).method
        allowed_at = self._not_before.pop(method, None)
        if allowed_at is not None and event.at < allowed_at - _EARLY:
            raise FaultError(
                FaultName.IGNORED_RETRY_INFO,
                f"{method} no sooner than RetryInfo's delay allows",
                f"{method} {allowed_at - event.at:.2f} s too early",
                Place.ERRORS,
            )


def is_call(event: Event, method: str) -> bool:
    """Return whether the event is a message of a call of `method`."""
    return event.kind is EventKind.MESSAGE and event.call is not None and event.call.method == method


def call_of(event: Event) -> Call:
    """Return the call of an event that has one; the end of the process has none."""
    if event.call is None:
        raise AssertionError("an event without a call")
    return event.call


def answer(call: Call, message: Message) -> None:
    """Answer a unary call: send its one message and end it with OK."""
    call.send(message.SerializeToString())
    call.end()


def parse(event: Event, kind: type[_Message]) -> _Message:
    """Return the event's message, parsed as `kind`. Raises FaultError if its bytes are none of that kind."""
    try:
        return kind.FromString(event.message)
    except DecodeError:
        expected, came = f"a {kind.DESCRIPTOR.name}", f"{len(event.message)} bytes that cannot be parsed"
        raise FaultError(FaultName.MALFORMED, expected, came, Place.RULE) from None
