"""Writes the run's trace (gem_trace) on a thread; docs/reliability.md has its promises."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_core import Statistics, UpdateRule
from gem_server.errors import StartupError
from gem_server.flow.observer import CommitObserver
from gem_server.flow.requests import CommitRequest
from gem_server.rule_choice import RuleChoice
from gem_server.settings import ServerSettings
from gem_server.state.buffers import Buffers
from gem_server.state.central_variable import CentralVariable
from gem_server.state.kept_rule import has_begun, kept_vectors
from gem_server.state.run import Run
from gem_server.state.sessions import Session
from gem_trace import TraceError, TraceWriter
from gem_trace.format import FORMAT, digest

# All settings that determine the order of commits, eta, the deltas and the end of the run, besides
# limits.staging_buffers.
RECORDED_SETTINGS = frozenset(
    {
        *("eta", "eta_schedule", "steps", "epochs", "commits", "order", "min_workers", "seed"),
        *("direction", "clip_norm"),
    }
)

logger = logging.getLogger(__name__)


class Recorder(CommitObserver):
    """The trace of one process. Event loop thread only."""

    def __init__(self, settings: ServerSettings, clock: Callable[[], float]) -> None:
        if settings.record is None:
            raise ValueError("there is no file to record in")
        self._settings = settings
        self._path = settings.record
        self._clock = clock
        self._began = clock()
        self._run = ""
        self._choice: RuleChoice
        self._writer: TraceWriter | None = None
        self._thread = ThreadPoolExecutor(1, "gem-trace")

    async def start(self, choice: RuleChoice, run: Run, central: CentralVariable) -> None:
        """Open the file; record the start of the run, once its rule is decided.

        Raises StartupError if that fails or the file holds another run.
        """
        try:
            writer = self._writer = await asyncio.to_thread(TraceWriter, self._path)
        except TraceError as error:
            raise StartupError(f"--record: {error}") from error
        if writer.cut_at is not None:
            logger.warning("%s: what begins at offset %d is not whole, and is cut off", self._path, writer.cut_at)
        self._run, self._choice = run.identity, choice
        if writer.run not in (None, run.identity):
            raise StartupError(
                f"--record: {self._path} is the trace of a run, and that one is not resumed here: choose another file"
            )
        if writer.run is not None and writer.clock < central.clock:
            logger.warning(
                "the trace %s ends at clock %d, and the run is at clock %d: what lies between is missing there",
                self._path,
                writer.clock,
                central.clock,
            )
        if choice.is_decided:
            self._record_start(choice, run)
        choice.on_change.append(lambda: self._record_start(choice, run))
        rule = choice.rule
        if central.layout is not None:
            await self._record_parameters(central, rule if has_begun(rule, central.parameters) else None)

    def _record_start(self, choice: RuleChoice, run: Run) -> None:
        """Record the rule and its settings, and record them again if another first worker decides differently."""
        rule = choice.rule
        self._append(
            {
                "event": "started",
                "format": FORMAT,
                "date": datetime.now(UTC).isoformat(),
                "rule": rule.name,
                "rule_settings": dict(rule.settings),
                "settings": self._settings.model_dump(mode="json", include=set(RECORDED_SETTINGS))
                | {"eta": run.schedule.eta, "direction": choice.direction}
                | {"staging_buffers": self._settings.limits.staging_buffers},
            }
        )

    async def bound(self, central: CentralVariable, session: Session) -> None:
        """Record the first parameters."""
        await self._record_parameters(central, None)

    async def _record_parameters(self, central: CentralVariable, rule: UpdateRule | None) -> None:
        layout = central.layout
        if layout is None:
            raise AssertionError("there are no parameters to record")
        event = {"event": "parameters", "run": self._run, "clock": central.clock, "incarnation": central.incarnation}
        if (recipe := self._choice.recipe) is not None:
            event["groups"] = recipe.groups_of(layout)
        rest = [memoryview(central.buffers.joined())]
        if rule is not None:
            vectors = kept_vectors(rule, central.parameters)
            event["rule_state"] = {"vectors": len(vectors), "scalars": rule.kept_scalars}
            rest += map(_bytes_of, vectors)
        await self._appended(event | {"layout": layout.describe()}, (_bytes_of(central.parameters), *rest))

    def joined(self, session: Session) -> None:
        """Record the start of a session."""
        worker, join_info = session.worker, session.join_info
        self._append(
            {
                "event": "joined",
                "session": session.number,
                "worker": worker.name,
                "rank": worker.rank,
                "host_rank": worker.host_rank,
                "agent": join_info.agent,
                "device": join_info.device,
                "host_name": join_info.host_name,
                "engine": join_info.engine,
                "delta_wire_type": join_info.delta_wire_type.name,
                "parameter_wire_type": join_info.parameter_wire_type.name,
            }
        )

    def wire_types_changed(self, session: Session) -> None:
        """Record that a session sends and receives other wire types from now on."""
        join_info = session.join_info
        self._append(
            {
                "event": "wire-types",
                "session": session.number,
                "delta_wire_type": join_info.delta_wire_type.name,
                "parameter_wire_type": join_info.parameter_wire_type.name,
            }
        )

    def left(self, session: Session) -> None:
        """Record the end of a session."""
        self._append({"event": "left", "session": session.number, "state": session.worker.state.value})

    def pulled(self, session: Session, is_first: bool) -> None:
        """Record that a pull refreshed a snapshot. `is_first` says whether this reset the moment."""
        self._append({"event": "pulled", "session": session.number, "reset": is_first})

    def forgotten(self, session: Session) -> None:
        """Record that the rule forgot a worker."""
        self._append({"event": "forgotten", "session": session.number})

    async def committed(
        self,
        session: Session,
        request: CommitRequest,
        clock: int,
        staleness: int,
        statistics: Statistics,
        buffers: Buffers,
    ) -> None:
        """Record an applied commit, with all BUFFERs of the version that it made."""
        buffer = request.hold.buffer
        if buffer is None:
            raise AssertionError("a commit without its delta")
        event = {
            "event": "committed",
            "session": session.number,
            "sequence": request.sequence,
            "clock": clock,
            "base": request.base.clock,
            "staleness": staleness,
            "queued_at": self._seconds(request.enqueued_at),
            "loss": request.loss,
            "samples": request.samples,
            "eta": request.eta,
            "statistics": statistics._asdict(),
        }
        if request.decays:
            event["decays"] = request.decays
        await self._appended(event, (_bytes_of(buffer.parameters), memoryview(buffers.joined())))

    async def close(self, central: CentralVariable) -> None:
        """Record the end of the process, and close the file. Idempotent."""
        if self._writer is not None:
            has_any = central.layout is not None
            found = await asyncio.to_thread(digest, central.parameters, central.buffers.joined()) if has_any else None
            await self._appended({"event": "ended", "clock": central.clock, "digest": found})
        await self.abandon()

    async def abandon(self) -> None:
        """Close the file without recording the end. Idempotent."""
        self._thread.submit(self._end)
        await asyncio.to_thread(self._thread.shutdown)

    def _append(self, event: dict[str, Any]) -> None:
        self._thread.submit(self._write, event | {"at": self._seconds(self._clock())}, ())

    async def _appended(self, event: dict[str, Any], payload: Sequence[memoryview] = ()) -> None:
        done = self._thread.submit(self._write, event | {"at": self._seconds(self._clock())}, payload)
        await asyncio.wrap_future(done)

    def _write(self, event: dict[str, Any], payload: Sequence[memoryview]) -> None:
        """Trace thread."""
        if self._writer is None:
            return
        try:
            self._writer.append(event, payload)
        except OSError as error:
            logger.error("the trace %s ends here: %s; training continues", self._path, error.strerror)
            self._end()

    def _end(self) -> None:
        """Trace thread."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.close()
        except OSError as error:
            logger.error("the trace %s may lack its end: %s", self._path, error.strerror)

    def _seconds(self, at: float) -> float:
        return round(at - self._began, 6)


def _bytes_of(values: NDArray[np.float32]) -> memoryview:
    return values.data.cast("B") if values.size else memoryview(b"")
