"""Decodes Join's layouts; equal ones share an object."""

import asyncio
from collections import deque
from concurrent.futures import Executor
from hashlib import sha256
from weakref import WeakKeyDictionary

from gemps.framing import count_fields
from gemps.v1 import layout_pb2

from gem_core import MAX_CHUNK_BYTES, Layout, LayoutError
from gem_core.layout import MAX_TENSORS
from gem_core.shards import Shard
from gem_core.thresholds import LAYOUT_ON_LOOP_BYTES
from gem_server.errors import Reason, RefusedError
from gem_server.service import messages

_TENSORS_PATH = (layout_pb2.Layout.TENSORS_FIELD_NUMBER,)
# Queue limit; layouts have up to 2 MiB.
MAX_WAITING = 16
RETRY_SECONDS = 1.0
# Remembered serialisations of equal layouts; roles may differ.
MAX_SOURCES = 4


class Layouts:
    """`thread` decodes large ones, and cuts them to this shard's. Event-loop thread only."""

    def __init__(self, thread: Executor, shard: Shard) -> None:
        self._thread = thread
        self._shard = shard
        self._sources: WeakKeyDictionary[Layout, deque[bytes]] = WeakKeyDictionary()
        self._waiting: dict[bytes, asyncio.Future[Layout]] = {}

    def know(self, layout: Layout, source: bytes = b"") -> Layout:
        """The known equal layout, or else this one. `source`: its serialisation's SHA-256."""
        known = next((one for one in self._sources if one == layout), layout)
        sources = self._sources.setdefault(known, deque(maxlen=MAX_SOURCES))
        if source not in sources:
            sources.append(source)
        return known

    async def decode(self, raw: memoryview) -> Layout:
        """This shard's layout of a model. Raises LayoutError, FramingError, MALFORMED, TOO_MANY."""
        messages.check_size(layout_pb2.Layout, len(raw), MAX_CHUNK_BYTES)
        source = sha256(raw).digest()
        for layout, known in self._sources.items():
            if source in known:
                return layout
        if len(raw) <= LAYOUT_ON_LOOP_BYTES:
            return self.know(self._decode(raw), source)
        job = self._waiting.get(source)
        if job is None:
            if len(self._waiting) >= MAX_WAITING:
                raise RefusedError(
                    Reason.TOO_MANY,
                    f"{MAX_WAITING} other layouts are being decoded: join again later",
                    retry_after=RETRY_SECONDS,
                )
            job = asyncio.get_running_loop().run_in_executor(self._thread, self._decode, raw)
            self._waiting[source] = job
            job.add_done_callback(lambda _: self._waiting.pop(source))
        try:
            return self.know(await asyncio.shield(job), source)
        finally:
            del job, raw  # a refusal's traceback would keep the bytes alive

    def _decode(self, raw: memoryview) -> Layout:
        return self._shard.layout_of(_decode(raw))


def _decode(raw: memoryview) -> Layout:
    if count_fields(raw, _TENSORS_PATH, MAX_TENSORS) > MAX_TENSORS:
        raise LayoutError(f"the layout has more than {MAX_TENSORS} tensors: split or merge some")
    message = messages.parse(layout_pb2.Layout, bytes(raw), MAX_CHUNK_BYTES)
    if not message.tensors:
        raise LayoutError("the layout has no tensors: send the model's, in JoinRequest.layout")
    return messages.layout_from(message)
