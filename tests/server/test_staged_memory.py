"""That deltas of a large model are staged past the cache, which wants vectors that begin where cache lines begin."""

from gem_server.flow.staging import StagingBuffer

from gem_core import ElementType, Layout, TensorKind, TensorSpec, checked_copy
from gem_core.nontemporal import elements_past_cache
from gem_core.rules.gem import Gem


def test_what_is_staged_goes_past_the_cache_and_what_gem_keeps_is_aligned() -> None:
    layout = Layout([TensorSpec("weight", (4_200_000,), ElementType.FLOAT32, TensorKind.PARAMETER)])
    staged = StagingBuffer(layout).parameters
    assert elements_past_cache(staged, checked_copy._NONTEMPORAL_FROM) == staged.size
    state = Gem({}).new_worker(staged)
    assert state.snapshot.ctypes.data % 64 == state.vectors[0].ctypes.data % 64 == 0
