"""Events in the order in which they came, with what is judged by time: RetryInfo, and sizes of messages."""

from __future__ import annotations

import queue
import time
from typing import TypeVar

from gemps.limits import MESSAGE_BYTES
from google.protobuf.message import DecodeError, Message

from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.wire import Call, Event, Kind, Refusal, Wire

__all__ = ["FINAL", "NOT_SPOKEN", "NotSpokenError", "Talk", "answer", "call_of", "is_call", "parse"]

# Exit statuses of a candidate: after a final refusal; where it does not do what a scenario asks for.
FINAL, NOT_SPOKEN = 2, 3
# Seconds by which a call may come too early: timers of JavaScript fire a millisecond early.
_EARLY = 0.05
# Seconds after which nothing of a killed process comes any more.
_ON_ITS_WAY = 0.2

_Message = TypeVar("_Message", bound=Message)


class NotSpokenError(Exception):
    """The candidate does not do an optional part."""


class Talk:
    """The events of a wire. Only for the scenario's thread.

    `exit_status`: None while the process runs, or where there is none.
    """

    def __init__(self, wire: Wire, *, may_not_speak: bool) -> None:
        self.wire = wire
        self.exit_status: int | None = None
        self._may_not_speak = may_not_speak
        self._not_before: dict[str, float] = {}

    def next(self, seconds: float) -> Event | None:
        """Return the next event; None after so many seconds. Raises FaultError, NotSpokenError."""
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
            if event.kind is Kind.ILLEGAL:
                expected = "the frames of lane.proto"
                raise FaultError(FaultName.WRONG_FRAME, expected, event.message.decode(), Place.LANE)
            if event.call is not None and event.call.is_over:
                continue
            if event.kind is Kind.MESSAGE:
                self._judge(event)
            return event

    def refuse(self, call: Call, refusal: Refusal) -> None:
        """End a call, and watch that the candidate waits as RetryInfo asks."""
        call.end(refusal)
        if refusal.retry_after is not None:
            self._not_before[call.method] = time.monotonic() + refusal.retry_after

    def forget_delays(self) -> None:
        """Let calls come at any time: the server is another one."""
        self._not_before.clear()

    def forget_calls(self) -> None:
        """Drop what a process that was killed has sent, and is on its way still."""
        self.forget_delays()
        while True:
            try:
                event = self.wire.events.get(timeout=_ON_ITS_WAY)
            except queue.Empty:
                return
            if event.call is not None:
                event.call.is_over = True

    @property
    def asked_to_wait(self) -> float:
        """The longest delay that is left, in seconds."""
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
    """Whether it is a message of `method`."""
    return event.kind is Kind.MESSAGE and event.call is not None and event.call.method == method


def call_of(event: Event) -> Call:
    """Return the event's call, which must exist."""
    if event.call is None:
        raise AssertionError("an event without a call")
    return event.call


def answer(call: Call, message: Message) -> None:
    """Answer a unary call."""
    call.send(message.SerializeToString())
    call.end()


def parse(event: Event, kind: type[_Message]) -> _Message:
    """Parse a message. Raises FaultError."""
    try:
        return kind.FromString(event.message)
    except DecodeError:
        expected, came = f"a {kind.DESCRIPTOR.name}", f"{len(event.message)} bytes that are none"
        raise FaultError(FaultName.MALFORMED, expected, came, Place.RULE) from None
