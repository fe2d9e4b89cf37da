"""Replays a trace, and compares statistics and parameters with the recorded ones."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from gem_core import Layout, LayoutError, RuleError, RuleState, Statistics, UpdateRule, create_rule
from gem_core.aligned import aligned_copy
from gem_trace.files import map_file
from gem_trace.format import FORMAT, DamageError, Record, digest, read_records, why_unreadable

# Norms may differ by this factor, because the order of summation depends on the processor.
STATISTICS_TOLERANCE = 1e-9


class ReplayError(Exception):
    """The trace is unusable, or the replay differs."""


@dataclass(slots=True)
class Replayed:
    """A replay's result.

    Attributes:
        clock: the final clock, which is 1 plus the number of commits that count.
        parameters: theta, float32, shape (layout.parameter_count,).
        resets: how often a worker's state was created anew.
        lost: commits that were applied, and then lost in a restart.
        missing: commits that count, and are not in the trace.
        compared_starts: restarts whose recovered parameters were equal to those of the replay.
        torn_at: offset of an incomplete last record, or None.
    """

    layout: Layout
    rule: UpdateRule
    clock: int
    parameters: NDArray[np.float32]
    buffers: bytes
    starts: int = 0
    workers: set[str] = field(default_factory=set)
    sessions: int = 0
    resets: int = 0
    commits: int = 0
    lost: int = 0
    missing: int = 0
    compared_starts: int = 0
    compared_end: bool = False
    end_digest: str = ""
    torn_at: int | None = None


def replay(
    path: Path, *, against: tuple[int, str] | None = None, on_commit: Callable[[int], None] = lambda clock: None
) -> Replayed:
    """Replay a trace. `against` is a clock, and the digest that is expected at it.

    Raises:
        ReplayError: the file is unusable, or the replay differs.
        OSError: the file cannot be read.
    """
    data = map_file(path)
    try:
        plan = _plan(read_records(data, check=False), against[0] if against else None)
        state = _Replay(plan, on_commit)
        end = 0
        for record in read_records(data):
            state.process(record)
            end = record.end
        if not end:
            raise ReplayError(f"this is not a trace of gemps ({FORMAT}), or not even its first record is whole")
        if against is not None:
            state.check(*against)
        done = state.done()
    except (DamageError, LayoutError, RuleError) as error:
        raise ReplayError(f"{path}: {error}") from error
    except ReplayError as error:
        raise ReplayError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ReplayError(f"{path} is not a trace of this version of gemps ({FORMAT}): {error!r}") from error
    done.torn_at = end if end < data.nbytes else None
    return done


@dataclass(slots=True)
class _Piece:
    first: int
    last: int
    wanted: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Plan:
    """Which pieces of the trace to replay.

    `origins[k]` is the piece that piece k continues, and `asked` is the piece that has the requested clock.
    """

    pieces: list[_Piece] = field(default_factory=list)
    origins: list[int | None] = field(default_factory=list)
    lost: int = 0
    missing: int = 0
    asked: int | None = None


def _plan(records: Iterator[Record], asked: int | None) -> _Plan:
    plan = _Plan()
    line: list[int] = []  # counted, oldest first
    for record in records:
        event = record.event
        if event["event"] == "committed" and plan.pieces:
            plan.pieces[-1].last = int(event["clock"])
        if event["event"] != "parameters":
            continue
        clock = int(event["clock"])
        reached = plan.pieces[line[-1]].last if line else clock
        while line and plan.pieces[line[-1]].first > clock:
            line.pop()
        origin = line[-1] if line and plan.pieces[line[-1]].last >= clock else None
        if origin is not None:
            plan.pieces[origin].wanted.add(clock)
        plan.lost += max(0, reached - clock)
        plan.missing += max(0, clock - reached)
        line.append(len(plan.pieces))
        plan.pieces.append(_Piece(clock, clock))
        plan.origins.append(origin)
    if asked is not None:
        having = [number for number in line if plan.pieces[number].first <= asked <= plan.pieces[number].last]
        plan.asked = having[-1] if having else None
        for number in having[-1:]:
            plan.pieces[number].wanted.add(asked)
    return plan


@dataclass(slots=True)
class _Session:
    """A worker's session. `clock` is that of its snapshot."""

    worker: str
    state: RuleState | None = None
    clock: int = 0
    sequence: int | None = None


