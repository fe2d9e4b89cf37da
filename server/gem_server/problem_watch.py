"""Looks at the server's state every LOOK_SECONDS, and keeps the list of problems (`telemetry/problems.py`).

What may block, the disk and files of certificates and tokens, is read on a thread; the look takes what it read last.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import time

from gem_server.durability.checkpointer import Checkpointer
from gem_server.durability.log import Log
from gem_server.lifecycle import describe_waiting
from gem_server.process_memory import anonymous_bytes, total_bytes
from gem_server.security.protection import Protection
from gem_server.state.central_variable import CentralVariable
from gem_server.state.run import Run, RunState
from gem_server.state.sessions import Session, Sessions
from gem_server.state.workers import Worker, WorkerState
from gem_server.telemetry.first_batches import FirstBatches
from gem_server.telemetry.problems import (
    CheckpointFacts,
    DiskFacts,
    Facts,
    LogRoomFacts,
    Problems,
    WorkerFacts,
)
from gem_server.telemetry.refusals import Refusals

LOOK_SECONDS = 2.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The parts of the server that are looked at.

    Attributes:
        is_secondary: whether this server follows a primary, which then speaks for the whole run.
        data_dir: None: there is none, and neither a checkpointer nor a log.
        checkpoint_interval: in seconds.
        run_seconds: seconds of training in this process.
    """

    is_secondary: bool
    data_dir: Path | None
    checkpoint_interval: float
    central: CentralVariable
    run: Run
    sessions: Sessions
    checkpointer: Checkpointer | None
    log: Log | None
    guard: Protection
    refusals: Refusals
    first_batches: FirstBatches
    run_seconds: Callable[[], float]


@dataclass(slots=True)
class _Files:
    """Results of the last reading of files, which a thread did."""

    disk: tuple[int, int, int] | None = None
    expiries: dict[str, float] = field(default_factory=dict)


class ProblemWatch:
    """Keeps the list of problems up to date. Only the event loop's thread may use it."""

    def __init__(self, watched: Watched, clock: Callable[[], float]) -> None:
        """`clock` returns seconds that never decrease."""
        self.problems = Problems(clock)
        self._watched = watched
        self._clock = clock
        self._due = -math.inf
        self._files = _Files()
        self._reading: asyncio.Task[_Files] | None = None
        self._memory_total = total_bytes()
        self._commits = 0
        self._trained = 0.0  # seconds of training when the newest commit was seen

    def look_if_due(self) -> None:
        """Look if LOOK_SECONDS have passed. The server calls this a few times a second."""
        if self._clock() >= self._due:
            self.look()

    def look(self) -> None:
        """Renew the list of problems now, and have the files read for the next look."""
        now = self._clock()
        self._due = now + LOOK_SECONDS
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(asyncio.to_thread(self._read_files))
            self._reading.add_done_callback(self._have_read)
        self.problems.look(self._facts(now))

    def _have_read(self, reading: "asyncio.Task[_Files]") -> None:
        self._reading = None
        if reading.cancelled():
            return
        if (error := reading.exception()) is not None:
            logger.error("the files of the server could not be looked at", exc_info=error)
            return
        self._files = reading.result()

    def _read_files(self) -> _Files:
        """Read the disk and the files of certificates and tokens. This may block, so it runs on a thread."""
        seen, found = self._watched, _Files()
        if seen.checkpointer is not None:
            try:
                found.disk = seen.checkpointer.read_disk()
            except OSError:
                found.disk = None  # it is being changed, or fails: then the server ends by itself
        if seen.guard.certificates is not None:
            found.expiries = seen.guard.certificates.current().expiries
        if seen.guard.tokens is not None:
            seen.guard.tokens.current()
        return found

    def _facts(self, now: float) -> Facts:
        seen = self._watched
        return Facts(
            has_parameters=seen.central.layout is not None,
            is_finished=seen.run.state is RunState.FINISHED,
            clock=seen.central.clock,
            checkpoints=self._checkpoints(),
            disk=self._disk(),
            log_room=self._log_room(now),
            expiries={name: end - time() for name, end in self._files.expiries.items()},
            reload_errors=self._reload_errors(),
            workers=() if seen.is_secondary else self._workers(now),
            commits=seen.run.commits_of_process,
            usual_gap=self._usual_gap(),
            refused=seen.refusals.of_last_minute(),
            memory_bytes=anonymous_bytes(),
            memory_total=self._memory_total,
            waits_for="" if seen.is_secondary else self._waits_for(),
            same_batches=seen.first_batches.groups,
        )

    def _checkpoints(self) -> CheckpointFacts | None:
        writer = self._watched.checkpointer
        if writer is None:
            return None
        newest = writer.newest_version.clock if writer.newest_version is not None else None
        return CheckpointFacts(newest=newest, interval=self._watched.checkpoint_interval, error=writer.error)

    def _disk(self) -> DiskFacts | None:
        writer, read = self._watched.checkpointer, self._files.disk
        if writer is None or read is None:
            return None
        free, reserved, newest = read
        wanted = writer.room_wanted(newest)
        return DiskFacts(place=str(self._watched.data_dir), free=free, reserved=reserved, checkpoint=wanted)

    def _log_room(self, now: float) -> LogRoomFacts | None:
        log = self._watched.log
        if log is None or log.refused_at is None:
            return None
        since = log.refused_since
        return LogRoomFacts(refused_ago=now - log.refused_at, stands_for=now - since if since is not None else 0.0)

    def _reload_errors(self) -> dict[str, str]:
        guard = self._watched.guard
        found = {"tls.cert, tls.key or tls.client_ca": guard.certificates, "tls.tokens": guard.tokens}
        return {name: files.error for name, files in found.items() if files is not None and files.error}

    def _workers(self, now: float) -> list[WorkerFacts]:
        sessions = self._watched.sessions
        live = {session.worker.name: session for session in sessions.live()}
        return [_worker(one, live.get(one.name), now) for one in sessions.workers.by_rank()]

    def _usual_gap(self) -> float | None:
        """Seconds of training for each commit, until the newest one."""
        commits = self._watched.run.commits_of_process
        if commits != self._commits:
            self._commits, self._trained = commits, self._watched.run_seconds()
        return self._trained / commits if commits else None

    def _waits_for(self) -> str:
        run, sessions = self._watched.run, self._watched.sessions
        if run.state is RunState.FINISHED or (run.state is RunState.TRAINING and len(sessions)):
            return ""
        return describe_waiting(
            started=run.started,
            present=sessions.count_present(),
            wanted=run.wanted_workers,
            absent=[worker.name for worker in sessions.absent()],
        )


def _worker(worker: Worker, session: Session | None, now: float) -> WorkerFacts:
    seen = worker.telemetry
    first, gaps = seen.rate.first, seen.measured - 1
    has_expired = session is None and worker.state is WorkerState.EXPIRED
    return WorkerFacts(
        name=worker.name,
        trains=session is not None and not worker.done,
        silent_for=session.silent_for(now) if session is not None else 0.0,
        usual_gap=(worker.last_call - first) / gaps if first is not None and gaps > 0 else None,
        expired_for=now - worker.last_call if has_expired else None,
        quarantined=worker.quarantined,
        habits=seen.conduct.habits,
    )
