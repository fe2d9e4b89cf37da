"""A server to test against, and what can be seen of it from outside."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from gem_server.server import MakeQueue, Server
from gemps.v1 import parameters_pb2, status_pb2

from tests.server_settings import server_settings
from tests.wire.calls import Stream, Stub, Trust, open_channel
from tests.wire.model import FLOAT32, SMALL, Model, Values
from tests.wire.refusals import PATIENCE, Refusal, refused
from tests.wire.transfer import Commit, Transfer
from tests.wire.worker import RawWorker, all_of, collect


class Endpoint:
    """A server at an address, in whatever process: workers for it, its status, its central variable."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = open_channel(address)
        self.stub = Stub(self.channel)
        self.workers: list[RawWorker] = []

    async def close(self) -> None:
        for worker in self.workers:
            await worker.close()
        await self.channel.close()

    # -- workers ---------------------------------------------------------------------------------------------------

    def worker(self, model: Model = SMALL, name: str | None = None, **join_fields: Any) -> RawWorker:
        """A worker that has made no call yet."""
        return self.adopt(RawWorker(self.address, model, name or f"worker-{len(self.workers)}", **join_fields))

    def adopt(self, worker: RawWorker) -> RawWorker:
        """Takes care that the worker's connection is closed in the end."""
        self.workers.append(worker)
        return worker

    async def joined(self, model: Model = SMALL, name: str | None = None, **join_fields: Any) -> RawWorker:
        worker = self.worker(model, name, **join_fields)
        await worker.join()
        return worker

    async def training(self, count: int = 1, model: Model = SMALL, **join_fields: Any) -> list[RawWorker]:
        """Workers that hold the first parameters: all joined, the first one initialized (if none had), all pulled."""
        workers = [await self.joined(model, **join_fields) for _ in range(count)]
        if not workers[0].membership.has_parameters:
            await workers[0].initialize()
        await all_of(*(worker.pull() for worker in workers))
        return workers

    # -- what can be seen ------------------------------------------------------------------------------------------

    async def status(self) -> status_pb2.RunStatus:
        return (await self.stub.GetStatus(status_pb2.GetStatusRequest(), timeout=PATIENCE)).status

    async def until(self, condition: Callable[[status_pb2.RunStatus], bool]) -> status_pb2.RunStatus:
        """The first status that fulfils the condition."""
        async with asyncio.timeout(PATIENCE):
            while not condition(status := await self.status()):
                pass
        return status

    async def until_queued(self, count: int) -> None:
        """Until so many complete requests wait to be served."""
        await self.until(lambda status: status.queue.length == count)

    async def until_waiting(self, count: int) -> None:
        """Until so many calls wait for a staging buffer."""
        await self.until(lambda status: status.queue.waiting == count)

    async def until_staged(self, count: int) -> None:
        """Until so many staging buffers are in use."""
        await self.until(lambda status: status.queue.staging_buffers_in_use == count)

    async def until_idle(self) -> None:
        """Until no staging buffer is in use, nobody waits for one, and the queue is empty."""
        await self.until(lambda s: s.queue.staging_buffers_in_use == s.queue.waiting == s.queue.length == 0)

    async def read(self, model: Model, **fields: Any) -> Transfer:
        """The current parameters, pulled without a session."""
        transfer = Transfer(model, fields.get("wire_type", FLOAT32))
        stream = Stream(self.stub.Pull(parameters_pb2.PullRequest(**fields)))
        while (message := await stream.receive()) is not None:
            if message.HasField("not_modified"):
                transfer.not_modified = message.not_modified
            collect(message, "header", transfer, None)
        return transfer

    async def central(self, model: Model) -> tuple[int, int, bytes]:
        """Incarnation, clock, and the bytes of every tensor: what a refusal must leave as it was."""
        version = (await self.status()).version
        if version.clock == 0:
            return version.incarnation, 0, b""
        transfer = await self.read(model)
        return transfer.version.incarnation, transfer.clock, bytes(transfer.payload)

    async def values(self, model: Model = SMALL) -> Values:
        return (await self.read(model)).values

    # -- what must hold after a refusal ----------------------------------------------------------------------------

    @asynccontextmanager
    async def unchanged(self, worker: RawWorker) -> AsyncIterator[None]:
        """Around a refusal: nothing is applied, no buffer is lost, and the session's next commit works.

        "In the same stream's successor": the refused call is over, and the same session opens a new one.
        """
        before = await self.central(worker.model)
        yield
        await self.until_idle()
        assert await self.central(worker.model) == before
        applied = (await worker.heartbeat()).last_applied_sequence
        assert applied == worker.sequence
        await self.next_commit_works(worker)

    async def next_commit_works(self, worker: RawWorker) -> None:
        clock = (await self.status()).version.clock
        commit = worker.prepare(worker.delta(worker.sequence + 1000))
        outcome = await worker.commit_on_new_stream(commit)
        assert outcome.verdict.sequence == commit.header.sequence
        assert not outcome.verdict.duplicate
        assert outcome.verdict.version.clock == clock + 1
        assert outcome.reply.version == outcome.verdict.version
        await self.until_idle()

    async def refuses(self, worker: RawWorker, commit: Commit, *reasons: str) -> Refusal:
        """Sends one wrong commit on a stream of its own; everything that must hold after its refusal holds."""
        async with self.unchanged(worker):
            return await refused(worker.commit_on_new_stream(commit), *reasons)


class Serving(Endpoint):
    """A Server in this process, on the test's event loop."""

    def __init__(self, server: Server, port: int) -> None:
        super().__init__(f"127.0.0.1:{port}")
        self.server = server

    @classmethod
    async def start(cls, make_queue: MakeQueue | None = None, **settings: Any) -> "Serving":
        server = Server(server_settings(**({"bind": "127.0.0.1:0"} | dict(Trust.of_servers) | settings)), make_queue)
        return cls(server, await server.start())

    async def stop(self) -> None:
        """Stops as SIGTERM does: drain, checkpoint, end."""
        await self.server.stop()

    def snapshot(self, worker: RawWorker) -> Values:
        """s_w as the server keeps it: full precision, whatever travelled."""
        held = next(s.held for s in self.server.sessions.live() if s.session_id == worker.session_id)
        return Values(held.snapshot.parameters.copy(), held.snapshot.buffers.joined())