class _KeptState(NamedTuple):
    name: str
    digest: str

    @classmethod
    def of(cls, rule: UpdateRule, parameters: NDArray[np.float32]) -> Self:
        vectors = rule.vectors_of_run(parameters) if rule.kept_vectors else ()
        scalars = json.dumps(rule.kept_scalars, sort_keys=True).encode()
        return cls(rule.name, digest(np.concatenate([parameters[:0], *vectors]), scalars))


class _Replay:
    def __init__(self, plan: _Plan, on_commit: Callable[[int], None]) -> None:
        self._plan = plan
        self._on_commit = on_commit
        self._piece = -1
        self._rule: UpdateRule | None = None
        self._sessions: dict[int, _Session] = {}
        self._met: set[str] = set()
        self._digests: dict[tuple[int, int], str] = {}
        self._rule_states: dict[tuple[int, int], _KeptState] = {}
        self._now: Replayed | None = None
        self._starts = 0
        self._joins = 0
        self._take: dict[str, Callable[[Record], None]] = {
            "started": self._started,
            "parameters": self._parameters,
            "joined": self._joined,
            "left": lambda record: None,
            "wire-types": lambda record: None,  # deltas are in it as they were applied
            "pulled": self._pulled,
            "forgotten": self._forgotten,
            "committed": self._committed,
            "ended": self._ended,
        }

    def process(self, record: Record) -> None:
        name = record.event["event"]
        if self._rule is None and name != "started":
            raise ReplayError(f"it begins with {name!r} where a server starts: not a whole trace")
        if name not in self._take:
            raise ReplayError(f"the event {name!r} at offset {record.offset} is not known to this version of gemps")
        self._take[name](record)

    def check(self, clock: int, expected: str) -> None:
        if self._plan.asked is None:
            raise ReplayError(f"clock {clock}, with which to compare, is not in it, or it breaks off before")
        if self._digests[self._plan.asked, clock] != expected:
            raise ReplayError(f"at clock {clock} it has other parameters than what it is compared with")

    def done(self) -> Replayed:
        now = self._now
        if now is None:
            raise ReplayError("there is nothing to replay: no worker had brought parameters yet")
        now.starts, now.sessions, now.workers = self._starts, self._joins, self._met
        now.lost, now.missing = self._plan.lost, self._plan.missing
        now.end_digest = digest(now.parameters, now.buffers)
        return now

    def _started(self, record: Record) -> None:
        event = record.event
        if reason := why_unreadable(event):
            raise ReplayError(reason)
        self._rule = create_rule(event["rule"], **event["rule_settings"])
        self._sessions = {}
        self._starts += 1

    def _parameters(self, record: Record) -> None:
        event, before = record.event, self._now
        layout = Layout.from_description(event["layout"])
        if before is not None and before.layout != layout:
            raise ReplayError(f"another model follows at offset {record.offset}: these are traces of two runs")
        assert self._rule is not None
        count, clock = layout.parameter_count, int(event["clock"])
        kept = event.get("rule_state")  # absent in older traces and where the rule begins
        vectors = 1 + int(kept["vectors"] if kept else 0)
        if record.payload.nbytes != vectors * 4 * count + layout.buffer_bytes:
            raise ReplayError(f"the parameters at offset {record.offset} have another size than their layout says")
        parameters = np.frombuffer(record.payload, np.float32, count).copy()
        rest = bytes(record.payload[4 * count :])
        buffers, rest = rest[: layout.buffer_bytes], rest[layout.buffer_bytes :]
        groups = event.get("groups")
        if groups is None:
            self._rule.begin(layout)
        else:
            self._rule.begin(layout, groups)
        if kept:
            values = np.frombuffer(rest, np.float32).reshape(vectors - 1, count)
            self._rule.restore_run([aligned_copy(one) for one in values], kept["scalars"])
        now = Replayed(layout, self._rule, clock, parameters, buffers)
        if before is not None:
            now.commits, now.resets, now.compared_starts = before.commits, before.resets, before.compared_starts
        self._now = now
        self._piece += 1
        origin = self._plan.origins[self._piece]
        if origin is not None:
            if self._digests[origin, clock] != digest(parameters, buffers):
                raise ReplayError(
                    f"the server came back at clock {clock} with other parameters than the trace had there (offset "
                    f"{record.offset})"
                )
            before_rule, rule = self._rule_states[origin, clock], _KeptState.of(self._rule, parameters)
            if kept and before_rule.name == rule.name and before_rule.digest != rule.digest:
                raise ReplayError(
                    f"the server came back at clock {clock} with another state of rule {self._rule.name} than "
                    f"the trace had there (offset {record.offset})"
                )
            now.compared_starts += 1
        self._store_digest()

    def _joined(self, record: Record) -> None:
        worker = str(record.event["worker"])
        self._sessions[record.event["session"]] = _Session(worker)
        self._joins += 1

    def _pulled(self, record: Record) -> None:
        now, session = self._known(record)
        assert self._rule is not None
        if record.event["reset"]:
            session.state = self._rule.new_worker(now.parameters)
            now.resets += session.worker in self._met
            self._met.add(session.worker)
        elif session.state is None:
            raise ReplayError(f"at offset {record.offset} a session pulls again that never pulled")
        else:
            self._rule.refresh(now.parameters, session.state)
        session.clock = now.clock

    def _forgotten(self, record: Record) -> None:
        _, session = self._known(record)
        assert self._rule is not None
        if session.state is None:
            raise ReplayError(f"at offset {record.offset} a session is forgotten that never pulled")
        self._rule.forget_worker(session.state)
        session.state = None

    def _committed(self, record: Record) -> None:
        event = record.event
        now, session = self._known(record)
        assert self._rule is not None
        clock, sequence = int(event["clock"]), int(event["sequence"])
        place = f"clock {clock} (offset {record.offset})"
        if session.state is None:
            raise ReplayError(f"{place} is of a session that has not pulled")
        base = int(event["base"])
        staleness = now.clock - base
        if clock != now.clock + 1 or staleness != event["staleness"]:
            raise ReplayError(f"{place} does not follow from what came before it: clock {now.clock}")
        if session.sequence is not None and sequence != session.sequence + 1:
            raise ReplayError(f"{place}: sequence {sequence} comes after {session.sequence}")
        count = now.layout.parameter_count
        if record.payload.nbytes != 4 * count + now.layout.buffer_bytes:
            raise ReplayError(f"{place}: the delta has another size than the layout says")
        delta = np.frombuffer(record.payload, np.float32, count)
        if session.clock != base:
            raise ReplayError(
                f"{place} does not follow from what came before it: its session does not hold clock {base}"
            )
        eta, decays = event.get("eta", math.nan), event.get("decays", ())
        found = self._rule.commit(now.parameters, session.state, delta, staleness, eta, decays)
        _compare(found, Statistics(**event["statistics"]), place)
        now.buffers = bytes(record.payload[4 * count :])
        now.clock = clock
        session.clock = clock
        now.commits += 1
        session.sequence = sequence
        self._store_digest()
        self._on_commit(clock)

    def _ended(self, record: Record) -> None:
        now = self._now
        if now is None or record.event["digest"] is None:
            return
        if record.event["clock"] != now.clock or record.event["digest"] != digest(now.parameters, now.buffers):
            raise ReplayError(
                f"the server ended at clock {record.event['clock']} with other parameters than those of the replay, "
                f"which is at clock {now.clock}"
            )
        now.compared_end = True

    def _known(self, record: Record) -> tuple[Replayed, _Session]:
        session = self._sessions.get(record.event["session"])
        if self._now is None or session is None:
            raise ReplayError(f"at offset {record.offset} a session is named that has not joined, or has no parameters")
        return self._now, session

    def _store_digest(self) -> None:
        now = self._now
        assert now is not None
        now.compared_end = False
        if now.clock in self._plan.pieces[self._piece].wanted:
            self._digests[self._piece, now.clock] = digest(now.parameters, now.buffers)
            self._rule_states[self._piece, now.clock] = _KeptState.of(now.rule, now.parameters)


def _compare(found: Statistics, recorded: Statistics, place: str) -> None:
    for name in Statistics._fields:
        ours, theirs = getattr(found, name), getattr(recorded, name)
        if not math.isclose(ours, theirs, rel_tol=STATISTICS_TOLERANCE):
            raise ReplayError(f"{place}: {name} is {ours!r}, and was {theirs!r} when it was recorded")
