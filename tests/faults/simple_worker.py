"""A worker that has one rule for all failures (worker.proto), and breaks its own calls by chance.

The rule: new stream, Join, Pull, last applied sequence + 1, a new delta. With several shards, Join and Pull of each.

The oracle is within the worker. Each worker moves elements of its own, and adds 0 to all others, so that what it holds
must have exactly its applied deltas in these elements, whatever others commit meanwhile. Whether a delta whose
verdict was not read was applied is what the next Join says; from then on that must stay true.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from tests.wire.model import Model, ShardModel, Values
from tests.wire.refusals import read_refusal
from tests.wire.transfer import Commit, Transfer
from tests.wire.worker import CommitStream, RawWorker

# Of a server that is started again, on a machine under load.
PATIENCE = 600.0
# Seconds that a worker lets pass before it breaks a call: the server is in another place each time.
PAUSES = (0.0, 0.0, 0.001, 0.005, 0.02)
CHUNK_BYTES = (7_001, 16_384, 1 << 20)
FATES = (
    *("complete",) * 4,
    "cancelled",
    "half-closed",
    "late",
    "deadline",
    "torn reply",
    "disconnected",
    "cancelled Join",
    "cancelled Pull",
    "torn Pull",
)
LEFT_OPEN = ("late", "cancelled Join", "cancelled Pull", "torn Pull", "killed behind Join", "killed behind Pull")
# When a server is killed: at the moment that another fate has for its break, or within the recovery.
KILLED = ("killed", "killed behind Join", "killed behind Pull")
# What a worker with the rule may meet; all of them end a call, and none of them is about the sequence.
REASONS = {
    "NEWER_CALL",  # its own Join or Pull came
    "OUT_OF_ORDER",  # it half-closed within a commit
    "STALLED",  # another shard lost its piece
    "STARTING",
    "DRAINING",
    "UNKNOWN_SESSION",  # the server was started again between two calls
    "UNKNOWN_INCARNATION",
    "STALE_BASE",
}


class EndedError(Exception):
    """The server ended a stream with OK within a commit."""


BROKEN = (grpc.aio.AioRpcError, EndedError, TimeoutError, OSError, asyncio.InvalidStateError)


@dataclass
class Pending:
    """A commit that may have been applied."""

    sequence: int
    delta: Values


class SimpleWorker:
    """Worker `number` of `count`; `kill` kills the server of a shard.

    `tally` counts operations, failures, and what became of deltas; `refusals` counts their reasons.
    """

    def __init__(
        self,
        address: str,
        model: Model,
        *,
        shards: int,
        lane: bool,
        number: int,
        count: int,
        draw: random.Random,
        kill: Callable[[int], None],
        kill_chance: float,
    ) -> None:
        self._address = address
        self._model = model
        self._lane = lane
        self._draw = draw
        self._kill = kill
        self._kill_chance = kill_chance
        self._own = slice(number, None, count)
        self._random = np.random.default_rng(draw.randrange(1 << 32))
        self._name = f"worker-{number}"
        models = [ShardModel.of(model, index, shards) for index in range(shards)] if shards > 1 else [model]
        # The addresses of shards other than the primary are in its answer to Join.
        self._pieces = [self._piece(address, one) for one in models]
        self._streams: list[CommitStream] = []
        self._late: list[tuple[CommitStream, list[Message]]] = []
        self._pending: Pending | None = None
        self.applied = 0
        self.expected = model.random_values(0).parameters[self._own].copy()
        # The BUFFERs of the last applied commit.
        self.rest: bytes | None = None
        self.tally: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()

    async def close(self) -> None:
        for piece in self._pieces:
            await piece.close()

    # -- one operation ---------------------------------------------------------------------------------------------

    async def operate(self) -> None:
        """Make one commit with a random fate. After a failure, follow the rule."""
        fate = self._draw.choice(KILLED if self._draw.random() < self._kill_chance else FATES)
        self.tally["operations"] += 1
        self.tally[fate] += 1
        try:
            completed = await self._commit(fate)
        except BROKEN as error:
            self._note(error)
            completed = False
        if completed:
            self._check([piece.held for piece in self._pieces])
        else:
            self.tally["failures"] += 1
            await self.recover(fate)

    async def _commit(self, fate: str) -> bool:
        """Begin a commit, and break it as `fate` says. Returns whether it was completed."""
        deadline = self._draw.uniform(0, 0.03) if fate == "deadline" else None
        if deadline is not None or not self._streams:
            self._drop_streams()
            self._streams = [piece.commit_stream(deadline) for piece in self._pieces]
        commits = self._prepare()
        if fate in ("complete", "deadline"):
            await asyncio.gather(*map(self._complete, self._streams, commits))
            return deadline is None
        broken = self._draw.randrange(len(self._pieces))
        others = [
            asyncio.create_task(self._complete(stream, commit))
            for index, (stream, commit) in enumerate(zip(self._streams, commits, strict=True))
            if index != broken
        ]
        try:
            await self._break(fate, broken, commits[broken])
        finally:
            await self._pause()
            for other in others:
                other.cancel()
            for result in await asyncio.gather(*others, return_exceptions=True):
                self._note(result)
        return False

    def _prepare(self) -> list[list[Message]]:
        """Return the messages of the next commit for each shard."""
        parameters = np.zeros(self._model.parameter_count, np.float32)
        own = parameters[self._own]
        own[:] = 0.01 * self._random.standard_normal(own.size)
        delta = Values(parameters, self._random.bytes(8))
        self._pending = Pending(self.applied + 1, delta)
        commit_id = self._draw.randrange(1, 1 << 64)
        found = []
        for piece in self._pieces:
            part = piece.model.part(delta) if isinstance(piece.model, ShardModel) else delta
            commit = piece.prepare(
                part, chunk_bytes=self._draw.choice(CHUNK_BYTES), sequence=self.applied + 1, commit_id=commit_id
            )
            found.append(self._messages(commit))
        return found

    def _messages(self, commit: Commit) -> list[Message]:
        whole = commit.travels_whole and len(commit.chunks) == 1 and self._draw.random() < 0.5
        return [commit.whole()] if whole else [*commit.messages()]

    async def _complete(self, stream: CommitStream, messages: list[Message]) -> None:
        await self._send(stream, messages)
        await self._read_reply(stream)

    async def _send(self, stream: CommitStream, messages: list[Message]) -> None:
        """Send the first messages of a commit; those behind a header that goes alone wait for `proceed`."""
        for number, message in enumerate(messages):
            if number == 1:
                answer = await stream.receive()
                if answer is None:
                    raise EndedError
                assert answer.HasField("proceed"), answer
                assert answer.proceed.sequence == self.applied + 1
            await stream.send(message)

    async def _read_reply(self, stream: CommitStream, stop_after: int | None = None) -> None:
        first = await stream.receive()
        if first is None:
            raise EndedError
        assert first.HasField("verdict"), first
        assert not first.verdict.duplicate
        self._settle(first.verdict.sequence)
        await stream.outcome(first=first, stop_after=stop_after)

    async def _break(self, fate: str, index: int, messages: list[Message]) -> None:
        stream, piece = self._streams[index], self._pieces[index]
        if fate == "torn reply":
            await self._send(stream, messages)
            await self._read_reply(stream, stop_after=self._draw.randrange(3))
            return
        # A call that is left open has begun, for the server cannot know of which session a call without a header is.
        sent = self._draw.randrange(fate in LEFT_OPEN, len(messages) + 1)
        await self._send(stream, messages[:sent])
        await self._pause()
        if fate == "half-closed":
            await stream.half_close()
            if (answer := await stream.receive(0.2)) is not None and answer.HasField("verdict"):
                self._settle(answer.verdict.sequence)
        elif fate == "disconnected":
            await piece.close()
            self._pieces[index] = self._piece(piece.address, piece.model, piece)
        elif fate == "killed":
            self._kill(index)
        elif fate == "cancelled":
            stream.cancel()
        else:
            # The call is left open, and its rest comes behind the calls that end it.
            self._late.append((stream, messages[sent:]))
            if fate.endswith(("Join", "Pull")) and fate not in KILLED:
                await self._cancelled_call(fate)
                if self._draw.random() < 0.5:
                    await self._send_rest()

    async def _cancelled_call(self, fate: str) -> None:
        """A Join or Pull within a commit that is cancelled at a random moment, or within its answer."""
        if fate == "torn Pull":
            await self._pieces[0].pull(stop_after=self._draw.randrange(3))
            return
        call = asyncio.create_task(self._join() if fate == "cancelled Join" else self._pull())
        await self._pause()
        call.cancel()
        (result,) = await asyncio.gather(call, return_exceptions=True)
        self._note(result)

    # -- the rule --------------------------------------------------------------------------------------------------

    async def recover(self, fate: str = "") -> None:
        """Join, and Pull, until both have worked."""
        if fate != "late" and not fate.startswith("killed behind"):
            self._drop_streams()
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await self._rejoin(fate)
                    break
                except BROKEN as error:
                    self._note(error)
                    fate = ""
                    for index, piece in enumerate(self._pieces):
                        await piece.close()
                        self._pieces[index] = self._piece(piece.address, piece.model, piece)
                    await asyncio.sleep(0.1)
        await self._end_late()
        self._drop_streams()

    async def _rejoin(self, fate: str) -> None:
        """Join and pull once. `fate` may be that a server is killed meanwhile."""
        broken = self._draw.randrange(len(self._pieces))
        last_applied, has_parameters = await self._join()
        self._settle(last_applied)
        if fate == "killed behind Join":
            self._kill(broken)
        if not has_parameters:
            assert self.applied == 0, "the server has lost its parameters"
            await self._initialize()
        pulled = await self._pull()
        if fate == "killed behind Pull":
            self._kill(broken)
        self._check(pulled)

    async def _join(self) -> tuple[int, bool]:
        """Join each shard. Returns the primary's last applied sequence, and whether it has parameters."""
        answer = await self._pieces[0].join(layout=self._model.to_proto())
        host = self._address.rpartition(":")[0]
        for index, place in enumerate(answer.shards, 1):
            address = f"{host}{place}" if place.startswith(":") else place
            piece = self._pieces[index]
            if piece.address != address:
                await piece.close()
                piece = self._pieces[index] = self._piece(address, piece.model, piece)
            await piece.join(layout=self._model.to_proto())
        return answer.last_applied_sequence, answer.has_parameters

    async def _initialize(self) -> None:
        first = self._model.random_values(0)
        parts = [one.model.part(first) if isinstance(one.model, ShardModel) else first for one in self._pieces]
        await asyncio.gather(*(piece.initialize(part) for piece, part in zip(self._pieces, parts, strict=True)))

    async def _pull(self) -> list[Transfer]:
        pulled = [await self._pieces[0].pull()]
        clock = pulled[0].clock
        for piece in self._pieces[1:]:
            version = {"incarnation": piece.membership.incarnation, "clock": clock}
            pulled.append(await piece.pull(resume_version=version, resume_offset=0))
        if not all(one.complete for one in pulled):
            raise EndedError
        return pulled

    # -- the oracle ------------------------------------------------------------------------------------------------

    def _settle(self, last_applied: int) -> None:
        """Note that the server has applied this number of commits, and check that this is possible."""
        pending = self._pending
        if pending is None or last_applied != pending.sequence:
            assert last_applied == self.applied, f"{last_applied} commits are applied, {self.applied} were"
            if pending is not None:
                self.tally["lost"] += 1
        else:
            self.applied = last_applied
            self.expected += pending.delta.parameters[self._own]
            self.rest = pending.delta.rest
        self._pending = None

    def _check(self, held: Sequence[Transfer | None]) -> None:
        """Check that the received parameters contain this worker's applied deltas, bit for bit."""
        assert self.theta(held)[self._own].tobytes() == self.expected.tobytes()

    @staticmethod
    def theta(held: Sequence[Transfer | None]) -> NDArray[np.float32]:
        return np.concatenate([one.values.parameters for one in held if one is not None])

    async def everything(self) -> tuple[int, NDArray[np.float32], bytes]:
        """Return the server's clock, parameters and BUFFERs."""
        await self.recover()
        held = [piece.held for piece in self._pieces]
        last = held[-1]
        assert last is not None
        assert len({one.clock for one in held if one is not None}) == 1
        return last.clock, self.theta(held), last.values.rest

    # --------------------------------------------------------------------------------------------------------------

    def _piece(self, address: str, model: Model, before: RawWorker | None = None) -> RawWorker:
        """The worker's side of one shard, with a connection of its own."""
        piece = RawWorker(address, model, self._name)
        piece.uses_lane = self._lane
        if before is not None:
            piece.membership.CopyFrom(before.membership)
        piece.session_id = self._session_id = getattr(self, "_session_id", piece.session_id)
        return piece

    def _drop_streams(self) -> None:
        """The next commit gets new streams; late ones stay as they are until their rest was sent."""
        late = [stream for stream, _ in self._late]
        for stream in self._streams:
            if stream not in late:
                stream.cancel()
        self._streams = []

    async def _send_rest(self) -> None:
        """Send what is left of calls that were left open."""
        for stream, rest in self._late:
            while rest:
                await stream.send(rest.pop(0))

    async def _end_late(self) -> None:
        """The rest of calls that were left open must change nothing behind Join and Pull."""
        await self._send_rest()
        for stream, _ in self._late:
            await self._read_late(stream)
            stream.cancel()
        self._late = []

    async def _read_late(self, stream: CommitStream) -> None:
        """A commit that was complete before Join has a verdict, and Join has counted it; any other ends refused."""
        if stream.call.done() and await stream.call.code() is grpc.StatusCode.CANCELLED:
            return  # its connection was closed, and grpc.aio's read would raise CancelledError
        try:
            async with asyncio.timeout(0.5):  # the status of a call whose write failed may never come
                while (answer := await stream.receive()) is not None:
                    if answer.HasField("verdict"):
                        assert answer.verdict.sequence <= self.applied, "a commit was applied behind Join and Pull"
        except BROKEN as error:
            self._note(error)

    async def _pause(self) -> None:
        await asyncio.sleep(self._draw.choice(PAUSES))

    def _note(self, error: object) -> None:
        """Count why a call ended; a refusal must be one of those that the rule leaves possible."""
        if isinstance(error, grpc.aio.AioRpcError):
            if any(key == "grpc-status-details-bin" for key, _ in error.trailing_metadata() or ()):
                refusal = read_refusal(error)
                self.refusals[refusal.reason] += 1
                assert refusal.reason in REASONS, refusal
        elif isinstance(error, BaseException) and not isinstance(error, (asyncio.CancelledError, *BROKEN)):
            raise error
