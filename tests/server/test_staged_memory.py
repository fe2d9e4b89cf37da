"""That deltas of a large model are staged past the cache, which wants vectors that begin where cache lines begin."""

from gem_server.flow.staging import StagingBuffer
from gem_server.settings import ServerSettings

from gem_core import ElementType, Layout, PayloadFormat, TensorKind, TensorSpec, WireType, checked_copy, wire_kernels
from gem_core.nontemporal import elements_past_cache
from gem_core.rules.gem import Gem


def test_what_is_staged_goes_past_the_cache_and_what_gem_keeps_is_aligned() -> None:
    layout = Layout([TensorSpec("weight", (4_200_000,), ElementType.FLOAT32, TensorKind.PARAMETER)])
    staged = StagingBuffer(layout).parameters
    assert elements_past_cache(staged, checked_copy._NONTEMPORAL_FROM) == staged.size
    for wire_type in (WireType.BFLOAT16, WireType.INT8_BLOCK):
        payload = PayloadFormat(layout, wire_type)
        first, *_, last = payload.cut(ServerSettings.model_fields["chunk_bytes"].default)
        assert elements_past_cache(staged[payload.parameter_elements(*first)], wire_kernels._NONTEMPORAL_FROM) > 0
        assert staged[payload.parameter_elements(*last)].ctypes.data % 64 == 0
    state = Gem({}).new_worker(staged)
    assert state.snapshot.ctypes.data % 64 == state.moment.ctypes.data % 64 == 0
