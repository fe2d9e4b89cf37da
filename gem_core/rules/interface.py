"""What an update rule is: state in, statistics out. It never locks, logs or reads a clock (DESIGN.md, section 2).

Nothing here is thread-safe: whoever calls `commit` makes sure that nobody else touches the same parameters or the same
worker's state meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gem_core.aligned import aligned_copy, aligned_zeros
from gem_core.errors import RuleError, SizeMismatchError
from gem_core.rule_settings import Setting
from gem_core.rules.blocks import PARALLEL_FROM
from gem_core.rules.kernel import NO_LIMITS, Kernel, Statistics
from gem_core.threads import apply_thread_count, require_threads

__all__ = ["Setting", "Statistics", "UpdateRule", "WorkerState", "WorkerStep"]


class WorkerState:
    """What a rule keeps of one worker.

    Attributes:
        snapshot: s_w, float32, shape (n,): exactly the parameters that the worker holds, which the server sends it. The
            state's owner may replace the array.
        vectors: what else the rule keeps, in the order of its `kernel`: float32, shape (n,) each.
    """

    __slots__ = ("snapshot", "vectors")

    def __init__(self, snapshot: NDArray[np.float32], vectors: tuple[NDArray[np.float32], ...] = ()) -> None:
        self.snapshot = snapshot
        self.vectors = vectors


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """What a worker does between two commits: local steps of plain SGD from its snapshot, each w += -eta * gradient.

    Attributes:
        local_steps: how many, at least 1.
        normalise: commit their sum divided by `local_steps`; else the sum.
    """

    local_steps: int = 1
    normalise: bool = False


class UpdateRule:
    """A way to apply a worker's delta to the central variable. One subclass, in one file, a rule.

    A subclass either has a `kernel` and its `_scalars`, or a `_commit`. One object serves one run, because a rule may
    keep vectors of the whole run: it makes those with the first worker.

    Attributes:
        name: what `create_rule` and `--rule` call it.
        kernel: its elementwise update, over theta, the snapshot, the worker's vectors and the run's.
        vectors_per_worker: float32 vectors of the model's size that one worker's state takes, its snapshot included.
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
    kernel: Kernel
    vectors_per_worker: int = 1
    vectors_per_run: int = 0
    has_factors: ClassVar[bool] = False
    sends_parameters: ClassVar[bool] = True
    known_settings: ClassVar[tuple[Setting, ...]] = ()

    settings: Mapping[str, float]
    # The least and the largest factor, which count as blocked and clamped, and what the proxy's norm is multiplied by.
    _limits: tuple[np.float32, ...] = NO_LIMITS
    _proxy_scale: float = 1.0

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
        self._vectors: tuple[NDArray[np.float32], ...] = ()

    @property
    def worker_step(self) -> WorkerStep:
        """What workers do between two commits: one step, unless a rule says otherwise."""
        return WorkerStep()

    def new_worker(self, parameters: NDArray[np.float32]) -> WorkerState:
        """State of a worker that begins at `parameters` (theta; float32, shape (n,)), which are copied.

        Its other vectors are 0, unless a rule says otherwise.

        Raises:
            SizeMismatchError: the rule keeps vectors of a run with another n.
        """
        self.vectors_of_run(parameters)
        others = tuple(aligned_zeros(parameters.size) for _ in range(self.vectors_per_worker - 1))
        return WorkerState(aligned_copy(parameters), others)

    def vectors_of_run(self, parameters: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
        """What the rule keeps of the run, float32 of the shape of `parameters`; 0 at first.

        Raises:
            SizeMismatchError: an earlier call had another n.
        """
        if len(self._vectors) != self.vectors_per_run:
            self._vectors = tuple(aligned_zeros(parameters.size) for _ in range(self.vectors_per_run))
        if self._vectors and self._vectors[0].shape != parameters.shape:
            raise SizeMismatchError(
                f"parameters of shape {parameters.shape}, and this rule keeps vectors of a run with "
                f"{self._vectors[0].shape}: make a rule of its own for each run"
            )
        return self._vectors

    def refresh(self, parameters: NDArray[np.float32], state: WorkerState) -> None:
        """Make the state's snapshot anew from `parameters` (theta), for a worker that pulls; in place.

        What else the state keeps stays. Copies theta, unless a rule says otherwise.
        """
        np.copyto(state.snapshot, parameters)

    def forget_worker(self, state: WorkerState) -> None:
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

    def _commit(
        self,
        parameters: NDArray[np.float32],
        state: WorkerState,
        delta: NDArray[np.float32],
        staleness: int,
        parallel: bool,
    ) -> Statistics:
        """`commit` with checked arguments, on several threads or on this one."""
        vectors = (*state.vectors, *self.vectors_of_run(parameters)) if self.vectors_per_run else state.vectors
        scalars = (*self._scalars(staleness), *self._limits)
        return self.kernel(parameters, state.snapshot, vectors, delta, scalars, self._proxy_scale, parallel)

    def _scalars(self, staleness: int) -> tuple[np.float32, ...]:
        """The arguments of the kernel's update behind delta; called once for each commit."""
        return ()

    def __repr__(self) -> str:
        listed = ", ".join(f"{name}={value:g}" for name, value in self.settings.items())
        return f"<rule {self.name}({listed})>"


def _number(rule: str, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RuleError(f"rule {rule!r}: {name} = {value!r} is not a finite number")
    return float(value)
