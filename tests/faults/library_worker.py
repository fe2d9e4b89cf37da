"""A worker of the client library, behind a proxy that cuts its connection; it logs what it saw."""

import itertools
from collections.abc import Callable
from threading import Event

import numpy as np
from gem_server.service.messages import layout_from
from gem_worker.client import Client, ClientSettings, Version

from tests.client.cutting_proxy import CuttingProxy
from tests.faults.history import Applied, History, Pulled
from tests.wire.model import Values
from tests.wire.transfer import crc32c


class LibraryWorker:
    """Blocking, so for a thread of its own.

    dropped: deltas that the library says are not applied.
    shared: commits that began in shared memory, of a worker that uses it where the server offers it (`shares`).
    """

    def __init__(
        self,
        name: str,
        port: int,
        history: History,
        seeds: "itertools.count[int]",
        on_cut: Callable[[], None],
        *,
        shares: bool = False,
    ) -> None:
        self.name = name
        self.proxy = CuttingProxy(port, on_cut)
        self.duplicates = 0
        self.dropped = 0
        self.shared = 0
        self._history = history
        self._model = history.model
        self._seeds = seeds
        # Pauses are short, because nobody has to be spared; patience is long, because machines may be slow.
        settings = ClientSettings(backoff_first=0.01, backoff_limit=0.05, connect_timeout=300, shared_memory=shares)
        self._client = Client(
            self.proxy.address,
            worker_name=name,
            layout=layout_from(self._model.to_proto()),
            host_id="host",
            settings=settings,
            on_event=lambda _: None,
        )
        self._into = memoryview(bytearray(self._model.byte_count()))

    @property
    def shares_now(self) -> bool:
        return self._client.shared_delta is not None

    def begin(self) -> None:
        """Join, upload the first parameters if there are none, and pull."""
        if not self._client.join().has_parameters:
            self._client.initialize(memoryview(self._model.encode(self._history.first)))
        self._pulled(self._client.pull(self._into), self._into)

    def commit(self) -> None:
        """One commit, whatever it takes."""
        seed, base = next(self._seeds), self._client.version
        assert base is not None
        delta, scale = self._delta(seed)
        place = self._client.shared_delta
        self.shared += place is not None
        # Every other one as a worker on a GPU does it, whose delta and parameters are copied anyway.
        in_place = place is not None and seed % 2 == 0
        if place is not None and in_place:
            place[:] = delta
            delta = place
        outcome = self._client.commit(delta, self._into, in_place=in_place, scale=scale)
        verdict, held = outcome.verdict, outcome.parameters
        if verdict is None:
            assert not outcome.applied, "an applied commit whose verdict is lost"
            self.dropped += 1
        else:
            told = outcome.version == verdict.version
            self.duplicates += verdict.duplicate
            self._history.commits.append(
                Applied(
                    self.name,
                    self.name.encode(),  # the library keeps one session id for its life
                    verdict.sequence,
                    seed,
                    base.clock,
                    verdict.version.incarnation,
                    verdict.version.clock,
                    crc32c(bytes(held)) if told else None,
                )
            )
        if verdict is None or outcome.version != verdict.version:
            self._pulled(outcome.version, held)

    def _delta(self, seed: int) -> tuple[memoryview, float | None]:
        """The payload, and what its parameters are multiplied by: every third comes to its values by that, exactly."""
        values = self._model.random_values(seed, scale=0.01)
        if seed % 3:
            return memoryview(self._model.encode(values)), None
        return memoryview(self._model.encode(Values(values.parameters * np.float32(-2), values.rest))), -0.5

    def commit_until(self, done: Event) -> None:
        while not done.is_set():
            self.commit()

    def close(self) -> None:
        self.proxy.close()
        self._client.close()

    def _pulled(self, version: Version, held: memoryview) -> None:
        self._history.pulls.append(Pulled(self.name, version.incarnation, version.clock, crc32c(bytes(held))))
