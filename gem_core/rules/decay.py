"""Decoupled weight decay of matrices and embeddings: Loshchilov and Hutter, 2019, arXiv 1711.05101.

    theta <- (1 - eta * weight_decay) * theta + update
    s_w   <- theta

`update`: the rule's, from theta before.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gem_core.errors import RuleError
from gem_core.layout import Layout, TensorRole
from gem_core.rules.interface import UpdateRule
from gem_core.rules.kernel import Decay
from gem_core.thresholds import BLOCK, SERIAL_PIECES

__all__ = ["DecayingRule"]


class DecayingRule(UpdateRule):
    """Rules that add an update and send theta."""

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self._weight_decay = self.settings.get("weight_decay", 0.0)
        self.needs_eta = self.needs_eta or self._weight_decay > 0
        self._pieces: NDArray[np.int64] | None = None

    def begin(self, layout: Layout) -> None:
        """Find what decays."""
        if self._weight_decay:
            self._pieces = _pieces(layout)

    def is_parallel(self, elements: int) -> bool:
        """Also with many pieces, which cost time."""
        return super().is_parallel(elements) or (self._pieces is not None and len(self._pieces) > SERIAL_PIECES)

    def _decay(self, elements: int, eta: float) -> Decay | None:
        if not self._weight_decay:
            return None
        kept = np.float32(1 - eta * self._weight_decay)
        if not kept > 0:
            raise RuleError(
                f"rule {self.name!r}: weight_decay = {self._weight_decay:g} with eta = {eta:g} leaves nothing of the "
                "parameters: make one of them smaller"
            )
        if self._pieces is None or self._pieces[-1, 1] != elements:
            raise RuleError(f"rule {self.name!r} needs the layout for weight_decay: call `begin` with the model's")
        return Decay(kept, self._pieces)


def _pieces(layout: Layout) -> NDArray[np.int64]:
    rows: list[tuple[int, int, int]] = []
    start = 0
    for spec in layout.parameters:
        stop, decays = start + spec.elements, int(spec.role is not TensorRole.VECTOR)
        while start < stop:
            joins = bool(rows) and rows[-1][2] == decays and rows[-1][1] - rows[-1][0] < BLOCK
            first = rows.pop()[0] if joins else start
            start = min(first + BLOCK, stop)
            rows.append((first, start, decays))
    return np.array(rows or [(0, 0, 0)], np.int64)
