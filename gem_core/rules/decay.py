"""Decoupled weight decay: Loshchilov and Hutter, 2019, arXiv 1711.05101.

    theta <- kept * theta + update
    s_w   <- theta

`update`: the rule's, from theta before. `kept` is, of each tensor, one of

    1 - eta * weight_decay   matrices and embeddings, with the setting weight_decay
    1 - decays[group]        all tensors of the group, where a commit brings a decay for each group
    1                        otherwise
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gem_core.errors import RuleError, SizeMismatchError
from gem_core.layout import Layout, TensorRole
from gem_core.recipe import MAX_GROUPS
from gem_core.rules.interface import SMALLEST, RuleState, UpdateRule
from gem_core.rules.kernel import Decay, Statistics
from gem_core.thresholds import BLOCK, SERIAL_PIECES

__all__ = ["DecayingRule"]

# Index 0 of the kept factors is for tensors that do not decay, so that a group's is its number and 1.
_NOT_DECAYED = 0


class DecayingRule(UpdateRule):
    """Rules that add an update and send theta."""

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self._weight_decay = self.settings.get("weight_decay", 0.0)
        self.needs_eta = self.needs_eta or self._weight_decay > 0
        self._pieces: NDArray[np.int64] | None = None
        self._groups = 0
        self._decays: Sequence[float] = ()  # of the present commit

    def begin(self, layout: Layout, groups: Sequence[int] | None = None) -> None:
        """Find what decays, with `groups` by the group of each PARAMETER; see `UpdateRule.begin`."""
        self._groups = 0
        if groups is not None:
            self._begin_groups(layout, groups)
        elif self._weight_decay:
            self._pieces = _pieces(layout, [int(spec.role is not TensorRole.VECTOR) for spec in layout.parameters])

    def _begin_groups(self, layout: Layout, groups: Sequence[int]) -> None:
        if len(groups) != len(layout.parameters):
            raise SizeMismatchError(f"{len(groups)} groups for {len(layout.parameters)} PARAMETERs: name one for each")
        if self._weight_decay:
            raise RuleError(
                f"rule {self.name!r} has weight_decay = {self._weight_decay:g}, and the commits bring the decays of "
                "their groups: leave weight_decay out"
            )
        if not all(0 <= group < MAX_GROUPS for group in groups):
            raise RuleError(f"groups are numbered from 0 to {MAX_GROUPS - 1}")
        self._groups = max(groups, default=0) + 1
        self._pieces = _pieces(layout, [group + 1 for group in groups])
        self._is_warm = False  # the kernels with decay

    def commit(
        self,
        parameters: NDArray[np.float32],
        state: RuleState,
        delta: NDArray[np.float32],
        staleness: int,
        eta: float = math.nan,
        decays: Sequence[float] = (),
    ) -> Statistics:
        """See `UpdateRule.commit`."""
        if decays and len(decays) < self._groups:
            raise RuleError(f"{len(decays)} decays, and the tensors are of {self._groups} groups: give one for each")
        for decay in decays:
            if not 0 <= decay < 1:
                raise RuleError(f"a decay of {decay:g}: it must be at least 0 and below 1")
        self._decays = decays
        return super().commit(parameters, state, delta, staleness, eta)

    def is_parallel(self, elements: int) -> bool:
        """Whether a commit uses several threads. Many pieces also cost time, so they count, too."""
        return super().is_parallel(elements) or (self._pieces is not None and len(self._pieces) > SERIAL_PIECES)

    def warm_up(self) -> None:
        """See `UpdateRule.warm_up`; with groups also the kernels that a commit with decays uses."""
        super().warm_up()
        if self._groups:
            rule = type(self)(self.settings)
            rule.begin(SMALLEST, (0,))
            rule._decays = (0.5,)
            rule._run_kernels()

    def _decay(self, elements: int, eta: float) -> Decay | None:
        if self._decays:
            kept = [1.0, *(1 - decay for decay in self._decays)]
        elif self._weight_decay:
            kept = [1.0, 1 - eta * self._weight_decay]
            if not np.float32(kept[1]) > 0:
                raise RuleError(
                    f"rule {self.name!r}: weight_decay = {self._weight_decay:g} with eta = {eta:g} leaves nothing of "
                    "the parameters: make one of them smaller"
                )
        else:
            return None
        if self._pieces is None or self._pieces[-1, 1] != elements:
            raise RuleError(f"rule {self.name!r} needs the layout for weight_decay: call `begin` with the model's")
        return Decay(np.array(kept, np.float32), self._pieces)


def _pieces(layout: Layout, indices: Sequence[int]) -> NDArray[np.int64]:
    """Ranges of the flat vector that share a factor, as rows of start, stop and index of the factor."""
    rows: list[tuple[int, int, int]] = []
    start = 0
    for spec, index in zip(layout.parameters, indices, strict=True):
        stop = start + spec.elements
        while start < stop:
            joins = bool(rows) and rows[-1][2] == index and rows[-1][1] - rows[-1][0] < BLOCK
            first = rows.pop()[0] if joins else start
            start = min(first + BLOCK, stop)
            rows.append((first, start, index))
    return np.array(rows or [(0, 0, _NOT_DECAYED)], np.int64)
