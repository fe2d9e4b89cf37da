"""GEM with m_w and s_w in bfloat16.

bfloat16 would drown the drift in s_w, so d_w is kept, from a float32 reference r:

    s_w =  r + d_w
    d_w <- theta - r              to nearest, when theta is sent
    d_v <- d_v + (r - theta)      all v, each W-th block in turn
    r   <- theta                  same blocks

W: snapshots, so that d_w stays small at n rebased elements a commit. m_w and d_v are rounded stochastically (arXiv
1502.02551), or small updates would vanish.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gem_core.aligned import aligned_zeros
from gem_core.layout import Layout
from gem_core.rules import bfloat16_kernels as kernels
from gem_core.rules.blocks import BLOCK
from gem_core.rules.gem import Gem
from gem_core.rules.interface import RuleState, Statistics
from gem_core.rules.kernel import summed
from gem_core.shards import Shard

__all__ = ["Bfloat16State", "GemBfloat16", "widened"]


class Bfloat16State(RuleState):
    """Bits of bfloat16. `snapshot` is in `offsets`, rebased if it `counts`."""

    __slots__ = ("counts", "number", "offsets")

    def __init__(self, elements: int) -> None:
        super().__init__(_zeros(elements), (_zeros(elements),))
        self.offsets: list[NDArray[np.uint16]] = [self.snapshot]
        self.number = 0
        self.counts = False


class GemBfloat16(Gem):
    """Rule `gem` with bfloat16 state; `first`: index of the first element."""

    state_type = np.dtype(np.uint16)
    vectors_per_run = 1
    keeps_run = False
    first = 0

    def __init__(self, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self._commits = self._admitted = 0
        self._states: list[Bfloat16State] = []
        self._addresses = np.zeros((0, 2), np.uint64)
        # Leaving, as at the end of runs, changes the next sweep only.
        self._turn = self._turns = 0
        self._blocks = np.zeros((0, 3), np.int64)

    def begin(self, layout: Layout) -> None:
        """Find `first`."""
        super().begin(layout)
        if (part := layout.part) is not None:
            self.first = Shard(part.index, part.count).range_of(part.whole.parameter_count).start

    def new_worker(self, parameters: NDArray[np.float32]) -> RuleState:
        """Start; r = theta if alone."""
        state = Bfloat16State(parameters.size)
        self._admit(parameters, state)
        return state

    def new_snapshot(self, state: RuleState) -> NDArray[np.uint16]:
        """Further offsets."""
        assert isinstance(state, Bfloat16State)
        state.offsets.append(_zeros(state.snapshot.size))
        self._find_addresses()
        return state.offsets[-1]

    def refresh(self, parameters: NDArray[np.float32], state: RuleState) -> None:
        """Set d <- theta - r."""
        self._check_vectors(parameters, state)
        (reference,) = self.vectors_of_run(parameters)
        kernels.set_offsets(parameters, reference, state.snapshot)

    def forget_worker(self, state: RuleState) -> None:
        """Stop rebasing."""
        assert isinstance(state, Bfloat16State)
        if state.counts:
            state.counts = False
            self._states.remove(state)
            self._find_addresses()

    def _admit(self, parameters: NDArray[np.float32], state: Bfloat16State) -> None:
        (reference,) = self.vectors_of_run(parameters)
        if not self._states:
            np.copyto(reference, parameters)
        for vector in state.vectors:
            vector[:] = 0
        state.counts = True
        self._admitted += 1
        state.number = self._admitted
        self._states.append(state)
        self._find_addresses()
        self.refresh(parameters, state)

    def _find_addresses(self) -> None:
        rows = [
            (offsets.ctypes.data, 2 * state.number + place)
            for state in self._states
            for place, offsets in enumerate(state.offsets)
        ]
        self._addresses = np.array(rows, np.uint64).reshape(-1, 2)

    def _commit(
        self,
        parameters: NDArray[np.float32],
        state: RuleState,
        delta: NDArray[np.float32],
        staleness: int,
        eta: float,
        parallel: bool,
    ) -> Statistics:
        assert isinstance(state, Bfloat16State)
        if not state.counts:
            self._admit(parameters, state)
        (reference,), (moment,) = self.vectors_of_run(parameters), state.vectors
        if len(self._blocks) * BLOCK < parameters.size:
            starts = np.arange(0, parameters.size, BLOCK)
            self._blocks = np.stack((starts, np.minimum(starts + BLOCK, parameters.size), 0 * starts), axis=1)
        kept, pieces = self._decay(parameters.size, eta) or (np.float32(1), self._blocks)
        self._commits += 1
        key = kernels.random_key(self._commits)
        partials = np.empty((len(pieces), 8))
        kernels.update[parallel](
            parameters, state.snapshot, moment, reference, delta, *self._constants, *self._limits, kept, self.first,
            key, partials, pieces,
        )  # fmt: skip
        if self._turn == self._turns:
            self._turn, self._turns = 0, len(self._addresses)
        block = self.first // BLOCK
        block += (self._turn - block) % self._turns
        self._turn += 1
        kernels.rebase[parallel](self._addresses, reference, parameters, block, self._turns, self.first, key)
        return summed(partials, self._proxy_scale)

    def _state_at(
        self, parameters: NDArray[np.float32], state: RuleState, at: NDArray[np.int64] | slice
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        (reference,), (moment,) = self.vectors_of_run(parameters), state.vectors
        return reference[at] + widened(state.snapshot[at]), widened(moment[at])


def widened(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Decode bfloat16."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def _zeros(elements: int) -> NDArray[np.uint16]:
    return aligned_zeros(-(-elements // 2)).view(np.uint16)[:elements]
