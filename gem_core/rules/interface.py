"""What an update rule is: state in, statistics out. It never locks, logs or reads a clock (DESIGN.md, section 2).

Nothing here is thread-safe: whoever calls `commit` makes sure that nobody else touches the same parameters or the same
worker's state meanwhile.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gem_core.errors import RuleError, SizeMismatchError
from gem_core.rule_settings import Setting
from gem_core.rules.blocks import PARALLEL_FROM
from gem_core.threads import apply_thread_count, require_threads

__all__ = ["Setting", "Statistics", "UpdateRule", "WorkerState", "WorkerStep"]


class Statistics(NamedTuple):
    """What one commit did.

    The first three are over the elements with delta != 0, and 0 when there are none: there pi cannot change anything.
    The norms are Euclidean, over all elements: within 1e-6, and finite for every delta that staging lets through, as
    long as the parameters are.

    Attributes:
        mean_pi: mean of pi; a rule without a pi reports the factor by which it applied the delta.
        blocked_fraction: fraction with pi = pi_min: nothing (or the least) of delta was applied. Without a pi 1 for a
            commit that was dropped, else 0.
        clamped_fraction: fraction with pi = pi_max. 0 without a pi.
        proxy_norm: of kappa * m, the energy proxy, after the commit; of another rule's moment; 0 without one.
        drift_norm: of theta - s before the commit: what others did since this worker's snapshot.
        delta_norm: of delta.
        update_norm: of what was added to theta.
    """

    mean_pi: float
    blocked_fraction: float
    clamped_fraction: float
    proxy_norm: float
    drift_norm: float
    delta_norm: float
    update_norm: float


class WorkerState:
    """What a rule keeps of one worker.

    Attributes:
        snapshot: s_w, float32, shape (n,): exactly the parameters that the worker holds, which the server sends it. A
            rule's subclass adds whatever else it keeps. Whoever has the state may put another array in its place.
    """

    __slots__ = ("snapshot",)

    def __init__(self, snapshot: NDArray[np.float32]) -> None:
        self.snapshot = snapshot


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """What a worker does between two commits: local steps of plain SGD from its snapshot, each w += -eta * gradient.

    Attributes:
        local_steps: how many, at least 1.
        normalise: commit their sum divided by `local_steps`; else the sum.
    """

    local_steps: int = 1
    normalise: bool = False


class UpdateRule(ABC):
    """A way to apply a worker's delta to the central variable. One subclass, in one file, a rule.

    One object serves one run, because a rule may keep vectors of the whole run: those it makes with the first worker.

    Attributes:
        name: what `create_rule` and `--rule` call it.
        vectors_per_worker: float32 vectors of the model's size that one worker's state takes.
        vectors_per_run: those that the rule itself keeps, however many workers there are.
        has_factors: whether it scales each element of a delta by a factor of its own, which `factors` tells.
        sends_parameters: whether a snapshot is a copy of theta. Where it is not, what a worker holds cannot be told
            from its version alone, and nobody may take it for theta.
        known_settings: what can be set.
        settings: the values of this rule, by name; read-only.

    Raises:
        RuleError: a setting that the rule does not know, or a value out of range.
    """

    name: ClassVar[str]
    vectors_per_worker: int
    vectors_per_run: int = 0
    has_factors: ClassVar[bool] = False
    sends_parameters: ClassVar[bool] = True
    known_settings: ClassVar[tuple[Setting, ...]] = ()

    settings: Mapping[str, float]

    def __init__(self, settings: Mapping[str, float]) -> None:
        values = {known.name: float(known.default) for known in self.known_settings}
        for name, value in settings.items():
            if name not in values:
                listed = ", ".join(values) or "none"
                raise RuleError(f"rule {self.name!r} has no setting {name!r}; its settings are: {listed}")
            values[name] = _number(self.name, name, value)
        for known in self.known_settings:
            if not known.least <= values[known.name] <= known.most:
                raise RuleError(
                    f"rule {self.name!r}: {known.name} = {values[known.name]:g} is out of range; "
                    f"choose {known.least:g} to {known.most:g}"
                )
            if known.whole and not values[known.name].is_integer():
                raise RuleError(f"rule {self.name!r}: {known.name} = {values[known.name]:g} must be a whole number")
        self.settings = MappingProxyType(values)
        self._is_warm = False

    @property
    def worker_step(self) -> WorkerStep:
        """What workers do between two commits: one step, unless a rule says otherwise."""
        return WorkerStep()

    @abstractmethod
    def new_worker(self, parameters: NDArray[np.float32]) -> WorkerState:
        """State of a worker that begins at `parameters` (theta; float32, shape (n,)), which are copied."""

    def refresh(self, parameters: NDArray[np.float32], state: WorkerState) -> None:
        """Make the state's snapshot anew from `parameters` (theta), for a worker that pulls; in place.

        What else the state keeps stays. Copies theta, unless a rule says otherwise.
        """
        np.copyto(state.snapshot, parameters)

    def forget_worker(self, state: WorkerState) -> None:  # noqa: B027  (most rules have nothing to do)
        """The worker of `state` has gone: take out what it has left in the vectors of the run.

        A commit that still comes with this state is as one of a new worker.
        """

    def commit(
        self,
        parameters: NDArray[np.float32],
        state: WorkerState,
        delta: NDArray[np.float32],
        staleness: int,
    ) -> Statistics:
        """Apply `delta` to `parameters` in place, and make the state's snapshot what the worker gets: mostly theta.

        Releases the interpreter lock while it works, and allocates nothing of the model's size.

        Args:
            parameters: theta, the central variable; float32, shape (n,), contiguous.
            state: of the worker whose delta it is; made by this rule's `new_worker`.
            delta: -eta * gradient, or what came of the local steps that `worker_step` asks for; float32, shape (n,),
                contiguous, finite; only read.
            staleness: commits applied since the snapshot: clock now - clock of the snapshot.

        Raises:
            SizeMismatchError: the arrays are not contiguous float32 vectors of one length.
            RuleError: staleness is negative.
        """
        for what, array in (("parameters", parameters), ("snapshot", state.snapshot), ("delta", delta)):
            if array.dtype != np.float32 or array.shape != parameters.shape or not array.flags.c_contiguous:
                raise SizeMismatchError(
                    f"{what}: {array.dtype} of shape {array.shape}; a commit needs contiguous float32 vectors of "
                    f"one length (the parameters have shape {parameters.shape})"
                )
        if staleness < 0:
            raise RuleError(f"staleness {staleness}: the snapshot cannot be newer than the parameters")
        if not self._is_warm:
            self.warm_up()
        parallel = self.is_parallel(delta.size)
        if parallel:
            apply_thread_count()
        return self._commit(parameters, state, delta, staleness, parallel)

    def factors(
        self,
        parameters: NDArray[np.float32],
        state: WorkerState,
        delta: NDArray[np.float32],
        at: NDArray[np.int64] | slice,
    ) -> NDArray[np.float32] | None:
        """What `commit` would scale the elements `at` of `delta` by (pi of `gem`), were it called with these now.

        Changes nothing, and is not what commits are computed with: it is for whoever watches some of the elements.
        None: the rule has no factor by element (`has_factors`).
        """
        return None

    def is_parallel(self, elements: int) -> bool:
        """Whether a commit of so many elements runs on several threads.

        Those that do must all be launched from one thread. Those that do not take well under a millisecond, on the
        thread that calls.
        """
        return elements >= PARALLEL_FROM

    def warm_up(self) -> None:
        """Compile (or load from Numba's cache) all that `commit` needs, and start the threads.

        Raises:
            ThreadingError: this machine cannot run parallel kernels safely.
        """
        require_threads()
        self._is_warm = True
        for parallel in (False, True):
            rule = type(self)(self.settings)  # so that nothing of this is left in the vectors of the run
            parameters = np.zeros(1, np.float32)
            rule._commit(parameters, rule.new_worker(parameters), np.ones(1, np.float32), 0, parallel)

    @abstractmethod
    def _commit(
        self,
        parameters: NDArray[np.float32],
        state: WorkerState,
        delta: NDArray[np.float32],
        staleness: int,
        parallel: bool,
    ) -> Statistics:
        """`commit` with checked arguments, by the parallel or by the serial kernel."""

    def __repr__(self) -> str:
        listed = ", ".join(f"{name}={value:g}" for name, value in self.settings.items())
        return f"<rule {self.name}({listed})>"


def _number(rule: str, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RuleError(f"rule {rule!r}: {name} = {value!r} is not a finite number")
    return float(value)
