"""Workers that train under load, log what they saw, and carry on when the server has gone and come back."""

import asyncio
import itertools
from collections.abc import Sequence

import grpc
from gemps.v1 import commit_pb2

from tests.faults.history import Applied, History, Pulled
from tests.wire.model import Model
from tests.wire.refusals import PATIENCE
from tests.wire.sharing import Sharing, question
from tests.wire.transfer import Commit, crc32c
from tests.wire.worker import Outcome, RawWorker, all_of

# What calls raise when the server has gone in their midst: the status, or an assertion on how a stream has to end.
GONE = (grpc.aio.AioRpcError, AssertionError, asyncio.InvalidStateError)


def crew(model: Model, size: int = 4, *, shares: bool = False) -> "tuple[History, list[LoggedWorker]]":
    """A history that begins with random parameters, and workers that write it; no two deltas of theirs are the same."""
    history = History(model, model.random_values(0))
    seeds = itertools.count(1)
    return history, [LoggedWorker(f"worker-{number}", model, history, seeds, shares=shares) for number in range(size)]


async def everybody_connects(workers: "Sequence[LoggedWorker]", address: str) -> None:
    """The first one alone, since it brings the parameters where there are none."""
    await workers[0].connect(address)
    await all_of(*(worker.connect(address) for worker in workers[1:]))


class LoggedWorker:
    """One worker. `shares`: its commits go through shared memory; `pending`: the commit whose fate it does not know."""

    def __init__(
        self, name: str, model: Model, history: History, seeds: "itertools.count[int]", *, shares: bool = False
    ) -> None:
        self.name = name
        self.model = model
        self.history = history
        self.seeds = seeds
        self.session_id: bytes | None = None
        self.pending: tuple[Commit, int, int] | None = None
        self.duplicates = 0
        self.worker: RawWorker | None = None
        self.shares = shares
        self.sharing: Sharing | None = None
        self.stopped = False

    async def connect(self, address: str) -> None:
        """Join with the session id of always, find out what became of the pending commit, and pull."""
        worker = self.worker = RawWorker(address, self.model, self.name)
        if self.session_id is None:
            self.session_id = worker.session_id
        worker.session_id = self.session_id
        answer = await worker.join()
        if self.shares:
            self._stop_sharing()
            self.sharing = await Sharing.of(worker)
        if self.pending is not None:
            commit, seed, base_clock = self.pending
            if answer.last_applied_sequence >= commit.header.sequence:
                await self._learn_fate(commit, seed, base_clock)
            self.pending = None
        if not answer.has_parameters:
            await worker.initialize(self.history.first)
        await self._pull()

    async def train(self, limit: int | None = None) -> None:
        """Commit until the server goes, or `stopped` is set, or so many times."""
        worker = self.worker
        assert worker is not None
        for _ in itertools.count() if limit is None else range(limit):
            if self.stopped:
                return
            seed = next(self.seeds)
            delta = worker.delta(seed)
            base_clock = worker.version.clock
            if self.sharing is not None:
                commit = self.sharing.prepare(delta)
                self.pending = commit, seed, base_clock
                verdict, payload = await self.sharing.exchange(commit)
            else:
                self.pending = worker.prepare(delta), seed, base_clock
                outcome = await worker.commit(delta)
                verdict, payload = outcome.verdict, bytes(outcome.reply.payload)
            self._log(verdict, payload, seed, base_clock, acknowledged=True)
            self.pending = None

    async def train_until_gone(self) -> None:
        try:
            await self.train()
        except GONE:
            return

    async def close(self) -> None:
        self._stop_sharing()
        if self.worker is not None:
            await self.worker.close()

    def _stop_sharing(self) -> None:
        if self.sharing is not None:
            self.sharing.close()
            self.sharing = None

    async def repeat_last(self, commit: Applied) -> Outcome:
        """Sends an acknowledged commit again, as a worker does that never saw the reply."""
        worker = self.worker
        assert worker is not None
        repeat = worker.prepare(worker.delta(commit.seed), sequence=commit.sequence)
        if self.shares:
            repeat = question(repeat)
        return await worker.commit_stream().outcome_of_repeat(repeat)

    async def settle(self, commit: Commit, seed: int, base_clock: int) -> None:
        """Ask for a commit's verdict, or commit it now; what is held then is what its reply brought."""
        worker = self.worker
        assert worker is not None
        if self.sharing is not None:
            verdict, payload = await self.sharing.exchange(commit)
        else:
            outcome = await worker.commit_stream().outcome_of_repeat(commit)
            verdict, payload = outcome.verdict, bytes(outcome.reply.payload)
        worker.sequence = verdict.sequence
        self._log(verdict, payload, seed, base_clock, acknowledged=True)

    async def _learn_fate(self, commit: Commit, seed: int, base_clock: int) -> None:
        worker = self.worker
        assert worker is not None
        outcome = await worker.commit_stream().outcome_of_repeat(question(commit) if self.shares else commit)
        assert outcome.verdict.duplicate
        self.duplicates += 1
        self._log(outcome.verdict, None, seed, base_clock, acknowledged=False)

    async def _pull(self) -> None:
        worker = self.worker
        assert worker is not None
        transfer = await asyncio.wait_for(worker.pull(), PATIENCE)
        version = transfer.version
        self.history.pulls.append(
            Pulled(self.name, version.incarnation, version.clock, crc32c(bytes(transfer.payload)))
        )

    def _log(
        self, verdict: commit_pb2.Verdict, payload: bytes | None, seed: int, base_clock: int, *, acknowledged: bool
    ) -> None:
        """`payload`: what the worker holds by this commit; None: it is not sure."""
        assert self.session_id is not None
        self.history.commits.append(
            Applied(
                self.name,
                self.session_id,
                verdict.sequence,
                seed,
                base_clock,
                verdict.version.incarnation,
                verdict.version.clock,
                crc32c(payload) if payload is not None else None,
                acknowledged,
            )
        )
