"""Records a simulation as a trace."""

from pathlib import Path
from typing import Any

from gem_core import UpdateRule, WireType
from gem_simulator.cluster import Cluster, Commit
from gem_simulator.errors import SimulationError
from gem_simulator.events import Event, Kind
from gem_simulator.workload import Delta
from gem_trace import TraceError, TraceWriter
from gem_trace.format import FORMAT, digest

RUN = "simulated"


class TraceRecorder:
    """A trace in a new file. Raises SimulationError."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise SimulationError(f"{path} is there already: choose another file for the trace")
        try:
            self._writer = TraceWriter(path)
        except TraceError as error:
            raise SimulationError(str(error)) from error
        self._wires: tuple[str, str] = ("", "")
        self._delta: Delta | None = None
        self._eta = 0.0
        self._forgets = False
        self._pulled: set[int] = set()

    def write_header(
        self,
        rule: UpdateRule,
        settings: dict[str, Any],
        cluster: Cluster,
        layout: list[dict[str, Any]],
        wires: tuple[WireType, WireType],
    ) -> None:
        """Write the header and first parameters."""
        self._wires = wires[0].name, wires[1].name
        self._eta = settings["eta"]
        self._forgets = rule.vectors_per_run > 0
        started = {"event": "started", "format": FORMAT, "date": "", "rule": rule.name}
        self._writer.append(started | {"rule_settings": dict(rule.settings), "settings": settings, "at": 0.0})
        self._writer.append(
            {"event": "parameters", "run": RUN, "clock": 1, "incarnation": 1, "layout": layout, "at": 0.0},
            [
                cluster.parameters.data.cast("B") if cluster.parameters.size else memoryview(b""),
                memoryview(cluster.buffers),
            ],
        )

    def keep_delta(self, rank: int, delta: Delta) -> None:
        """Keep the next commit's delta, before the next step overwrites it."""
        self._delta = delta

    def record_event(self, event: Event, commit: Commit | None) -> None:
        """Record an event. The number of a session is the worker's rank + 1, because each worker joins once."""
        fields: dict[str, Any] = {"event": event.kind.value, "session": event.rank + 1, "at": event.at}
        if event.kind is Kind.JOINED:
            fields |= {"worker": f"simulated-{event.rank}", "rank": event.rank, "host_rank": event.rank}
            fields |= {"agent": "gem_simulator", "device": "cpu"}
            fields |= {"delta_wire_type": self._wires[0], "parameter_wire_type": self._wires[1]}
        elif event.kind is Kind.PULLED:
            fields["reset"] = True
            self._pulled.add(event.rank)
        elif event.kind is Kind.LEFT:
            self._writer.append(fields | {"state": "left"})
            if not self._forgets or event.rank not in self._pulled:
                return
            fields["event"] = "forgotten"
        elif commit is not None and self._delta is not None:
            fields |= {name: getattr(commit, name) for name in ("sequence", "clock", "base", "staleness")}
            fields |= {"queued_at": commit.at - commit.waited, "loss": commit.loss, "samples": commit.samples}
            fields["eta"] = self._eta
            fields["statistics"] = commit.statistics._asdict()
            values = self._delta.values
            payload = [values.data.cast("B") if values.size else memoryview(b""), memoryview(self._delta.buffers)]
            self._writer.append(fields, payload)
            return
        self._writer.append(fields)

    def write_end(self, cluster: Cluster) -> None:
        """Record the end of the run."""
        found = digest(cluster.parameters, cluster.buffers)
        self._writer.append({"event": "ended", "clock": cluster.clock, "digest": found, "at": 0.0})

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
