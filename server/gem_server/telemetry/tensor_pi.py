"""Pi per tensor (the paper's figures 9 and 10), sampled: n elements have an error of about 1 / sqrt(n)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gem_core import Layout, RuleState, UpdateRule

MAX_TENSORS = 256  # evenly chosen
MAX_ELEMENTS = 16384  # per sample
ELEMENTS = range(16, 257)  # per tensor
SAMPLES_A_COLUMN = 4
FIRST_COLUMN_SECONDS = 2.0
MAX_COLUMNS = 120

Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Column:
    """Means over samples of each tensor's mean and median; NaN without nonzero delta."""

    run_seconds: float
    clock: int
    samples: int
    mean: Values
    median: Values


class TensorPi:
    """The columns of a run, if the rule has `UpdateRule.factors`.

    Call the result of `due` before the commit is applied; then `take` it. May run on any thread.
    """

    def __init__(self, rule: UpdateRule) -> None:
        self._rule = rule
        self._sampled_elements: _SampledElements | None = None
        self._next = 0.0
        self._gathered: list[Sample] = []
        self.seconds = FIRST_COLUMN_SECONDS
        self.joins = 0  # number of merges
        self.columns: list[Column] = []
        self.names: tuple[str, ...] = ()

    def due(self, run_seconds: float, layout: Layout) -> "Sample | None":
        """A sample for the next commit, if due."""
        if run_seconds < self._next or not self._rule.has_factors:
            return None
        if self._sampled_elements is None:
            self._sampled_elements = _sampled_elements(layout)
            self.names = self._sampled_elements.names
        self._next = run_seconds + self.seconds / SAMPLES_A_COLUMN
        return Sample(self._rule, self._sampled_elements)

    def add_sample(self, sample: "Sample", run_seconds: float, clock: int) -> None:
        """Add a sample of the commit that made `clock`."""
        self._gathered.append(sample)
        if len(self._gathered) < SAMPLES_A_COLUMN:
            return
        mean, median = (_mean_of([getattr(one, name) for one in self._gathered]) for name in ("mean", "median"))
        self.columns.append(Column(run_seconds, clock, len(self._gathered), mean, median))
        self._gathered = []
        if len(self.columns) >= MAX_COLUMNS:
            pairs = zip(self.columns[::2], self.columns[1::2], strict=True)
            self.columns = [_joined(earlier, later) for earlier, later in pairs]
            self.seconds *= 2
            self.joins += 1


class Sample:
    """Observes one commit."""

    __slots__ = ("_rule", "_sampled_elements", "mean", "median")

    def __init__(self, rule: UpdateRule, places: "_SampledElements") -> None:
        self._rule = rule
        self._sampled_elements = places
        self.mean = self.median = np.full(len(places.names), np.nan, np.float32)

    def __call__(self, parameters: Values, state: RuleState, delta: Values) -> None:
        """Observe pi where delta is nonzero, by tensor."""
        places = self._sampled_elements
        factors = self._rule.factors(parameters, state, delta, places.elements.ravel())
        if factors is None:
            return
        table = factors.reshape(places.elements.shape)
        moves = (delta[places.elements] != 0) & places.counts
        table = np.where(moves, table, np.float32(np.nan))
        table.sort(axis=1)  # NaN last
        moving = moves.sum(axis=1)
        some = np.maximum(moving, 1)
        rows = np.arange(len(table))
        median = (table[rows, (some - 1) // 2] + table[rows, some // 2]) / 2
        mean = np.nansum(table, axis=1) / some
        self.mean = np.where(moving > 0, mean, np.nan).astype(np.float32)
        self.median = median.astype(np.float32)


@dataclass(frozen=True, slots=True)
class _SampledElements:
    """A row per tensor; `counts` excludes padding."""

    names: tuple[str, ...]
    elements: NDArray[np.int64]
    counts: NDArray[np.bool_]


def _sampled_elements(layout: Layout) -> _SampledElements:
    tensors = [tensor for tensor in layout.parameters if tensor.elements]
    begins = np.cumsum([0] + [tensor.elements for tensor in tensors[:-1]])
    chosen = np.unique(np.linspace(0, max(0, len(tensors) - 1), min(len(tensors), MAX_TENSORS)).astype(int))
    width = min(max(ELEMENTS.start, MAX_ELEMENTS // max(1, len(chosen))), ELEMENTS.stop - 1)
    elements = np.zeros((len(chosen), width), np.int64)
    counts = np.zeros((len(chosen), width), np.bool_)
    for row, index in enumerate(chosen):
        size = tensors[index].elements
        within = np.unique(np.linspace(0, size - 1, min(size, width)).astype(np.int64))
        elements[row] = begins[index]
        elements[row, : within.size] += within
        counts[row, : within.size] = True
    return _SampledElements(tuple(tensors[index].name for index in chosen), elements, counts)


def _mean_of(rows: list[Values]) -> Values:
    table = np.stack(rows)
    known = ~np.isnan(table)
    total = np.where(known, table, 0).sum(axis=0)
    return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan).astype(np.float32)


def _joined(earlier: Column, later: Column) -> Column:
    mean, median = _mean_of([earlier.mean, later.mean]), _mean_of([earlier.median, later.median])
    return Column(later.run_seconds, later.clock, earlier.samples + later.samples, mean, median)
