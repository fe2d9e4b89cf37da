"""The interface of update rules. Rules must not lock, log or read clocks, and callers serialise access to arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gem_core.aligned import aligned_copy, aligned_zeros
from gem_core.errors import RuleError, SizeMismatchError
from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec
from gem_core.rule_settings import Setting, check_settings
from gem_core.rules.kernel import NO_LIMITS, Decay, Kernel, Statistics
from gem_core.threads import apply_thread_count, require_threads
from gem_core.thresholds import PARALLEL_FROM
from gem_core.worker_step import WorkerStep

__all__ = ["RuleState", "Setting", "Statistics", "UpdateRule", "WorkerStep"]

_FLOAT32 = np.dtype(np.float32)


class RuleState:
    """One worker's state: float32 arrays of shape (n,).

    Attributes:
        snapshot: s_w, which is exactly the worker's parameters. The state's owner may replace the array.
        vectors: the worker's vectors of the `kernel`, in its order.
    """

    __slots__ = ("snapshot", "vectors")

    def __init__(self, snapshot: NDArray[np.float32], vectors: tuple[NDArray[np.float32], ...] = ()) -> None:
        self.snapshot = snapshot
        self.vectors = vectors


class UpdateRule:
    """Applies one run's deltas. Subclasses define `kernel` and `_scalars`, or `_commit`.

    Attributes:
        name: the name for `create_rule` and `--rule`.
        kernel: elementwise update of theta, the snapshot, the worker's vectors and the run's.
        vectors_per_worker: number of vectors of size n for each worker, including the snapshot.
        vectors_per_run: number of vectors of size n for the run.
        scalars_of_run: numbers that belong to the run's vectors, initially `first_scalars`.
        keeps_run: whether the run's vectors and scalars survive a server restart, unlike workers' states.
        needs_eta: whether `commit` requires eta.
        has_factors: whether `factors` is supported.
        has_common_scale: whether the norms of different workers' deltas, per unit of eta, can be compared; else the
            server does not bound them by each other.
        sends_parameters: whether snapshots are copies of theta; else a version does not identify a worker's parameters.

    Raises:
        RuleError: unknown setting, value out of range, or a subclass without `kernel` and `_commit`.
    """

    name: ClassVar[str]
    kernel: Kernel
    vectors_per_worker: int = 1
    vectors_per_run: int = 0
    first_scalars: ClassVar[Mapping[str, float]] = MappingProxyType({})
    keeps_run: ClassVar[bool] = True
    needs_eta: bool = False
    has_factors: ClassVar[bool] = False
    has_common_scale: ClassVar[bool] = True
    sends_parameters: ClassVar[bool] = True
    known_settings: ClassVar[tuple[Setting, ...]] = ()

    settings: Mapping[str, float]
    # Blocked and clamped factors; multiplier of the proxy's norm.
    _limits: tuple[np.float32, ...] = NO_LIMITS
    _proxy_scale: float = 1.0

    def __init__(self, settings: Mapping[str, float]) -> None:
        self.settings = MappingProxyType(check_settings(self.name, self.known_settings, settings))
        if type(self)._commit is UpdateRule._commit and not hasattr(self, "kernel"):
            raise RuleError(f"rule {self.name!r} has no update: define `kernel` or `_commit` in its class")
        self._is_warm = False
        self._vectors: tuple[NDArray[np.float32], ...] = ()
        self.scalars_of_run = dict(self.first_scalars)

    def change_settings(self, settings: Mapping[str, float]) -> None:
        """Become a new rule with these settings, before `begin`, the first worker and the first commit.

        Loaded kernels are kept. Raises RuleError as the constructor, without changes.
        """
        is_warm = self._is_warm
        vars(self).update(vars(type(self)(settings)), _is_warm=is_warm)

    def begin(self, layout: Layout, groups: Sequence[int] | None = None) -> None:
        """Prepare for a layout, before the first worker.

        `groups` is for runs whose commits have decays: for each PARAMETER of the layout, the index of its decay. Raises
        RuleError or SizeMismatchError if they do not fit.
        """

    @property
    def kept_vectors(self) -> int:
        """Number of vectors that survive a restart."""
        return self.vectors_per_run if self.keeps_run else 0

    @property
    def kept_scalars(self) -> dict[str, float]:
        """A copy of the scalars that survive a restart."""
        return dict(self.scalars_of_run) if self.keeps_run else {}

    @property
    def worker_step(self) -> WorkerStep:
        """What a worker does between two commits."""
        return WorkerStep()

    def new_worker(self, parameters: NDArray[np.float32]) -> RuleState:
        """Create a worker's state at a copy of `parameters`. Raises SizeMismatchError."""
        self.vectors_of_run(parameters)
        others = tuple(aligned_zeros(parameters.size) for _ in range(self.vectors_per_worker - 1))
        return RuleState(aligned_copy(parameters), others)

    def vectors_of_run(self, parameters: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
        """The run's vectors, initially 0. Raises SizeMismatchError if n changed."""
        if len(self._vectors) != self.vectors_per_run:
            self._vectors = tuple(aligned_zeros(parameters.size) for _ in range(self.vectors_per_run))
        if self._vectors and self._vectors[0].shape != parameters.shape:
            raise SizeMismatchError(
                f"parameters of shape {parameters.shape}, and this rule keeps vectors of a run with "
                f"{self._vectors[0].shape}: make a new rule for each run"
            )
        return self._vectors

    def restore_run(self, vectors: Sequence[NDArray[np.float32]], scalars: Mapping[str, float]) -> None:
        """Continue with kept vectors (not copied) and scalars. Raises RuleError or SizeMismatchError."""
        if len(vectors) != self.kept_vectors or scalars.keys() != self.kept_scalars.keys():
            raise RuleError(
                f"rule {self.name!r} keeps {self.kept_vectors} vectors and the scalars {sorted(self.kept_scalars)} of "
                f"a run, not {len(vectors)} and {sorted(scalars)}"
            )
        for vector in vectors:
            if not _is_usable(vector, vectors[0].size):
                raise _unusable("a vector of the run", vector, vectors[0].size)
        if self.keeps_run:
            self._vectors = tuple(vectors)
            self.scalars_of_run |= scalars

    def refresh(self, parameters: NDArray[np.float32], state: RuleState) -> None:
        """Update the snapshot in place for a pull, by default to theta. Other vectors stay."""
        np.copyto(state.snapshot, parameters)

    def forget_worker(self, state: RuleState) -> None:
        """Remove a departed worker's share from the run's vectors.

        Later commits with this state count as a new worker's.
        """

    def commit(
        self,
        parameters: NDArray[np.float32],
        state: RuleState,
        delta: NDArray[np.float32],
        staleness: int,
        eta: float = math.nan,
        decays: Sequence[float] = (),
    ) -> Statistics:
        """Apply `delta` to `parameters` in place and update the state. Releases the GIL.

        Args:
            parameters: theta; contiguous, writable float32, shape (n,).
            state: made by this rule's `new_worker`.
            delta: -eta * gradient or `worker_step`'s result; like `parameters`, finite.
            staleness: commits since the snapshot.
            eta: the learning rate in `delta`.
            decays: for rules that derive from `DecayingRule`: the share, from 0 to below 1, that this commit takes from
                theta in each group of `begin`; empty: none.

        Raises:
            SizeMismatchError: wrong type, shape, memory order or alignment.
            TypeError: a vector other than delta cannot be written.
            RuleError: staleness is negative, the rule needs eta and got none, or the decays do not fit.
        """
        if decays:
            raise RuleError(f"rule {self.name!r} takes no decays: commit without them, or use rule 'gem'")
        self._check_vectors(parameters, state)
        if not _is_usable(delta, parameters.size):
            raise _unusable("delta", delta, parameters.size)
        if staleness < 0:
            raise RuleError(f"staleness {staleness}: the snapshot cannot be newer than the parameters")
        if self.needs_eta and not 0 <= eta < math.inf:
            raise RuleError(f"eta {eta}: rule {self.name!r} needs the learning rate in the delta")
        if not self._is_warm:
            self.warm_up()
        parallel = self.is_parallel(delta.size)
        if parallel:
            apply_thread_count()
        return self._commit(parameters, state, delta, staleness, eta, parallel)

    def factors(
        self,
        parameters: NDArray[np.float32],
        state: RuleState,
        delta: NDArray[np.float32],
        at: NDArray[np.int64] | slice,
    ) -> NDArray[np.float32] | None:
        """The factors that `commit` would apply to elements `at`; None: not supported."""
        return None

    def is_parallel(self, elements: int) -> bool:
        """Whether a commit uses several threads; launch such commits from one thread only."""
        return elements >= PARALLEL_FROM

    def warm_up(self) -> None:
        """Load kernels and start threads. Raises ThreadingError."""
        require_threads()
        self._is_warm = True
        rule = type(self)(self.settings)  # keeps run vectors clean
        rule.begin(SMALLEST)
        rule._run_kernels()

    def _run_kernels(self) -> None:
        """Commit with each kernel, to the layout SMALLEST."""
        for parallel in (False, True):
            parameters = np.zeros(1, np.float32)
            self._commit(parameters, self.new_worker(parameters), np.ones(1, np.float32), 0, 1e-6, parallel)

    def _commit(
        self,
        parameters: NDArray[np.float32],
        state: RuleState,
        delta: NDArray[np.float32],
        staleness: int,
        eta: float,
        parallel: bool,
    ) -> Statistics:
        """Implement `commit` with checked arguments."""
        vectors = (*state.vectors, *self.vectors_of_run(parameters)) if self.vectors_per_run else state.vectors
        scalars = (*self._scalars(staleness, eta), *self._limits)
        decay = self._decay(parameters.size, eta)
        return self.kernel(parameters, state.snapshot, vectors, delta, scalars, self._proxy_scale, parallel, decay)

    def _check_vectors(self, parameters: NDArray[np.float32], state: RuleState) -> None:
        """Check what compiled code does not check, such as lengths. Raises SizeMismatchError."""
        size = parameters.size
        if not _is_usable(parameters, size):
            raise _unusable("parameters", parameters, size)
        for array in (state.snapshot, *state.vectors):
            if not _is_usable(array, size):
                what = "snapshot" if array is state.snapshot else "a vector of the state"
                raise _unusable(what, array, size)

    def _decay(self, elements: int, eta: float) -> Decay | None:
        """A commit's weight decay."""
        return None

    def _scalars(self, staleness: int, eta: float) -> tuple[np.float32, ...]:
        """The update's arguments after delta; called once per commit."""
        return ()

    def __repr__(self) -> str:
        listed = ", ".join(f"{name}={value:g}" for name, value in self.settings.items())
        return f"<rule {self.name}({listed})>"


def _is_usable(array: NDArray[Any], size: int) -> bool:
    flags = array.flags
    return array.dtype == _FLOAT32 and array.shape == (size,) and flags.c_contiguous and flags.aligned


def _unusable(what: str, array: NDArray[Any], size: int) -> SizeMismatchError:
    return SizeMismatchError(
        f"{what}: {array.dtype} of shape {array.shape}; a commit needs contiguous, aligned {_FLOAT32} vectors "
        f"of one length ({size})"
    )


# Of rules that only load their kernels.
SMALLEST = Layout([TensorSpec("weight", (1,), ElementType.FLOAT32, TensorKind.PARAMETER)])
