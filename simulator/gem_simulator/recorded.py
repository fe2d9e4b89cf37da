"""Reads from a trace the order of its events, and the compute times of its workers."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_core import Layout, LayoutError, WireType
from gem_core.registry import DIRECTIONS, Direction
from gem_core.wire_types import BLOCKS
from gem_simulator.errors import SimulationError
from gem_simulator.events import Event, Kind
from gem_trace import DamageError, Record, read_records
from gem_trace.files import map_file
from gem_trace.format import FORMAT, why_unreadable


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded run. `events` and `payloads` read the file again.

    Attributes:
        parameters: the first parameters, float32[layout.parameter_count].
        rest: the bytes of the first BUFFERs.
        batch_size: samples in a commit.
        digest: digest of the final state. None if the trace is incomplete.
        forgotten: sessions that the rule forgot.
    """

    path: Path
    rule: str
    rule_settings: dict[str, float]
    eta: float
    direction: Direction
    clip_norm: float
    seed: int
    layout: Layout
    parameters: NDArray[np.float32]
    rest: bytes
    batch_size: int
    delta_wire: WireType
    parameter_wire: WireType
    workers: int
    commits: int
    digest: str | None
    forgotten: frozenset[int]

    def events(self) -> Iterator[Event]:
        """Yield the events in the order of serving, with times in seconds since the start."""
        ranks: dict[int, int] = {}
        for record in _records(self.path):
            event, name = record.event, record.event["event"]
            if name == "joined":
                ranks[event["session"]] = event["rank"]
            if name == "forgotten":
                yield Event(event["at"], Kind.LEFT, ranks[event["session"]])
            elif name in ("joined", "pulled", "committed", "left"):
                if name == "left" and event["session"] in self.forgotten:
                    continue  # may still commit
                waited = max(0.0, event["at"] - event["queued_at"]) if "queued_at" in event else 0.0
                yield Event(event["at"], Kind(name), ranks[event["session"]], waited)

    def payloads(self) -> Iterator[memoryview]:
        """Yield the payload of each commit: its float32 delta, followed by the BUFFERs."""
        return (record.payload for record in _records(self.path) if record.event["event"] == "committed")


def read_recorded(path: Path) -> Recorded:
    """Read a run without rejoins or repeated pulls. Raises SimulationError."""
    try:
        return _read(path)
    except (KeyError, TypeError, ValueError, LayoutError) as error:
        raise SimulationError(f"{path} is not a trace of this version of gemps ({FORMAT}): {error!r}") from error


def compute_times(path: Path) -> dict[int, list[float]]:
    """Return the seconds from each reply to the next commit, by the worker's rank.

    Raises SimulationError, also without repeated commits.
    """
    answered: dict[int, float] = {}
    ranks: dict[int, int] = {}
    times: defaultdict[int, list[float]] = defaultdict(list)
    try:
        for record in _records(path):
            event = record.event
            if event["event"] == "joined":
                ranks[event["session"]] = event["rank"]
            elif event["event"] == "committed":
                session = event["session"]
                if session in answered:
                    times[ranks[session]].append(max(0.0, event["queued_at"] - answered[session]))
                answered[session] = event["at"]
    except (KeyError, TypeError, ValueError) as error:
        raise SimulationError(f"{path} is not a trace of this version of gemps ({FORMAT}): {error!r}") from error
    if not times:
        raise SimulationError(
            f"{path}: no worker committed twice, so there is no compute time in it: record for longer"
        )
    return dict(times)


def _read(path: Path) -> Recorded:
    started: dict[str, Any] | None = None
    first: Record | None = None
    joined: dict[int, dict[str, Any]] = {}
    samples: set[int] = set()
    forgotten: set[int] = set()
    commits, digest = 0, None
    for record in _records(path):
        event = record.event
        name = event["event"]
        if name == "started":
            if reason := why_unreadable(event):
                raise SimulationError(f"{path}: {reason}")
            direction = event["settings"].get("direction", "gradient")  # absent in older traces
            _refuse(direction not in DIRECTIONS, path, f"its workers committed direction {direction}, which is gone")
            _refuse(started is not None, path, "the server was started more than once")
            started = event
        elif name == "parameters":
            _refuse(event["clock"] != 1, path, "it does not begin with the run's first parameters")
            _refuse("groups" in event, path, "its deltas are of a script's optimizer, and the script is not in it")
            first = record
        elif name == "joined":
            _refuse(any(other["rank"] == event["rank"] for other in joined.values()), path, "a worker joined twice")
            joined[event["session"]] = event
        elif name == "wire-types":
            _refuse(True, path, "a worker changed its wire types during the run (record with --network fast)")
        elif name == "pulled":
            _refuse(not event["reset"], path, "a worker pulled again during the run")
        elif name == "committed":
            commits += 1
            samples.add(event["samples"])
        elif name == "forgotten":
            forgotten.add(event["session"])
        elif name == "ended":
            digest = event["digest"]
    if started is None or first is None or not commits:
        raise SimulationError(f"{path} has no commits: record a run with gemps train --record FILE")
    settings = started["settings"]
    _refuse(settings["eta_schedule"] != "constant", path, "eta was not constant")
    _refuse(len(samples) > 1, path, "batches had several sizes")
    ranks = sorted(event["rank"] for event in joined.values())
    _refuse(ranks != list(range(len(ranks))), path, f"its workers have the ranks {ranks}")
    wires = {(event["delta_wire_type"], event["parameter_wire_type"]) for event in joined.values()}
    _refuse(len(wires) > 1, path, "its workers used several wire types")
    delta_wire, parameter_wire = wires.pop()
    for wire in (delta_wire, parameter_wire):
        _refuse(WireType[wire] in BLOCKS, path, f"a transfer in {wire} depends on earlier ones")
    layout = Layout.from_description(first.event["layout"])
    return Recorded(
        path,
        started["rule"],
        dict(started["rule_settings"]),
        float(settings["eta"]),
        settings.get("direction", "gradient"),  # absent in older traces
        float(settings.get("clip_norm", 0.0)),
        int(settings["seed"]),
        layout,
        np.frombuffer(first.payload, np.float32, layout.parameter_count),
        bytes(first.payload[4 * layout.parameter_count :]),
        samples.pop(),
        WireType[delta_wire],
        WireType[parameter_wire],
        len(ranks),
        commits,
        digest,
        frozenset(forgotten),
    )


def _refuse(wrong: object, path: Path, what: str) -> None:
    if wrong:
        raise SimulationError(
            f"{path}: {what}. Such a run cannot be followed gradient by gradient: gemps replay {path} applies its "
            "recorded deltas again"
        )


def _records(path: Path) -> Iterator[Record]:
    try:
        data = map_file(path)
    except OSError as error:
        raise SimulationError(f"the trace {path} cannot be read: {error.strerror}") from error
    try:
        for number, record in enumerate(read_records(data, check=False)):
            if number == 0 and record.event["event"] != "started":
                break
            yield record
    except DamageError as error:
        raise SimulationError(f"the trace {path} is {error}") from error
