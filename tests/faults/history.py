"""What the workers saw, and what the central variable must then be: judged outside the server, with gem_core alone.

Each worker logs its pulls and commits (session, sequence, the delta's seed, the verdict's version, a checksum of the
reply). From these, the clocks order everything: whoever pulled clock c holds theta as it was then, and the commit
with clock c + 1 came next.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

import gem_core
from tests.wire.model import Model, Values
from tests.wire.oracle import GEM
from tests.wire.transfer import crc32c


@dataclass(frozen=True)
class Pulled:
    """A worker holds what was at this clock."""

    worker: str
    incarnation: int
    clock: int
    checksum: int


@dataclass(frozen=True)
class Applied:
    """A commit that has a verdict. `acknowledged`: before the crash, or only as a duplicate after it."""

    worker: str
    session: bytes
    sequence: int
    seed: int
    base_clock: int
    incarnation: int
    clock: int
    checksum: int | None
    acknowledged: bool = True


@dataclass
class History:
    """All that was logged; `first`: the first parameters, which are clock 1."""

    model: Model
    first: Values
    pulls: list[Pulled] = field(default_factory=list)
    commits: list[Applied] = field(default_factory=list)

    def forget_after(self, clock: int) -> list[Applied]:
        """The server came back at an earlier clock: what came after it is lost. Returns the lost commits."""
        lost = [commit for commit in self.commits if commit.clock > clock]
        self.commits = [commit for commit in self.commits if commit.clock <= clock]
        self.pulls = [pull for pull in self.pulls if pull.clock <= clock]
        return lost

    def check_sequences(self) -> None:
        """Every session's commits are 1, 2, 3, ... and every clock belongs to one commit."""
        clocks = sorted(commit.clock for commit in self.commits)
        assert clocks == list(range(2, len(clocks) + 2)), "a clock is missing, or two commits share one"
        by_session: dict[bytes, list[int]] = {}
        for commit in sorted(self.commits, key=lambda commit: commit.clock):
            by_session.setdefault(commit.session, []).append(commit.sequence)
        for sequences in by_session.values():
            assert sequences == list(range(1, len(sequences) + 1)), "a commit is missing or was applied twice"

    def rebuild(self, deltas: "Deltas") -> bytes:
        """The payload of the central variable (parameters, buffers), bit for bit; checks every reply on the way."""
        return self.states(deltas)[len(self.commits) + 1]

    def states(self, deltas: "Deltas") -> dict[int, bytes]:
        """The same at every clock."""
        self.check_sequences()
        rule = gem_core.create_rule("gem", **GEM)
        theta = self.first.parameters.astype(np.float32)
        buffers = self.first.rest[: self.model.byte_count() - 4 * self.model.parameter_count]
        states: dict[tuple[str, int], object] = {}
        held: dict[tuple[str, int], int] = {}
        pulls = _by_clock(self.pulls)
        commits = {commit.clock: commit for commit in self.commits}
        found: dict[int, bytes] = {}
        for clock in range(1, len(commits) + 2):
            if clock > 1:
                commit = commits[clock]
                who = (commit.worker, commit.incarnation)
                delta = deltas.of(commit.worker, commit.seed)
                assert held[who] == commit.base_clock
                rule.commit(theta, states[who], delta.parameters.astype(np.float32), clock - 1 - held[who])
                held[who] = clock
                buffers = delta.rest
                self._check(commit.checksum, theta, buffers)
            for pull in pulls.get(clock, ()):
                who = (pull.worker, pull.incarnation)
                if who in states:
                    states[who].snapshot[:] = theta
                else:
                    states[who] = rule.new_worker(theta)
                held[who] = clock
                self._check(pull.checksum, theta, buffers)
            found[clock] = self.model.encode(Values(theta, buffers))
        return found

    def _check(self, checksum: int | None, theta: np.ndarray, buffers: bytes) -> None:
        if checksum is not None:
            assert crc32c(self.model.encode(Values(theta, buffers))) == checksum, "a worker was sent other parameters"


class Deltas:
    """The deltas, made anew from their seeds."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def of(self, worker: str, seed: int) -> Values:
        return self._model.random_values(seed, scale=0.01)


def _by_clock(pulls: Iterable[Pulled]) -> dict[int, list[Pulled]]:
    found: dict[int, list[Pulled]] = {}
    for pull in pulls:
        found.setdefault(pull.clock, []).append(pull)
    return found
