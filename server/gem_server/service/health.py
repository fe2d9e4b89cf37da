"""Replaces grpc_health (1.85.1), where unread watches block shutdown."""

import asyncio
from collections import Counter

import grpc
from grpc.aio import ServicerContext
from grpc_health.v1 import health_pb2

from gem_server.errors import Reason, RefusedError
from gem_server.service import messages

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
# Watch needs no token, so newer callers replace older ones.
MAX_WATCHERS = 64
UNREAD_SECONDS = 20.0
RETRY_SECONDS = 5.0

_States = health_pb2.HealthCheckResponse


class Health:
    """Serves both calls for `services`."""

    def __init__(self, *services: str) -> None:
        self._services = services
        self._state = _States.NOT_SERVING
        self._changed = asyncio.Event()
        self._watches: dict[asyncio.Timeout, str] = {}  # addresses, oldest first

    @property
    def watchers(self) -> int:
        """Open Watch calls."""
        return len(self._watches)

    def set_status(self, *, serving: bool) -> None:
        """Set the reported status."""
        self._state = _States.SERVING if serving else _States.NOT_SERVING
        self._changed.set()
        self._changed = asyncio.Event()

    async def check(self, raw: bytes, context: ServicerContext[bytes, bytes]) -> bytes:
        """A service's status."""
        if messages.parse(health_pb2.HealthCheckRequest, raw).service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return self._message(self._state)

    async def watch(self, raw: bytes, context: ServicerContext[bytes, bytes]) -> None:
        """Stream a status until others need the place. Raises TOO_MANY, STALLED."""
        is_known = messages.parse(health_pb2.HealthCheckRequest, raw).service in self._services
        try:
            async with asyncio.timeout(None) as place:
                self._watches[place] = context.peer().rpartition(":")[0]
                self._make_room()
                try:
                    while True:
                        changed = self._changed
                        state = self._state if is_known else _States.SERVICE_UNKNOWN
                        await _write_health(context, self._message(state))
                        await changed.wait()
                finally:
                    self._watches.pop(place, None)
        except TimeoutError:
            raise RefusedError(
                Reason.TOO_MANY,
                f"more than {MAX_WATCHERS} callers watch, and this watch was the oldest: use Check, or watch again",
                retry_after=RETRY_SECONDS,
            ) from None

    def _make_room(self) -> None:
        """End the oldest of the address with the most."""
        if len(self._watches) <= MAX_WATCHERS:
            return
        counts = Counter(self._watches.values())
        most = max(counts.values())
        place = next(place for place, address in self._watches.items() if counts[address] == most)
        del self._watches[place]
        place.reschedule(asyncio.get_running_loop().time())

    @staticmethod
    def _message(state: health_pb2.HealthCheckResponse.ServingStatus) -> bytes:
        return bytes(_States(status=state).SerializeToString())


async def _write_health(context: ServicerContext[bytes, bytes], message: bytes) -> None:
    try:
        async with asyncio.timeout(UNREAD_SECONDS):
            await context.write(message)
    except TimeoutError:
        raise RefusedError(
            Reason.STALLED, f"no health was read for {UNREAD_SECONDS:g} s: use Check", retry_after=RETRY_SECONDS
        ) from None
