"""Replaces grpc_health (1.85.1), where unread watches block shutdown."""

import asyncio

import grpc
from grpc.aio import ServicerContext
from grpc_health.v1 import health_pb2

from gem_server.errors import Reason, Refusal
from gem_server.service import messages
from gem_server.service.status_codes import abort

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
MAX_WATCHERS = 64
RETRY_SECONDS = 5.0

_States = health_pb2.HealthCheckResponse


class Health:
    """Serves Check and Watch for `services`."""

    def __init__(self, *services: str) -> None:
        self._services = services
        self._state = _States.NOT_SERVING
        self._changed = asyncio.Event()
        self._watchers = 0

    def tell(self, *, serving: bool) -> None:
        """Set the reported status."""
        self._state = _States.SERVING if serving else _States.NOT_SERVING
        self._changed.set()
        self._changed = asyncio.Event()

    async def check(self, raw: bytes, context: ServicerContext[bytes, bytes]) -> bytes:
        """Return a service's status."""
        if messages.parse(health_pb2.HealthCheckRequest, raw).service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return self._message(self._state)

    async def watch(self, raw: bytes, context: ServicerContext[bytes, bytes]) -> None:
        """Stream a service's status on every change."""
        is_known = messages.parse(health_pb2.HealthCheckRequest, raw).service in self._services
        if self._watchers >= MAX_WATCHERS:
            told = f"{MAX_WATCHERS} callers watch already: use Check now and then, or watch later"
            await abort(context, Refusal(Reason.TOO_MANY, told, retry_after=RETRY_SECONDS))
        self._watchers += 1
        try:
            while True:
                changed = self._changed
                await context.write(self._message(self._state if is_known else _States.SERVICE_UNKNOWN))
                await changed.wait()
        finally:
            self._watchers -= 1

    @staticmethod
    def _message(state: health_pb2.HealthCheckResponse.ServingStatus) -> bytes:
        return bytes(_States(status=state).SerializeToString())
